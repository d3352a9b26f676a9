"""Figures of the bias report: one per question, intervals everywhere, one colour-blind-safe style.

Each function takes a table of `analysis.report.evidence.Evidence` and returns a matplotlib Figure.
Bars are 95 % t intervals over runs, as in the tables; where there is one run there is a line and no
bar.

The two figures of the first screen are of all arms at once, so of many arms they show only the base
and those whose judge ran furthest from the truth; `shown_arms` says which.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.display.figures import (
    ALONE,
    bar,
    grid,
    line,
    lines,
    looks,
    outside_legend,
    palette,
    scored,
    single,
    style,
)
from analysis.display.markup import TEXTS, cut, cut_difference
from analysis.report.evidence import Evidence, spread_of
from analysis.report.tables import row_of
from study.features import FEATURES, possible, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NOISE = 1e-7
"""Judges write scores to a few digits: a gap below this is what that leaves of none."""
SCORED = ("judge_score", "truth")
"""The two curves of every arm."""
NO_REASON = {"judge", "role", "scored", "verdicts", "unscored"}
"""Columns of the failure table that are not a reason."""


@style()
def learning(curves: pd.DataFrame) -> Figure:
    """Does the judge's score rise, and does the truth rise with it? One panel per arm.

    ``curves`` as `analysis.drift.estimate.learning_curves` gives them.
    """
    shown = curves[curves["metric"].isin(["judge_score", "truth"])]
    arms = sorted(shown["arm"].unique())
    figure, panels = grid(len(arms), share=True)
    look = looks(arms)
    for arm, axes in zip(arms, panels, strict=True):
        part = shown[shown["arm"] == arm]
        for k, metric in enumerate(SCORED):
            label, curve = TEXTS["scores"][metric], part[part["metric"] == metric]
            line(axes, curve, label, (0, 1), (k, 2), **scored(look[arm], metric))
        axes.set_title(f"{arm} ({_runs(part)})")
        axes.set(xlabel="training step", ylabel="score (mean over runs)")
    outside_legend(figure, panels, colour="0.3")
    return figure


@style()
def gap(curves: pd.DataFrame) -> Figure:
    """How far does the judge's score run ahead of the truth, under each arm?"""
    shown = curves[curves["metric"] == "gap"]
    ends = shown[["mean", "low", "high"]]
    shown = shown.assign(**ends.where(ends.abs().gt(NOISE) | ends.isna(), 0.0))
    figure, axes = single(ALONE, 3.4)
    lines(axes, shown, shown, lambda arm, part: f"{arm} ({_runs(part)})")
    axes.axhline(0, color="0.3", linewidth=1)
    axes.set(xlabel="training step", ylabel="judge score - truth (score units)")
    outside_legend(figure, [axes])
    return figure


@style()
def behaviour(curves: pd.DataFrame) -> Figure:
    """Which behaviours move while training? One panel per feature that occurs, a line per arm."""
    metrics = _in_order(curves["metric"])
    figure, panels = grid(len(metrics), height=2.5)
    for metric, axes in zip(metrics, panels, strict=True):
        lines(axes, curves, curves[curves["metric"] == metric], ends=possible(metric))
        axes.set_title(metric)
        axes.set(xlabel="training step", ylabel=unit(metric))
    outside_legend(figure, panels)
    return figure


@style()
def shifts(table: pd.DataFrame, base: str) -> Figure:
    """How far beyond the base arm did each behaviour move? Differences paired by seed.

    ``table`` as `analysis.drift.estimate.shift_table` gives it; one panel per metric.
    """
    from matplotlib.ticker import MaxNLocator

    shown = table[table["diff"].notna()]
    metrics = _in_order(shown["metric"])
    arms = sorted(shown["arm"].unique())
    look = looks([*arms, base])
    heights = {arm: len(arms) - 1 - k for k, arm in enumerate(arms)}
    figure, panels = grid(len(metrics), height=1.15 + 0.28 * len(arms))
    of_base = {row["metric"]: row for row in table[table["arm"] == base].to_dict("records")}
    for metric, axes in zip(metrics, panels, strict=True):
        rows = shown[shown["metric"] == metric].to_dict("records")
        for row in rows:
            axes.errorbar(
                row["diff"],
                heights[row["arm"]],
                xerr=bar(row["diff"], *cut_difference(row, of_base.get(metric))),
                fmt=look[row["arm"]]["marker"],
                color=look[row["arm"]]["color"],
                capsize=3,
            )
        axes.axvline(0, color="0.3", linewidth=1)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_yticks(list(heights.values()), list(heights))
        axes.set_ylim(-0.6, len(arms) - 0.4)
        axes.set_title(metric)
        axes.set_xlabel(f"difference in shift ({rows[0]['unit']})")
    return figure


