"""The one style of all figures: how arms look, panels, lines with intervals, legends."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.statistics.estimate import ENDS
from study.screen import visible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from numpy.typing import ArrayLike

    from analysis.statistics.estimate import Estimate


WIDTH = 10.0
"""Inches; the report shows figures at most this wide."""


ALONE = 5.0
"""Inches of a figure of one panel: on a phone it is not much smaller."""


LEGEND = 150
"""Letters that a line of a legend holds at that width, about."""


NAME, TITLE = 24, 40
"""Letters of a line of a name beside a row of a panel, which needs its place too, and above one."""


BESIDE = 0.6
"""Share of the way to the next step over which the curves of a panel stand beside each other."""


DASHES = ("-", "--", "-.", ":")


MARKERS = ("o", "s", "^", "D", "v", "P", "X")


_ARMS: ContextVar[tuple[str, ...]] = ContextVar("arms", default=())
"""The arms of the report that is being written, in its order."""


@contextmanager
def style() -> Generator[None]:
    """The one style of all figures, put back as it was on leaving."""
    import matplotlib as mpl
    import seaborn as sns

    ticks = {"axes.titlesize": 11, "axes.labelsize": 10, "legend.fontsize": 9.5}
    sizes = {"xtick.labelsize": 9, "ytick.labelsize": 9, "legend.frameon": False}
    rest = {"axes.titlelocation": "left", "axes.formatter.useoffset": False, **ticks, **sizes}
    theme: Any = {**sns.axes_style("whitegrid"), **sns.plotting_context("notebook"), **rest}
    with mpl.rc_context(theme):
        yield


def marks_of(look: dict[str, Any]) -> dict[str, Any]:
    """Colour and marker of an arm, for points; a bar of errors has no marker in a legend."""
    return {"color": look["color"], "marker": look["marker"], "markersize": 6}


def scored(look: dict[str, Any], metric: str) -> dict[str, Any]:
    """How an arm's curve of a score looks: the judge's full, the truth's hollow and dashed."""
    hollow = {"linestyle": "--", "markerfacecolor": "white"} if metric == "truth" else {}
    return look | {"linestyle": "-"} | hollow


@contextmanager
def looks_of(arms: Sequence[str]) -> Generator[None]:
    """Within the block these arms look in every figure as they look beside each other, whichever
    of them it shows."""
    token = _ARMS.set(tuple(arms))
    try:
        yield
    finally:
        _ARMS.reset(token)


