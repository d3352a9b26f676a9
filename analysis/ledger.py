"""The ledger of a study: `analysis.transmission` applied to every run and step on record.

``python -m analysis.ledger study=NAME`` prints it per judge, with intervals over runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.advantages import advantages
from analysis.transmission import (
    MISFIT,
    POLICIES,
    SCALES,
    after_failures,
    bias_share,
    compare,
    dead_groups,
    gains,
    group_cov,
    known_mean,
    split,
    tied_groups,
    within_regression,
    yes_no,
)
from experiments.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """One run as arrays: P groups of all steps together, G rollouts each, K features."""

    cell: str
    arm: str
    seed: int
    done: bool
    step_P: np.ndarray
    reward: np.ndarray
    """(P, G), as given to the trainer; NaN is a rollout without one, here and below."""
    advantage: np.ndarray
    truth: np.ndarray
    judge: np.ndarray
    """(P, G), the acting judge's score before the failure policy."""
    features: np.ndarray
    names: tuple[str, ...]
    shadows: Mapping[str, np.ndarray] = field(default_factory=dict)
    scale: str = "group"
    on_failure: str = "unscored"
    truth_weight: float = 0.0

    def at(self, step: int) -> Run:
        """The groups of one step."""
        from dataclasses import replace

        here = self.step_P == step
        arrays = ("step_P", "reward", "advantage", "truth", "judge", "features")
        shadows = {name: scores[here] for name, scores in self.shadows.items()}
        return replace(
            self, **{name: getattr(self, name)[here] for name in arrays}, shadows=shadows
        )


def step_row(run: Run) -> dict[str, float]:
    """One line of the ledger from the groups given; missing numbers are NaN.

    ``bias/<feature>`` with ``bias_se/<feature>`` is the judge's within-group bias;
    ``cov/``, ``cov_truth/``, ``cov_bias/`` the push on the feature and its parts under the run's
    own scaling and ``cov_bias_none/`` without division; ``unique/`` the advantage variance that the
    feature alone explains. ``check/<scale>`` is the largest difference to the recorded advantages.
    """
    import numpy as np

    reward, truth = run.reward, run.truth
    total, of_truth, of_bias = split(reward, truth, run.scale)
    bias = within_regression(run.judge - truth, run.features, run.names)
    push = within_regression(total, run.features, run.names)
    row: dict[str, float] = {
        "groups": float(len(reward)),
        "rollouts": float(reward.size),
        "unscored": float((~np.isfinite(run.judge)).mean()) if run.judge.size else float("nan"),
        "bias_r2": bias.r2,
        "advantage_r2": push.r2,
        "bias_share": bias_share(of_truth, of_bias),
        "bias_share_none": bias_share(*split(reward, truth, "none")[1:]),
        "tied": known_mean(tied_groups(truth, reward)),
        "dead": known_mean(dead_groups(reward)),
        "starved": known_mean((np.isfinite(reward).sum(axis=1) < 2).astype(float)),
        **yes_no(run.judge, truth),
        **gains(reward, truth),
    }
    for scale in SCALES:
        gap = abs(advantages(reward, scale) - run.advantage)[np.isfinite(reward)]
        gap = gap[np.isfinite(gap)]
        row[f"check/{scale}"] = float(gap.max()) if len(gap) else float("nan")
    parts = {"cov": total, "cov_truth": of_truth, "cov_bias": of_bias}
    parts["cov_bias_none"] = split(reward, truth, "none")[2]
    covariances = {key: group_cov(part, run.features) for key, part in parts.items()}
    for k, name in enumerate(run.names):
        row[f"bias/{name}"], row[f"bias_se/{name}"] = bias.coef_K[k], bias.se_K[k]
        row[f"unique/{name}"] = push.unique_K[k]
        row |= {f"{key}/{name}": known_mean(found[:, k]) for key, found in covariances.items()}
    for policy in POLICIES:
        other = after_failures(run.judge, truth, policy, run.truth_weight)
        found = compare(reward, other, run.scale)
        row |= {f"{policy}/{key}": found[key] for key in ("cosine", "flips", "silenced")}
        moved = group_cov(split(other, truth, run.scale)[0], run.features)
        row |= {f"{policy}/cov/{name}": known_mean(moved[:, k]) for k, name in enumerate(run.names)}
    for judge, scores in {"truth": truth, **run.shadows}.items():
        found = compare(run.judge, scores, run.scale)
        row |= {f"align/{judge}/{key}": value for key, value in found.items()}
    return row