@style()
def failures(table: pd.DataFrame, by_length: pd.DataFrame) -> Figure:
    """Which verdicts are missing, why, and do long answers lose theirs more often?"""
    figure, (bars, lines) = grid(2, height=max(3.4, 1.4 + 0.35 * len(table)))
    labels = [
        f"{row['judge']} ({row['role']}, n={row['verdicts']:,})" for row in table.to_dict("records")
    ]
    left = np.zeros(len(table))
    reasons = [name for name in table if name not in NO_REASON]
    for k, reason in enumerate(reasons):
        share = (100 * table[reason] / table["verdicts"]).to_numpy()
        hatch = ("", "//", "..", "xx")[k % 4]
        bars.barh(labels, share, left=left, label=reason, color=palette(10)[k], hatch=hatch)
        left = left + share
    bars.invert_yaxis()
    bars.grid(axis="y", visible=False)
    bars.set(xlabel="unscored verdicts (% of all)", ylabel="")
    bars.set_title("reasons")
    for judge, look in looks(list(by_length["judge"].unique())).items():
        part = by_length[by_length["judge"] == judge]
        middle = (part["words_low"] + part["words_high"]) / 2
        half = 100 * (part["high"] - part["mean"])
        lines.errorbar(middle, 100 * part["mean"], yerr=half, label=judge, capsize=2, **look)
    lines.set(xlabel="answer length (words, middle of decile)", ylabel="unscored (%)")
    lines.set_title("by length")
    lines.set_ylim(bottom=0)
    for axes, entries in ((bars, reasons), (lines, by_length)):
        if len(entries):
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    return figure


def _in_order(metrics: Iterable[str]) -> list[str]:
    """Each metric once: features in their own order, others after them by name."""
    order = {name: k for k, name in enumerate(FEATURES)}
    return sorted(set(metrics), key=lambda metric: (order.get(metric, len(order)), metric))


def _runs(part: pd.DataFrame) -> str:
    n = int(part["n"].max()) if len(part) else 0
    return "1 run, no interval" if n == 1 else f"{n} runs"


MOST_ARMS = 5
"""Arms that the two figures have room for."""
MOST_ROWS = 14
"""Measures that the picture of shifts has room for."""
FRONT_WIDTH = 4.8
"""Inches of each figure: two stand side by side, and on a phone one is not much smaller."""
ROOM = 1.5
"""The picture is so many times as wide as the largest shift; longer intervals leave it."""
SCORE_OF = {"truth": "truth", "judge_score": "judge"}


def standardised(evidence: Evidence) -> pd.DataFrame:
    """Shift of the truth, of the judge's score and of every behaviour, in standard deviations over
    all answers of the study.

    Returns arm, metric, shift, low, high, n; a row for each arm and measure that varies, intervals
    cut at what is possible: no count falls below 0, and no score leaves its scale.
    """
    rows = []
    runs = evidence.records.runs
    spread = {
        metric: spread_of(getattr(run, name) for run in runs) for metric, name in SCORE_OF.items()
    } | evidence.spread
    scores = evidence.score_shifts
    for table in (scores[scores["metric"].isin(list(SCORE_OF))], evidence.feature_shifts):
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
def front_shifts(table: pd.DataFrame, arms: list[str], look: dict[str, dict[str, Any]]) -> Figure:
    """Shift of every measure in standard deviations, a mark with its interval for each arm.

    ``table`` as `standardised` gives it; truth and judge stand first, then the behaviours that
    moved furthest.
    """

    table = table[table["arm"].isin(arms)]
    arms = [arm for arm in arms if arm in set(table["arm"])]
    metrics = ranked(table)[:MOST_ROWS]
    table = table[table["metric"].isin(metrics)]
    height = 0.6 + len(metrics) * (0.12 + 0.075 * len(arms))
    drawn, axes = single(FRONT_WIDTH, height)
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
    behaviours = size[~size.index.isin(list(SCORE_OF))].sort_values(ascending=False, kind="stable")
    return [*(name for name in SCORE_OF if name in size.index), *map(str, behaviours.index)]


@style()
def front_curve(curves: pd.DataFrame, arms: list[str], look: dict[str, dict[str, Any]]) -> Figure:
    """Judge (full) and truth (hollow, dashed) over the steps, in the look of the arm; bars are 95 %
    t intervals over runs.

    ``curves`` as `analysis.drift.estimate.learning_curves` gives them.
    """
    from matplotlib.lines import Line2D

    drawn, axes = single(FRONT_WIDTH, 3.6)
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
