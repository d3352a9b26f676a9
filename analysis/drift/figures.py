"""Figures of the bias report: one per question, intervals everywhere, one colour-blind-safe style.

Each function takes a table of `analysis.report.evidence.Evidence` and returns a matplotlib Figure.
Bars are 95 % t intervals over runs, as in the tables; where there is one run there is a line and no
bar.

The panels of the first screen have a line for each arm, so of many arms they show only some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.display.figures import (
    ALONE,
    DRAWN,
    blank,
    broken,
    curve,
    grid,
    line,
    lines,
    looks,
    marks_of,
    outside_legend,
    palette,
    panels_of,
    row_names,
    rows_of,
    scored,
    single,
    style,
)
from analysis.display.markup import TEXTS
from analysis.drift.estimate import SCORES, learning_curves
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
        axes.set_title(broken(f"{arm} ({_runs(part)})"))
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
    names, high = row_names(arms)
    figure, panels = grid(len(metrics), height=1.15 + 0.28 * high * len(arms))
    for metric, axes in zip(metrics, panels, strict=True):
        of_metric = shown[shown["metric"] == metric]
        for arm, row in of_metric.groupby("arm"):
            ends = row["diff"], row["diff_low"], row["diff_high"]
            marks = marks_of(look[arm])
            curve(axes, [heights[arm]], *ends, across=True, caps=3, linestyle="", **marks)
        axes.axvline(0, color="0.3", linewidth=1)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_yticks(list(heights.values()), names)
        axes.set_ylim(-0.6, len(arms) - 0.4)
        axes.set_title(metric)
        axes.set_xlabel(f"difference in shift ({of_metric['unit'].iloc[0]})")
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
        ends = (100 * part[name] for name in ("mean", "low", "high"))
        curve(lines, middle, *ends, caps=2, label=judge, **look)
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
"""Arms that the panels of the first screen have room for."""
PANEL = 3.8
"""Inches of each of them."""
COURSE = ("judge_score", "truth", "length")
"""What the first screen shows of them."""


@style()
def course(
    curves: pd.DataFrame,
    arms: Sequence[str],
    look: dict[str, dict[str, Any]],
    of: Sequence[str] = COURSE,
) -> Figure:
    """Scores and behaviours over the steps: a panel for each, a line for each arm, which is the
    mean over its runs; the band goes from the lowest run to the highest.

    ``curves``: of runs, as `analysis.drift.estimate.run_curves` gives them.
    """
    from matplotlib.ticker import MaxNLocator

    shown = curves[curves["arm"].isin(list(arms)) & curves["metric"].isin(of)]
    arm_of = dict(zip(shown["cell"], shown["arm"], strict=True))
    runs = learning_curves(shown.assign(arm=shown["cell"]), DRAWN)
    runs = runs.assign(arm=runs["arm"].map(arm_of)).dropna(subset="mean")
    metrics = [metric for metric in of if metric in set(runs["metric"])]
    figure = blank(PANEL * max(1, min(3, len(metrics))), 2.9 * max(1, rows_of(len(metrics))))
    panels = panels_of(figure, len(metrics))
    for metric, axes in zip(metrics, panels, strict=True):
        of_metric = runs[runs["metric"] == metric]
        for arm in arms:
            steps = of_metric[of_metric["arm"] == arm].groupby("step")["mean"]
            if not len(steps):
                continue
            mean, ends = steps.mean(), (steps.min(), steps.max())
            marks: Any = {"linewidth": 1.8, "markersize": 4.5, **look[arm]}
            curve(axes, mean.index, mean, *ends, band=True, label=arm, **marks)
        axes.set_title(f"{TEXTS['scores'].get(metric, metric)} ({UNITS.get(metric, unit(metric))})")
        axes.set_xlabel("training step")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    scores = [axes for metric, axes in zip(metrics, panels, strict=True) if metric in SCORED]
    for limit in zip(*(axes.get_ylim() for axes in scores), strict=True):
        for axes in scores:  # one scale, so that a score that outruns the truth is seen
            low, high = axes.get_ylim()
            axes.set_ylim(min(low, *limit), max(high, *limit))
    outside_legend(figure, panels)
    return figure


UNITS = dict.fromkeys(SCORES, "mean")
"""Of the scores."""
