"""Every final policy under every judge: who likes what it taught, and what was given up for it.

    python -m analysis.crossjudge study=quickstart [least=0.25] [out=FILE] [figure=FILE]

The matrix scores the last tenth of each run's rollouts by the acting judge, by every other judge
that looked on or came later (`analysis.replays`), and by the rule truth. Own-judge inflation is
what a policy gained with its own judge beyond what it gained with the others; substitution is one
behaviour rising while another falls. The run is the unit throughout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.command import study_command
from experiments.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.ledger import Run

TRUTH = "truth"
LEAST = 0.25
"""SDs of first rollouts that a behaviour moves by in every run to count as moved."""
USAGE = "python -m analysis.crossjudge study=quickstart [least=0.25] [runs_dir=runs] [out=FILE]"


@dataclass(frozen=True)
class Inflation:
    """Gain of an arm's runs with their own judge minus the mean gain with the others."""

    arm: str
    own: float
    others: float
    inflation: float
    low: float
    high: float
    runs: int
    note: str = ""


def matrix(runs: Sequence[Run], acting: dict[str, str]) -> pd.DataFrame:
    """One row per run and judge: cell, arm, seed, judge, first, last, gain.

    Args:
        runs: as `analysis.ledger.read_runs` gives them.
        acting: cell -> name of the judge that trained it; its own scores go under that name.
    """
    import pandas as pd

    from analysis.propagation import tenths

    rows = []
    for run in runs:
        given = {acting[run.cell]: run.judge, **run.shadows, TRUTH: run.truth}
        for judge, scores in given.items():
            means = step_means(run, scores)
            window = -(-len(means) // 10)
            rows.append(
                {
                    "cell": run.cell,
                    "arm": run.arm,
                    "seed": run.seed,
                    "judge": judge,
                    "own": judge == acting[run.cell],
                    "first": _mean(means[:window]),
                    "last": _mean(means[-window:]),
                    "gain": tenths(means),
                }
            )
    return pd.DataFrame(rows)


def step_means(run: Run, scores_P_G: Any) -> Any:
    """Mean score of every step, shape (T,); NaN where none was scored."""
    import numpy as np

    steps = sorted(set(run.step_P.tolist()))
    return np.array([_mean(scores_P_G[run.step_P == step]) for step in steps])


def _mean(values: Any) -> float:
    import numpy as np

    known = np.asarray(values)[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def inflation(table: pd.DataFrame) -> list[Inflation]:
    """Own-judge inflation of every arm, with a t interval over its runs.

    The truth is none of the others; an arm that no other judge looked at has no inflation.
    """
    from analysis.intervals import mean_interval

    lines = []
    for arm, part in table[table["judge"] != TRUTH].groupby("arm", observed=True, sort=False):
        own = part[part["own"]].set_index("cell")["gain"]
        others = part[~part["own"]].groupby("cell", observed=True)["gain"].mean()
        excess = (own - others.reindex(own.index)).astype(float)
        found = mean_interval(excess.tolist())
        note = (
            found.note if len(others) else "no other judge looked on: type shadow=[NAME], or replay"
        )
        lines.append(
            Inflation(
                str(arm),
                float(own.mean()),
                float(others.mean()) if len(others) else float("nan"),
                found.mean,
                found.low,
                found.high,
                found.n,
                note,
            )
        )
    return lines


@dataclass(frozen=True)
class Substitution:
    """Two behaviours of one arm that moved apart, in SDs between first rollouts."""

    arm: str
    risen: str
    fallen: str
    up: float
    down: float
    runs: int


def substitutions(runs: Sequence[Run], least: float = LEAST) -> list[Substitution]:
    """Arms in which one behaviour rose and another fell, each by ``least`` SDs or more in every
    run.

    Shifts are in SDs of the feature over the first step's rollouts; a behaviour that agrees in
    sign over all runs of an arm is taken, so one odd run is no substitution.
    """
    import numpy as np

    from analysis.propagation import paths, tenths

    spread: dict[tuple[str, str], float] = {}
    for run in runs:
        first = run.at(min(run.step_P.tolist()))
        for k, name in enumerate(run.names):
            spread[run.cell, name] = float(np.nanstd(first.features[..., k]))
    moved: dict[str, dict[str, list[float]]] = {}
    for path in paths(runs):
        sd = spread[path.cell, path.feature]
        if sd > 0:
            values = moved.setdefault(path.arm, {}).setdefault(path.feature, [])
            values.append(tenths(path.level) / sd)
    found = []
    for arm, by_feature in moved.items():
        risen = {name: min(v) for name, v in by_feature.items() if min(v) >= least}
        fallen = {name: max(v) for name, v in by_feature.items() if max(v) <= -least}
        found += [
            Substitution(arm, up, down, risen[up], fallen[down], len(by_feature[up]))
            for up in sorted(risen, key=lambda name: -risen[name])
            for down in sorted(fallen, key=lambda name: fallen[name])
        ]
    return found


def agreement(runs: Sequence[Run], acting: dict[str, str]) -> pd.DataFrame:
    """Correlation of every two judges, and of each with the truth, inside groups.

    Scores of the same rollouts are centred within their group, because only differences inside a
    group reach an advantage; pairs without common rollouts, or without spread, are NaN.

    Returns:
        A square frame, judges by judges, the truth last.
    """
    import numpy as np
    import pandas as pd

    parts = []
    for run in runs:
        given = {acting[run.cell]: run.judge, **run.shadows, TRUTH: run.truth}
        centred = {}
        for name, scores in given.items():
            known = np.isfinite(scores)
            count = np.maximum(known.sum(axis=1, keepdims=True), 1)
            mean = np.where(known, scores, 0.0).sum(axis=1, keepdims=True) / count
            centred[name] = (scores - mean).ravel()
        parts.append(pd.DataFrame(centred))
    together = pd.concat(parts, ignore_index=True)
    names = [name for name in together if name != TRUTH] + [TRUTH]
    return together[names].corr(min_periods=3)


def figure(table: pd.DataFrame) -> Any:
    """Heat map of the mean gain of every arm (rows) under every judge (columns)."""
    judges = [name for name in dict.fromkeys(table["judge"]) if name != TRUTH] + [TRUTH]
    wide = table.pivot_table(index="arm", columns="judge", values="gain", observed=True)
    wide = wide.reindex(columns=judges)
    labels = ("scored by", "trained under", "gain in score, first to last tenth")
    return heat_map(wide, labels, float(abs(wide).max().max()))


def agreement_figure(table: pd.DataFrame) -> Any:
    """Heat map of what `agreement` gives."""
    return heat_map(table, ("", "", "correlation within groups"), 1.0)


def heat_map(table: pd.DataFrame, labels: tuple[str, str, str], most: float) -> Any:
    """Numbers on a diverging scale from -most to most; what is missing is said.

    Args:
        labels: of columns, rows and the colour scale.
    """
    import matplotlib.pyplot as plt
    import numpy as np

    from analysis.figures import style

    values = table.to_numpy(dtype=float)
    most = most if most > 0 else 1.0
    rows, columns = values.shape
    with style():
        made, axes = plt.subplots(
            figsize=(3.2 + 1.2 * columns, 1.6 + 0.5 * rows), layout="constrained"
        )
        mesh = axes.imshow(values, cmap="PuOr", vmin=-most, vmax=most, aspect="auto")
        axes.grid(False)
        for (row, column), value in np.ndenumerate(values):
            dark = abs(value) > 0.6 * most
            shown = "not known" if np.isnan(value) else f"{value:+.2f}"
            axes.text(
                column, row, shown, ha="center", va="center", color="white" if dark else "black"
            )
        axes.set_xticks(range(columns), list(table.columns), rotation=20, ha="right")
        axes.set_yticks(range(rows), list(table.index))
        axes.set(xlabel=labels[0], ylabel=labels[1])
        made.colorbar(mesh, ax=axes, label=labels[2])
    return made


def study(folder: Path, least: float = LEAST) -> dict[str, Any]:
    """Matrix, inflation, agreement and substitutions of a study's finished runs, as plain data.

    Raises:
        UserError: no finished run has rollouts.
    """
    from analysis.frames import runs_frame
    from analysis.ledger import read_runs
    from analysis.replays import with_replays

    table = runs_frame(folder)
    acting = dict(zip(table["cell"].astype("str"), table["judge"].astype("str"), strict=True))
    read, problems = read_runs(folder)
    runs, unread = with_replays([run for run in read if run.done], folder)
    if not runs:
        raise UserError(f"{folder} has no finished run with rollouts. Train one, or wait for it.")
    shared = agreement(runs, acting)
    return {
        "study": folder.name,
        "unit": "run",
        "matrix": matrix(runs, acting).to_dict("records"),
        "inflation": [asdict(one) for one in inflation(matrix(runs, acting))],
        "agreement": {str(one): shared[one].to_dict() for one in shared},
        "substitutions": [asdict(one) for one in substitutions(runs, least)],
        "problems": problems + unread,
    }


def main(arguments: Sequence[str]) -> int:
    """The command line; 0, or 2 after a user's error."""
    import pandas as pd

    try:
        given, folder = study_command(arguments, ("least", "out", "figure"), USAGE)
        try:
            least = float(given.get("least", LEAST))
        except ValueError as error:
            raise UserError(f"least={given['least']} is no number. Type least=0.25.") from error
        if not 0 < least < float("inf"):
            raise UserError(f"least={given['least']} must be above 0. Type least=0.25.")
        found = study(folder, least)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    table = pd.DataFrame(found["matrix"])
    wide = table.pivot_table(index="arm", columns="judge", values="gain", observed=True)
    print("Gain from the first to the last tenth of the steps, by the judge that scored:")
    print(wide.round(3).to_string())
    print("\nOwn-judge inflation [95 % t interval over runs]:")
    print(pd.DataFrame(found["inflation"]).round(3).to_string(index=False))
    for one in found["substitutions"]:
        print(
            f"{one['arm']}: {one['risen']} rose by {one['up']:.2f} SD or more in each of"
            f" {one['runs']} runs, {one['fallen']} fell by {-one['down']:.2f} SD or more"
        )
    if not found["substitutions"]:
        print(f"No behaviour rose while another fell by {least:g} SD in all runs of an arm.")
    for problem in found["problems"]:
        print(f"problem: {problem}")
    if given.get("out"):
        Path(given["out"]).write_text(json.dumps(found, indent=1), encoding="utf-8")
    if given.get("figure"):
        figure(table).savefig(given["figure"], dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