def read_runs(study_dir: Path | str) -> tuple[list[Run], list[str]]:
    """Every run of a study that has rollouts, as arrays, and sentences on what could not be read.

    Shadow verdicts are averaged over votes; unscored votes are left out.
    """
    import numpy as np
    import pandas as pd

    from analysis.behaviour import feature_frame, study_keyword
    from analysis.frames import ROLLOUT_COLUMNS, rollouts_frame, runs_frame, verdicts_frame
    from judges.features import FEATURES

    runs = runs_frame(study_dir)
    needed = [name for name in ROLLOUT_COLUMNS if name not in ("prompt", "completion")]
    rollouts = rollouts_frame(study_dir, needed, runs)
    verdicts = verdicts_frame(study_dir, ["rollout_id", "judge", "role", "score"], runs)
    problems = [p for frame in (runs, rollouts, verdicts) for p in frame.attrs["problems"]]
    rollouts = pd.concat(
        [rollouts, feature_frame(rollouts, study_keyword(runs))[list(FEATURES)]], axis=1
    )
    votes = verdicts[verdicts["role"] == "shadow"]
    shadow = votes.groupby(["cell", "judge", "rollout_id"], observed=True)["score"].mean()
    shadow_cells = set(votes["cell"].astype("str"))
    table = runs.set_index("cell")
    found = []
    for cell, part in rollouts.groupby("cell", observed=True, sort=False):
        name = str(cell)
        keys = part["step"].to_numpy() * (int(part["group"].max()) + 1) + part["group"].to_numpy()
        groups, row = np.unique(keys, return_inverse=True)
        where = (row, part["member"].to_numpy())
        shape = (len(groups), int(part["member"].max()) + 1)

        def place(values: np.ndarray, where=where, shape=shape) -> np.ndarray:
            out = np.full(shape + values.shape[1:], np.nan)
            out[where] = values
            return out

        shadows = {}
        if name in shadow_cells:
            for judge, scores in shadow.xs(name, level="cell").groupby(level="judge"):
                by_id = scores.droplevel("judge")
                shadows[str(judge)] = place(part["rollout_id"].map(by_id).to_numpy(dtype=float))
        step_P = np.zeros(len(groups), dtype=int)
        step_P[row] = part["step"].to_numpy()
        config = _config(Path(study_dir) / name)
        found.append(
            Run(
                name,
                str(table.loc[name, "arm"]),
                int(table.loc[name, "seed"]),
                bool(table.loc[name, "done"]),
                step_P,
                reward=place(part["reward"].to_numpy(dtype=float)),
                advantage=place(part["advantage"].to_numpy(dtype=float)),
                truth=place(part["truth"].to_numpy(dtype=float)),
                judge=place(part["judge_score"].to_numpy(dtype=float)),
                features=place(part[list(FEATURES)].to_numpy(dtype=float)),
                names=FEATURES,
                shadows=shadows,
                scale=str(config.get("trainer.scale_rewards", "group")),
                on_failure=str(config.get("judge.on_failure", "unscored")),
                truth_weight=float(config.get("reward.truth_weight", 0.0)),
            )
        )
    return found, problems


def ledger(source: Path | str | Sequence[Run]) -> pd.DataFrame:
    """One row per run and step: cell, arm, seed, done, step and the columns of `step_row`.

    ``source`` is a study's folder or runs already read. ``attrs["problems"]`` holds sentences on
    files that could not be read and on advantages that are not what the trainer used.
    """
    import pandas as pd

    runs, problems = read_runs(source) if isinstance(source, str | Path) else (list(source), [])
    rows = []
    for run in runs:
        off: list[float] = []
        for step in sorted(set(run.step_P.tolist())):
            axes = {"cell": run.cell, "arm": run.arm, "seed": run.seed, "done": run.done}
            row = step_row(run.at(step))
            rows.append({**axes, "step": step, **row})
            off.append(row[f"check/{run.scale}"])
        worst = max((value for value in off if value == value), default=0.0)
        if worst > MISFIT:
            problems.append(
                f"{run.cell}: recorded advantages differ by up to {worst:.3g} from those of its "
                f"rewards under scale_rewards={run.scale}"
            )
    frame = pd.DataFrame(rows, columns=None if rows else ["cell", "arm", "seed", "done", "step"])
    frame.attrs["problems"] = problems
    return frame


