"""Every final policy under every judge: who likes what it taught, and what was given up for it.

The matrix scores the last tenth of each run's steps by the acting judge, by every other judge
(`analysis.records.replays`), and by the rule truth, each beside the acting judge on the rollouts
that both scored: a judge that fails on bad answers would else gain by failing less. A gain with the
own judge beyond the others is inflation only as far as it is beyond the truth too. What was given
up is in `analysis.drift.substitution`. The run is the unit throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.figures import single, style
from analysis.drift.substitution import LEAST, base_of, substitutions, why_no_substitution
from analysis.ledger.transmission import centred
from analysis.records.replays import with_replays
from analysis.records.runs import Run, ends, read_study, shift, step_means
from analysis.statistics.estimate import Estimate, columns
from analysis.statistics.intervals import mean_interval
from study.errors import UserError

TRUTH = "truth"
ROUNDING = 1e-6
"""Judges write scores to a few digits: a gain below this is what that leaves of none."""
COLUMNS = {
    "own": "gain with the judge that trained, on the rollouts that the others scored as well",
    "others": "mean gain with the other judges on those same rollouts",
    "inflation": "own - others, with low and high: what the others do not see, good or bad",
    "truth": "gain of the rule truth, on the rollouts that the own judge scored as well",
    "beyond_truth": "own - truth on those, with truth_low and truth_high; none without a truth",
    "reading": "inflated is what gained beyond the others and beyond the truth",
}
"""What the table of `inflation` says. Gains are from the first to the last tenth of the steps,
intervals 95 % t over runs."""


@dataclass(frozen=True)
class Inflation:
    """What an arm's runs gained with their own judge beyond the others and beyond the truth.

    `COLUMNS` says what each number is. ``inflation`` alone does not accuse a judge that is right
    where the others are blind: ``beyond_truth`` is then 0.
    """

    arm: str
    own: float
    others: float
    inflation: Estimate
    truth: float
    beyond_truth: Estimate
    runs: int
    reading: str = ""
    note: str = ""


def matrix(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run and judge.

    Returns cell, arm, seed, judge, ``own`` (whether it trained the run), ``first``, ``last`` and
    ``gain`` over the rollouts that it and the own judge both scored, ``own_gain`` of the own judge
    over the same ones, and ``common``, their share of the run's rollouts.
    """
    rows = []
    for run in runs:
        for judge, scores in _by_judge(run).items():
            both = np.isfinite(scores) & np.isfinite(run.judge)
            means = step_means(run, np.where(both, scores, np.nan))
            first, last = ends(means)
            rows.append(
                {"cell": run.cell, "arm": run.arm, "seed": run.seed}
                | {"judge": judge, "own": judge == run.acting}
                | {"first": first, "last": last, "gain": shift(means)}
                | {"own_gain": shift(step_means(run, np.where(both, run.judge, np.nan)))}
                | {"common": float(both.sum() / (run.rollouts or both.size))}
            )
    return pd.DataFrame(rows)


def _by_judge(run: Run) -> dict[str, np.ndarray]:
    """Scores of a run's rollouts by the judge that trained it, by each other, and by the truth."""
    return {run.acting: run.judge, **run.shadows, TRUTH: run.truth}


def inflation(table: pd.DataFrame) -> list[Inflation]:
    """Own gain of every arm beyond the other judges and beyond the truth, t intervals over runs.

    The truth is none of the others. Each judge is compared with the own one on the rollouts that
    both scored, and a run's excess is the mean over its other judges; an arm that no other judge
    looked at has none. ``table`` is as `matrix` gives it.
    """
    own_row = table[table["own"]].set_index("cell")["gain"]
    lines = []
    for arm, part in table.groupby("arm", observed=True, sort=False):
        compared_rows = part[~part["own"] & part["gain"].notna() & part["own_gain"].notna()]
        gains = ["own_gain", "gain"]
        cells = part["cell"].unique()
        others = (
            compared_rows[compared_rows["judge"] != TRUTH]
            .groupby("cell", observed=True)[gains]
            .mean()
        )
        right = compared_rows[compared_rows["judge"] == TRUTH].set_index("cell")[gains]
        beyond_others, beyond_truth = (
            mean_interval((compared["own_gain"] - compared["gain"]).reindex(cells).tolist())
            for compared in (others, right)
        )
        note = beyond_others.note
        if part["judge"].isin([TRUTH, *part.loc[part["own"], "judge"]]).all():
            note = "no other judge scored it: type shadow=[NAME], or replay"
        lines.append(
            Inflation(
                arm=str(arm),
                own=float((others["own_gain"] if len(others) else own_row.reindex(cells)).mean()),
                others=float(others["gain"].mean()),
                inflation=beyond_others,
                truth=float(right["gain"].mean()),
                beyond_truth=beyond_truth,
                runs=beyond_others.n,
                reading=_reading(beyond_others.low, beyond_truth.low),
                note=note,
            )
        )
    return lines


def inflation_rows(lines: Iterable[Inflation]) -> list[dict[str, Any]]:
    """Rows of a table: `COLUMNS`, arm, runs and note."""
    return [columns(line, inflation="", beyond_truth="truth_") for line in lines]


