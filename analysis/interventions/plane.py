"""A figure of estimates in two directions, such as what an intervention did to a behaviour and to
the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.display.figures import (
    ALONE,
    bar,
    looks,
    marks_of,
    outside_legend,
    single,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.statistics.estimate import Estimate


@style()
def plane(points: Sequence[tuple[str, str, Estimate, Estimate]], **texts: str) -> Figure | None:
    """Marks with their intervals in two directions, and lines that cross at 0; None where no point
    has both values. Long intervals leave the panel, instead of pressing all marks together.

    Args:
        points: arm, in whose look it is drawn; label; value across; value upwards.
        texts: of the axes.
    """
    with_values = [each for each in points if math.isfinite(each[2].value + each[3].value)]
    if not with_values:
        return None
    look = looks(dict.fromkeys(arm for arm, _, _, _ in points))
    figure, axes = single(ALONE, 3.8)
    axes.axhline(0, color="0.3", linewidth=1)
    axes.axvline(0, color="0.3", linewidth=1)
    for arm, label, x, y in with_values:
        ends = bar(y.value, y.low, y.high), bar(x.value, x.low, x.high)
        marks = marks_of(look[arm])
        axes.errorbar(x.value, y.value, *ends, elinewidth=0.9, linestyle="", **marks)
        axes.plot([], [], linestyle="", label=label, **marks)  # a bar has no marker in a legend
    axes.set(**texts)
    for values, limit in (
        ([x.value for _, _, x, _ in with_values], axes.set_xlim),
        ([y.value for _, _, _, y in with_values], axes.set_ylim),
    ):
        least, most = min(0.0, *values), max(0.0, *values)
        room = 0.4 * (most - least or 1.0)
        limit(least - room, most + room)
    outside_legend(figure, [axes])
    return figure
