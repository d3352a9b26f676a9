"""The figure of judge score against truth: one path per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.display.figures import ALONE, looks, marks_of, single, style
from analysis.records.runs import step_means

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.records.runs import Run


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
