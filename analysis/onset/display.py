"""Figures and tables of onsets, of judge score against truth, of peaks and of the best of n."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.display import markup
from analysis.display.figures import ALONE, looks, marks_of, single, style
from analysis.display.markup import DECIMALS
from analysis.onset.best_of_n import BestOfN
from analysis.onset.estimate import Line
from analysis.onset.overopt import place
from analysis.onset.threshold_grid import span
from analysis.records.runs import step_means

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.onset.estimate import Line
    from analysis.records.runs import Run


@style()
def onsets(lines: Sequence[Line]) -> Figure:
    """When did each run leave the truth? A row per run, its onset with the interval, and the early
    stop of an alarm."""
    from matplotlib.ticker import MaxNLocator

    look = looks(dict.fromkeys(each.arm for each in lines))
    figure, axes = single(ALONE, 0.9 + 0.24 * len(lines))
    for row, each in enumerate(lines):
        step, marks = each.onset.step, marks_of(look[each.arm])
        if math.isfinite(step.value):
            axes.plot(step.value, row, linestyle="", **marks)
            if math.isfinite(step.low) and math.isfinite(step.high):
                axes.hlines(row, step.low, step.high, color=marks["color"], linewidth=1.2)
        if each.alarm is not None:
            axes.plot(each.alarm, row, "|", color=marks["color"], markersize=11, alpha=0.7)
    axes.set_yticks(range(len(lines)), [f"{each.arm}, seed {each.seed}" for each in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(0, max(each.steps for each in lines) + 1)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("training step")
    return figure


def onset_table(lines: Iterable[Line]) -> pd.DataFrame:
    """When each run's gap began to rise, one row per run."""
    rows = []
    for line in lines:
        onset, step = line.onset, line.onset.step
        begun = f"{step.value:.0f} {markup.bracket(step.low, step.high)}"
        if not math.isfinite(step.value):  # where there is a p, a rise was looked for
            begun = "none seen" if onset.p == onset.p else markup.MISSING
        rows.append(
            {
                "arm": line.arm,
                "seed": line.seed,
                "gap, first": round(line.gap_first, DECIMALS),
                "gap, last": round(line.gap_last, DECIMALS),
                "rise explained": line.explained,
                "onset (step)": begun,
                "p": markup.p_value(onset.p),
                "early stop (step)": "" if line.alarm is None else str(line.alarm),
                "threshold grid (step)": span(line.grid),
                "grid, top tenth": span(line.own_grid),
                "note": "; ".join(filter(None, [onset.note, line.grid.note])),
            }
        )
    return pd.DataFrame(rows)


@style()
def frontier(runs: Sequence[Run]) -> Figure | None:
    """One path per run in the plane of judge score and truth; None where no run has both ends."""
    look = looks(sorted({run.arm for run in runs}))
    figure, axes = single(ALONE, 3.6)
    axes.axline((0.5, 0.5), slope=1, color="0.6", linewidth=1, zorder=0)
    labelled: set[str] = set()
    for run in runs:
        path = step_means(run, run.judge), step_means(run, run.truth)
        window = -(-len(path[0]) // 10)
        first, last = path[0][:window], path[0][-window:]
        if not np.isfinite(first).any() or not np.isfinite(last).any():
            continue
        marks = marks_of(look[run.arm])
        x, y = (np.convolve(means, np.ones(window) / window, "valid") for means in path)
        axes.plot(x, y, color=marks["color"], linewidth=1, alpha=0.7)
        if run.arm not in labelled:
            axes.plot([], [], label=run.arm, linewidth=1, **marks)
        labelled.add(run.arm)
        for end, face in ((slice(window), "white"), (slice(-window, None), marks["color"])):
            x, y = (np.nanmean(means[end]) for means in path)
            axes.plot(x, y, mfc=face, linestyle="", **marks)
    axes.set(xlabel="judge score (mean of a step)", ylabel="rule truth (mean of a step)")
    if not labelled:
        return None
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def best_of_n_table(lines: Sequence[BestOfN]) -> pd.DataFrame:
    """The truth of the best of 1, 2, 4, ... and of all answers, by judge."""
    most = {(line.arm, line.judge): line.n for line in lines}
    rows = [
        {
            "arm": line.arm,
            "chosen by": line.judge,
            "n": line.n,
            "KL (nats)": line.kl,
            "truth [95 %]": markup.with_interval(line.truth),
            "truth gained [95 %]": markup.signed(line.gain),
            "its score [95 %]": markup.with_interval(line.score),
            "prompts": line.truth.n,
        }
        for line in lines
        if line.n & (line.n - 1) == 0 or line.n == most[line.arm, line.judge]
    ]
    return pd.DataFrame(rows)


def peaks_table(fits: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The best over-optimisation fit of each run: where the truth peaks."""
    rows = [
        {
            "arm": fit["arm"],
            "seed": fit["seed"],
            "form": fit["best"]["form"],
            "peak (sqrt KL)": place(fit["best"]["peak"]),
            "low": place(fit["low"]),
            "high": place(fit["high"]),
            "largest sqrt KL": fit["d_max"],
            "note": fit["note"],
        }
        for fit in fits
    ]
    return pd.DataFrame(rows)