def judge_table(runs: Sequence[Run], steps: pd.DataFrame) -> pd.DataFrame:
    """Run means over steps as one line per arm and metric: mean, low, high (t), n, missing.

    ``bias/<feature>`` is refitted on all groups of a run at once: a single step has too few for a
    vector of features. Finished runs only, or all where none is finished.
    """
    import pandas as pd

    from analysis.intervals import grouped_intervals

    chosen = [run for run in runs if run.done] or list(runs)
    rows = []
    for run in chosen:
        own = steps[steps["cell"] == run.cell]
        plain = own.drop(columns=["cell", "arm", "seed", "done", "step"])
        means = plain[[c for c in plain if not c.startswith("bias_se/")]].mean()
        pooled = within_regression(run.judge - run.truth, run.features, run.names)
        means.update(pd.Series({f"bias/{n}": pooled.coef_K[k] for k, n in enumerate(run.names)}))
        means["bias_r2"] = pooled.r2
        rows += [(run.arm, metric, value) for metric, value in means.items()]
    long = pd.DataFrame(rows, columns=["arm", "metric", "value"])
    return grouped_intervals(long, ["arm", "metric"])


def main(arguments: list[str]) -> int:
    """Command line. Exit codes: 0 printed, 2 a user's error."""
    usage = "python -m analysis.ledger study=quickstart [runs_dir=runs] [out=ledger.parquet]"
    try:
        given = dict(argument.partition("=")[::2] for argument in arguments)
        unknown = [name for name in given if name not in ("study", "runs_dir", "out")]
        if unknown or not given.get("study"):
            wrong = f"There is no option {unknown[0]}. " if unknown else "No study was named. "
            raise UserError(f"{wrong}Legal are study, runs_dir and out. Type for example: {usage}")
        folder = Path(given.get("runs_dir", "runs")) / given["study"]
        if not folder.is_dir():
            raise UserError(f"There is no study folder {folder}. Type for example: {usage}")
        runs, problems = read_runs(folder)
        steps = ledger(runs)
        problems += steps.attrs["problems"]
        if given.get("out"):
            steps.to_parquet(given["out"])
        if runs:
            _print(runs, judge_table(runs, steps))
        else:
            print("No run of this study has recorded rollouts yet.")
        for line in problems:
            print(f"problem: {line}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


_PER_FEATURE = ("bias", "cov", "cov_truth", "cov_bias", "cov_bias_none", "unique")
_PER_RUN = (
    *("unscored", "tied", "dead", "starved", "phi", "j", "gain", "gain_tied", "amplification"),
    *("bias_share", "bias_share_none", "bias_r2", "advantage_r2"),
)


def _print(runs: Sequence[Run], table: pd.DataFrame) -> None:
    from analysis.markup import MISSING, bracket, number

    cells = table.assign(
        text=[
            f"{number(m)} {bracket(lo, hi)}".strip()
            for m, lo, hi in zip(table["mean"], table["low"], table["high"], strict=True)
        ]
    ).set_index(["arm", "metric"])
    for arm in dict.fromkeys(table["arm"]):
        own = cells.loc[arm]
        print(f"\n{arm}: {own['n'].max()} runs; mean over steps [95 % t interval over runs]")
        for metric in _PER_RUN:
            print(f"  {metric:<16} {own.loc[metric, 'text']}")
        others = [
            m for m in own.index if m.startswith("align/") and m.endswith(("cosine", "flips"))
        ]
        compared = [f"{policy}/{key}" for policy in POLICIES[1:] for key in ("cosine", "flips")]
        for metric in [*others, *compared]:
            print(f"  {metric:<24} {own.loc[metric, 'text']}")
        print(f"  {'feature':<12}" + "".join(f"{key:<32}" for key in _PER_FEATURE))
        for name in runs[0].names:
            texts = [own.loc[f"{key}/{name}", "text"] for key in _PER_FEATURE]
            if set(texts) != {MISSING}:
                print(f"  {name:<12}" + "".join(f"{text:<32}" for text in texts))


def _config(cell: Path) -> dict[str, Any]:
    import yaml

    from experiments.cells import flatten

    try:
        return flatten(yaml.safe_load((cell / "config.yaml").read_text(encoding="utf-8")) or {})
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}  # analysis.frames has named the file as a problem


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