def _reading(low: float, truth_low: float) -> str:
    """What the lower ends of the two excesses allow to say; a missing end allows nothing."""
    if low != low:
        return "beyond the truth; no other judge to compare with" if truth_low > ROUNDING else ""
    if not low > ROUNDING:
        return "no gain beyond the others is seen"
    if truth_low != truth_low:
        return "beyond the others; no truth to tell inflation from improvement"
    if truth_low > ROUNDING:
        return "inflated: beyond the others and beyond the truth"
    return "beyond the others, but not beyond the truth"


def agreement(runs: Sequence[Run]) -> pd.DataFrame:
    """Correlation of every two judges, and of each with the truth, inside groups: mean over runs.

    Scores of the rollouts that both judges scored are centred within their group, because only
    differences inside a group reach an advantage, and correlated run by run. Returns one row per
    ordered pair of judges, the truth last: ``judge``, ``other``, ``mean`` over runs, ``low``,
    ``high`` (95 % t interval), ``n`` runs and ``note``. NaN for two that never scored the same
    rollouts, or where one has no spread.
    """
    correlations: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        scores = _by_judge(run).items()
        for (judge, a), (other, b) in product(scores, scores):
            correlations.setdefault((judge, other), []).append(within_groups(a, b))
    names = _truth_last(judge for judge, _ in correlations)
    return pd.DataFrame(
        {"judge": judge, "other": other}
        | mean_interval(correlations.get((judge, other), [])).row("mean")
        for judge, other in product(names, names)
    )


def _truth_last(judges: Iterable[str]) -> list[str]:
    """Each judge once, in the order given, and the truth after them."""
    return [*(judge for judge in dict.fromkeys(judges) if judge != TRUTH), TRUTH]


def within_groups(a_P_G: np.ndarray, b_P_G: np.ndarray) -> float:
    """Correlation over all groups of what is left when each group's mean is taken away."""
    both = np.isfinite(a_P_G) & np.isfinite(b_P_G)
    a, b = centred(a_P_G, both), centred(b_P_G, both)
    size = ((a**2).sum() * (b**2).sum()) ** 0.5
    # what centring leaves of equal scores is rounding, not spread
    return float((a * b).sum() / size) if size > 1e-12 * both.sum() else float("nan")


def mean_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Mean gain over runs, arms by judges; NaN where a judge scored no run of an arm."""
    return table.groupby(["arm", "judge"], observed=True)["gain"].mean().unstack("judge")


def figure(table: pd.DataFrame) -> Any:
    """Heat map of the mean gain over runs of every arm (rows) under every judge (columns)."""
    wide = mean_gains(table)[_truth_last(table["judge"])]
    labels = ("scored by", "trained under", "gain in score, first to last tenth")
    return heat_map(wide, labels, float(abs(wide).max().max()))


def agreement_figure(table: pd.DataFrame) -> Any:
    """Heat map of the means that `agreement` gives."""
    order = list(dict.fromkeys(table["judge"]))
    wide = table.pivot(index="judge", columns="other", values="mean").reindex(order)[order]
    return heat_map(wide, ("", "", "correlation within groups, mean over runs"), 1.0)


@style()
def heat_map(table: pd.DataFrame, labels: tuple[str, str, str], most: float) -> Any:
    """Numbers on a diverging scale from -most to most; what is missing is said.

    ``labels``: of columns, rows and the colour scale.
    """
    import seaborn as sns

    values = table.to_numpy(dtype=float)
    most = most if most > 0 else 1.0
    rows, columns = values.shape
    drawn, axes = single(3.2 + 1.2 * columns, 1.6 + 0.5 * rows)
    scale: Any = {"cmap": "PuOr", "vmin": -most, "vmax": most, "cbar_kws": {"label": labels[2]}}
    sns.heatmap(table, ax=axes, **scale)
    axes.grid(False)
    for (row, column), value in np.ndenumerate(values):
        dark = abs(value) > 0.6 * most
        shown = "not known" if np.isnan(value) else f"{value:+.2f}"
        place = column + 0.5, row + 0.5
        axes.text(*place, shown, ha="center", va="center", color="white" if dark else "black")
    axes.tick_params(axis="x", rotation=20)
    axes.tick_params(axis="y", rotation=0)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    return drawn


def study(folder: Path, min_shift_sd: float = LEAST) -> dict[str, Any]:
    """Matrix, inflation, agreement and substitutions of a study's finished runs, as plain data.
    Raises UserError: no finished run has rollouts."""
    records = read_study(folder)
    runs, unread = with_replays([run for run in records.runs if run.done], folder)
    if not runs:
        raise UserError(f"{folder} has no finished run with rollouts. Train one, or wait for it.")
    table = matrix(runs)
    return {
        **{"study": folder.name, "unit": "run"},
        "matrix": table.to_dict("records"),
        "inflation": inflation_rows(inflation(table)),
        "inflation_columns": COLUMNS,
        "agreement": agreement(runs).to_dict("records"),
        "base_arm": base_of(runs),
        "substitutions": [asdict(swap) for swap in substitutions(runs, min_shift_sd)],
        "substitutions_untold": why_no_substitution(runs),
        "problems": records.problems + unread,
    }