def looks(arms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, line and marker of each arm, the same in every figure of a report."""
    colours, report_arms = palette(10), _ARMS.get()
    shown = set(arms)
    order = [*report_arms, *sorted(shown.difference(report_arms))]
    return {
        arm: {
            "color": colours[k % 10],
            "linestyle": DASHES[k // 10 % len(DASHES)],
            "marker": MARKERS[k % len(MARKERS)],
        }
        for k, arm in enumerate(order)
        if arm in shown
    }


def bar(value: float, low: float, high: float) -> np.ndarray | None:
    """An interval as `errorbar` takes it, (2, 1); None where an end of it is not known."""
    has_interval = math.isfinite(low) and math.isfinite(high)
    return np.abs([[low - value], [high - value]]) if has_interval else None


def palette(count: int, name: str = "colorblind") -> Any:
    """So many colours that colour-blind readers can tell apart."""
    import seaborn as sns

    return sns.color_palette(name, count)


def blank(width: float, height: float) -> Figure:
    """A figure without a panel yet, in inches; what is drawn in it finds its place."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def single(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of one panel, in inches."""
    figure = blank(width, height)
    return figure, figure.subplots()


def grid(panels: int, height: float = 3.0, share: bool = False) -> tuple[Figure, list[Axes]]:
    """Up to three panels in a row, at report width; places left over are taken away."""
    rows = max(1, rows_of(panels))
    wide = WIDTH if panels > 1 else ALONE
    figure = blank(wide, height * rows + 0.4)
    return figure, panels_of(figure, panels, share)


def rows_of(panels: int) -> int:
    """Rows that so many panels take at report width."""
    return math.ceil(panels / _columns(panels))


def panels_of(figure: Figure | SubFigure, panels: int, share: bool = False) -> list[Axes]:
    """Panels in rows, places left over taken away."""
    columns = _columns(panels)
    shape = max(1, rows_of(panels)), columns
    axes = figure.subplots(*shape, sharex=share, sharey=share, squeeze=False).ravel()
    for extra in axes[panels:]:
        extra.remove()
    used = list(axes[:panels])
    for axis in used if share else ():  # each is a picture of its own on a page
        axis.tick_params(labelbottom=True, labelleft=True)
    return used


def _columns(panels: int) -> int:
    return 2 if panels == 4 else min(3, max(1, panels))


def broken(name: str, letters: int = TITLE) -> str:
    """A name as `plain` has it, over as many lines as it takes: broken at blanks, and where a word
    is longer than a line after its points and ``=``, or wherever the line ends."""
    lines = [""]
    piece = re.compile(rf"[^.=]{{0,{letters - 1}}}[.=]|[^.=]{{1,{letters}}}")
    for word in plain(name).split(" "):
        pieces = piece.findall(word) if len(word) > letters else [word]
        for place, part in enumerate(pieces):
            longer = f"{lines[-1]} {part}" if lines[-1] and not place else lines[-1] + part
            if len(longer) <= letters or not lines[-1]:
                lines[-1] = longer
            else:
                lines.append(part)
    return "\n".join(lines)


def row_names(names: Iterable[str]) -> tuple[list[str], float]:
    """The names of a panel's rows as `broken` has them, and how many times as high as with one
    line a row is then."""
    labels = [broken(name, NAME) for name in names]
    return labels, (2 + max((label.count("\n") for label in labels), default=0)) / 2


def lines(
    axes: Axes,
    curves: pd.DataFrame,
    part: pd.DataFrame,
    label: Any = lambda arm, _: arm,
    ends: tuple[float, float] = ENDS,
) -> None:
    """A line with its intervals for every arm of the curves, of what the part of them holds."""
    look = looks(list(curves["arm"].unique()))
    for k, arm in enumerate(look):
        of_arm = part[part["arm"] == arm]
        line(axes, of_arm, label(arm, of_arm), ends, (k, len(look)), **look[arm])


def line(
    axes: Axes,
    part: pd.DataFrame,
    label: str,
    ends: tuple[float, float] = ENDS,
    place: tuple[int, int] = (0, 1),
    **look: Any,
) -> None:
    """A curve with a bar for each interval, cut at the ends of what can be, or at the mark where
    that lies beyond them.

    Args:
        place: which of how many curves it is: they stand beside each other at each step, so that
            no interval hides another.
    """
    from matplotlib.ticker import MaxNLocator

    part = part[part["mean"].notna()].sort_values("step")
    if part.empty:
        return
    steps = part["step"].to_numpy(dtype=float)
    apart = float(np.diff(steps).min()) if len(steps) > 1 else 1.0
    at = steps + BESIDE * apart * ((place[0] + 0.5) / place[1] - 0.5)
    low = part["low"].clip(lower=ends[0]).clip(upper=part["mean"])
    high = part["high"].clip(upper=ends[1]).clip(lower=part["mean"])
    has_interval = part["low"].notna().to_numpy()
    marks: Any = {"marker": "o", "markersize": 4, "linewidth": 1.3, **look}
    ends = low.where(has_interval), high.where(has_interval)
    curve(axes, at, part["mean"], *ends, label=label, **marks)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def curve(
    axes: Axes,
    at: ArrayLike,
    values: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    across: bool = False,
    band: bool = False,
    caps: float = 0.0,
    **look: Any,
) -> None:
    """Values with their intervals, a bar for each or one band; where an end is not known there is
    none. Seaborn draws them: of three observations at a place, the value and both ends, it shows
    the median and the range.

    Args:
        at: places, (n,), each once.
        values, low, high: of each place, (n,).
        across: whether values lie across and places upwards, as in a forest.
        caps: points of the ends of a bar.
        look: of the line and its marks; ``linestyle=""`` for marks alone.
    """
    import seaborn as sns

    values, low, high = (np.asarray(each, dtype=float) for each in (values, low, high))
    has_interval = np.isfinite(low) & np.isfinite(high)
    ends = (np.where(has_interval, end, np.nan) for end in (low, high))
    three = np.concatenate([values, *ends])
    places = np.tile(np.asarray(at, dtype=float), 3)
    shown = np.isfinite(three) & np.tile(np.isfinite(values), 3)
    x, y = (three, places) if across else (places, three)
    bars = {"elinewidth": 1, "capsize": caps}
    sns.lineplot(
        x=x[shown],
        y=y[shown],
        orient="y" if across else "x",
        estimator="median",
        errorbar=("pi", 100) if has_interval.any() else None,
        err_style="band" if band else "bars",
        err_kws={"alpha": 0.15, "linewidth": 0} if band else bars,
        ax=axes,
        legend=False,
        **{"markeredgecolor": look["color"], "markeredgewidth": 1.0} | look,
    )


def outside_legend(
    figure: Figure | SubFigure, panels: Sequence[Axes], colour: str | None = None
) -> None:
    """One legend above all panels, each label once: it can never cover a curve. With a colour it
    is for what all arms have in common, such as dashes."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        columns = max(1, min(4, len(entries), LEGEND // (6 + max(map(len, entries)))))
        legend = figure.legend(
            list(entries.values()), list(entries), loc="outside upper center", ncols=columns
        )
        if colour:
            for handle in legend.get_lines():
                handle.set_color(colour)


def plain(name: str) -> str:
    """A name of others as a figure's text, which takes $ for a formula."""
    return visible(name).replace("$", r"\$")


DRAWN = 10
"""Points of a curve: as many as leave room for the intervals of several arms beside each other."""


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
