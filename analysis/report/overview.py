"""The two figures of the report's first screen, and the table behind the first of them.

What is drawn is for every arm at once, so of many arms only the base and those whose judge ran
furthest from the truth are shown; `shown_arms` says which.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.display.clipping import cut
from analysis.display.figures import line, outside_legend, scored, style
from analysis.display.markup import TEXTS
from analysis.report.evidence import Evidence, spread_of
from analysis.report.tables import row_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ARMS = 5
"""Arms that the two figures have room for."""
MOST_ROWS = 14
"""Measures that the picture of shifts has room for."""
WIDTH = 4.8
"""Inches of each figure: two stand side by side, and on a phone one is not much smaller."""
ROOM = 1.5
"""The picture is so many times as wide as the largest shift; longer intervals leave it."""
SCORED = {"truth": "truth", "judge_score": "judge"}


def standardised(evidence: Evidence) -> pd.DataFrame:
    """Shift of the truth, of the judge's score and of every behaviour, in standard deviations over
    all answers of the study.

    Returns arm, metric, shift, low, high, n; a row for each arm and measure that varies, intervals
    cut at what is possible: no count falls below 0, and no score leaves its scale.
    """
    rows = []
    runs = evidence.records.runs
    spread = {
        metric: spread_of(getattr(run, name) for run in runs) for metric, name in SCORED.items()
    } | evidence.spread
    scores = evidence.score_shifts
    for table in (scores[scores["metric"].isin(list(SCORED))], evidence.feature_shifts):
        for row in table.to_dict("records"):
            sd = spread.get(row["metric"], 0.0)
            if sd > 0 and not math.isnan(row["shift"]):
                low, high = cut(row)
                rows.append(
                    {"arm": row["arm"], "metric": row["metric"], "shift": row["shift"] / sd}
                    | {"low": low / sd, "high": high / sd, "n": row["n"]}
                )
    return pd.DataFrame(rows, columns=["arm", "metric", "shift", "low", "high", "n"])


def shown_arms(evidence: Evidence) -> list[str]:
    """The base arm and those whose judge ran furthest from the truth, or else moved most, in the
    report's order."""
    others = [arm for arm in evidence.arms if arm != evidence.base]
    moved = standardised(evidence).groupby("arm")["shift"].apply(lambda each: each.abs().max())

    def far(arm: str) -> tuple[float, float]:
        row = row_of(evidence.score_shifts, arm, "gap")
        gap = math.nan if row is None else abs(row["shift"])
        return (-1.0 if math.isnan(gap) else gap), float(moved.get(arm, 0.0))

    base = [arm for arm in evidence.arms if arm == evidence.base]
    shown = {*base, *sorted(others, key=far, reverse=True)[: MOST_ARMS - len(base)]}
    return [arm for arm in evidence.arms if arm in shown]


@style()
def shifts(table: pd.DataFrame, arms: list[str], look: dict[str, dict[str, Any]]) -> Figure:
    """Shift of every measure in standard deviations, a mark with its interval for each arm.

    ``table`` as `standardised` gives it; truth and judge stand first, then the behaviours that
    moved furthest.
    """
    from matplotlib.figure import Figure

    table = table[table["arm"].isin(arms)]
    arms = [arm for arm in arms if arm in set(table["arm"])]
    metrics = ranked(table)[:MOST_ROWS]
    table = table[table["metric"].isin(metrics)]
    height = 0.6 + len(metrics) * (0.12 + 0.075 * len(arms))
    drawn = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = drawn.subplots()
    apart = 0.72 / max(1, len(arms))
    for k, arm in enumerate(arms):
        rows = table[table["arm"] == arm]
        places = np.array([metrics.index(metric) for metric in rows["metric"]], dtype=float)
        at = places + apart * (k - (len(arms) - 1) / 2)
        ends = np.abs(rows[["low", "high"]].sub(rows["shift"], axis=0)).fillna(0.0).to_numpy().T
        marks: Any = {"marker": look[arm]["marker"], "color": look[arm]["color"], "markersize": 4.5}
        axes.errorbar(rows["shift"], at, xerr=ends, linestyle="", elinewidth=1.2, **marks)
        axes.plot([], [], linestyle="", label=arm, **marks)  # a bar has no marker in a legend
    far = ROOM * max(float(table["shift"].abs().max()), 0.1)
    least, most = min(0.0, table["shift"].min()), max(0.0, table["shift"].max())
    low, high = np.nanmin([table["low"].min(), least]), np.nanmax([table["high"].max(), most])
    axes.set_xlim(max(low, least - far) - 0.05 * far, min(high, most + far) + 0.05 * far)
    axes.axvline(0, color="0.3", linewidth=1)
    for row in range(1, len(metrics)):
        axes.axhline(row - 0.5, color="0.92", linewidth=0.8, zorder=0)
    axes.grid(axis="y", visible=False)
    names = [TEXTS["scores"].get(metric, metric) for metric in metrics]
    axes.set_yticks(range(len(metrics)), names)
    axes.set_ylim(len(metrics) - 0.5, -0.5)
    axes.set_xlabel("shift in standard deviations over all answers")
    outside_legend(drawn, [axes])
    return drawn


def ranked(table: pd.DataFrame) -> list[str]:
    """Truth, judge, then the behaviours by the largest shift of any arm."""
    size = table["shift"].abs().groupby(table["metric"]).max()
    behaviours = size[~size.index.isin(list(SCORED))].sort_values(ascending=False, kind="stable")
    return [*(name for name in SCORED if name in size.index), *map(str, behaviours.index)]


@style()
def curve(curves: pd.DataFrame, arms: list[str], look: dict[str, dict[str, Any]]) -> Figure:
    """Judge (full) and truth (hollow, dashed) over the steps, in the look of the arm; bars are 95 %
    t intervals over runs.

    ``curves`` as `analysis.drift.estimate.learning_curves` gives them.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    drawn = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = drawn.subplots()
    for k, (arm, metric) in enumerate(product(arms, ("judge_score", "truth"))):
        part = curves[(curves["arm"] == arm) & (curves["metric"] == metric)]
        label = arm if metric == "judge_score" else ""
        line(axes, part, label, (0, 1), (k, 2 * len(arms)), **scored(look[arm], metric))
    axes.set(xlabel="training step", ylabel="score (mean over runs)")
    for metric in ("judge_score", "truth"):
        shown = scored({"color": "0.35", "marker": "o"}, metric)
        axes.add_line(Line2D([], [], label=TEXTS["scores"][metric], **shown))
    outside_legend(drawn, [axes])
    return drawn
