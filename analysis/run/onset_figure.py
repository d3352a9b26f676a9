"""The figure of onsets: when each run left the truth, with intervals and early stops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.display.figures import ALONE, looks, marks_of, single, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.run.onset import Line


@style()
def onsets(lines: Sequence[Line]) -> Figure:
    """When did each run leave the truth? A row per run, its onset with the interval, and the early
    stop of an alarm."""
    from matplotlib.ticker import MaxNLocator

    look = looks(dict.fromkeys(each.arm for each in lines))
    figure, axes = single(ALONE, 0.9 + 0.24 * len(lines))
    for place, each in enumerate(lines):
        step, marks = each.onset.step, marks_of(look[each.arm])
        if math.isfinite(step.value):
            axes.plot(step.value, place, linestyle="", **marks)
            if math.isfinite(step.low) and math.isfinite(step.high):
                axes.hlines(place, step.low, step.high, color=marks["color"], linewidth=1.2)
        if each.alarm is not None:
            axes.plot(each.alarm, place, "|", color=marks["color"], markersize=11, alpha=0.7)
    axes.set_yticks(range(len(lines)), [f"{each.arm}, seed {each.seed}" for each in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(0, max(each.steps for each in lines) + 1)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("training step")
    return figure
