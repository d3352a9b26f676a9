"""A matplotlib figure as inline SVG: a picture for each panel, and its legend beside them.

Panels stand in a row where the page is wide and below each other where it is narrow. Text stays
text, so it can be searched, and names that others gave are escaped by matplotlib.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

PIXELS = 96
"""Of a page to an inch."""
MARGIN = 0.04
"""Inches around a panel."""
BAR = "<colorbar>"
"""What matplotlib labels the axes of a colour scale, which belongs to its panel."""
_PROLOGUE = re.compile(r"\A.*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_STYLE = re.compile(r"<style[^>]*>.*?</style>", re.DOTALL)
_GROUP = re.compile(r'<g id="[^"]*"')
_SIZE = re.compile(r'\A<svg [^>]*?viewBox="([^"]*)"[^>]*>')
_DRAWN = re.compile(r'\b(?:d|x|y|points|transform)="[^"]*"')
_DIGITS = re.compile(r"(\.[0-9]{2})[0-9]+")
_PAINT = re.compile(r"(fill|stroke): #([0-9a-f]{2})\2\2(?![0-9a-f])")
_PAINTED = re.compile(r"var\(--[a-z]+, (#[0-9a-f]{6})\)")
_BREAKS = re.compile(r"\s*\n\s*")
_ENTRY = re.compile(r'<span>(<svg class="swatch"[^>]*>.*?</svg>)([^<]*)</span>', re.DOTALL)
_PANEL = re.compile(
    r'<div class="panel"[^>]*>'
    r'(<svg viewBox="[0-9.]+ [0-9.]+ ([0-9.]+) ([0-9.]+)".*?</svg>)\s*</div>',
    re.DOTALL,
)
GREYS = {0x60: "text", 0xB0: "soft", 0xF8: "line", 0x100: "back"}
"""Brightness below which a grey is that colour of the page, which may be dark."""
ROW, LINE, LETTER = 740.0, 20.0, 7.0
"""Points of a row of panels in a file, of a line of its legend, and of a letter of that."""


@dataclass(frozen=True)
class Panel:
    """One picture and its width on the page, in pixels."""

    svg: Markup
    width: int
    themed: bool = True
    """Whether its greys are those of the page; a scale of colours has its own."""


@dataclass(frozen=True)
class Entry:
    """One line of a legend: what it looks like, and what it is called."""

    swatch: Markup
    label: str


def legend(figure: Figure) -> list[Entry]:
    """The entries of the legends that stand outside the panels, each label once."""
    entries: dict[str, Entry] = {}
    for part in (figure, *figure.subfigs):
        for each in part.legends:
            for handle, text in zip(each.legend_handles, each.get_texts(), strict=True):
                label = text.get_text()
                entries.setdefault(label, Entry(_swatch(handle), label))
    return list(entries.values())


def panels(figure: Figure, label: str) -> list[Panel]:
    """Every panel as a picture of its own; those of one size get windows of one size.

    A figure with a colour scale is one picture. ``label`` is what each picture is called for those
    who cannot see it. The figure is used up: its legends and its notes are gone.
    """
    shown = [axes for axes in figure.axes if axes.get_visible()]
    for part in (figure, *figure.subfigs):
        for outside in list(part.legends):
            outside.remove()
        for text in part.texts:
            text.set(visible=False, in_layout=False)
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
    figure.set_layout_engine(None)  # with any other, matplotlib draws each panel twice
    if any(axes.get_label() == BAR for axes in shown) or not shown:
        return [_panel(figure, None, label, themed=False)]
    pictures = []
    for axes, window in _windows(figure, shown):
        for other in shown:
            other.set_visible(other is axes)
        title = " ".join((axes.get_title("left") or axes.get_title()).split())
        name = ", ".join(filter(None, [title, label]))
        pictures.append(_panel(figure, window, name))
    for axes in shown:
        axes.set_visible(True)
    return pictures


def _windows(figure: Figure, shown: Sequence[Axes]) -> Iterator[tuple[Axes, Bbox]]:
    """Each panel with the rectangle around it, in inches: as much to each side as the fullest
    panel of its size takes."""
    from matplotlib.transforms import Bbox

    scale = figure.dpi_scale_trans.inverted()
    boxes = {}
    sides: dict[tuple[float, float], list[Any]] = defaultdict(list)
    for axes in shown:
        inner = axes.get_window_extent().transformed(scale)
        tight = axes.get_tightbbox()
        outer = inner if tight is None else Bbox.union([inner, tight.transformed(scale)])
        size = round(inner.width, 2), round(inner.height, 2)
        boxes[axes] = inner, size
        sides[size].append(
            (inner.x0 - outer.x0, inner.y0 - outer.y0, outer.x1 - inner.x1, outer.y1 - inner.y1)
        )
    for axes, (inner, size) in boxes.items():
        left, below, right, above = (max(side) + MARGIN for side in zip(*sides[size], strict=True))
        yield (
            axes,
            Bbox.from_extents(
                inner.x0 - left, inner.y0 - below, inner.x1 + right, inner.y1 + above
            ),
        )


def _painted(paint: re.Match[str]) -> str:
    """A grey as the page's own colour of that brightness, or as itself where there is no page."""
    kind, level = paint[1], paint[2]
    name = next(name for most, name in GREYS.items() if int(level, 16) < most)
    return f"{kind}: var(--{name}, #{level * 3})"


def _panel(figure: Figure, window: Bbox | None, label: str, themed: bool = True) -> Panel:
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": label, "path.simplify": True}):
        figure.savefig(buffer, format="svg", bbox_inches=window or "tight", metadata={"Date": None})
    text = _PROLOGUE.sub("", buffer.getvalue())
    for useless in (_METADATA, _COMMENT, _STYLE):  # a formula stands in a comment as it was given
        text = useless.sub("", text)
    text = _GROUP.sub("<g", text)
    text = _DRAWN.sub(lambda match: _DIGITS.sub(r"\1", match[0]), text)
    text = _BREAKS.sub("\n", text).strip()
    match = _SIZE.match(text)
    assert match is not None
    width = float(match[1].split()[2])
    start = Markup('<svg viewBox="{}" role="img" aria-label="{}">').format(match[1], label)
    drawing = text[match.end() :]
    if themed:
        drawing = _PAINT.sub(_painted, drawing)
    return Panel(start + Markup(drawing), round(width * PIXELS / 72), themed)


def _swatch(handle: Any) -> Markup:
    """A small picture of a line, marker or area of a legend."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D

    parts = []
    if isinstance(handle, Line2D):
        colour = to_hex(handle.get_color())
        if handle.get_linestyle() not in ("None", "", " "):
            dashes = {"-": "", "--": "5 3", "-.": "6 2 1.5 2", ":": "1.5 2"}
            style = dashes.get(str(handle.get_linestyle()), "4 2")
            line = '<path d="M0 6H28" style="stroke: {}" stroke-width="2" stroke-dasharray="{}"/>'
            parts.append(Markup(line).format(_paint(colour), style))
        if handle.get_marker() not in ("None", "", " ", None):
            parts.append(_marker(handle, colour))
    else:
        faces = handle.get_facecolor()
        edges = handle.get_edgecolor() if not len(faces) else faces
        colour = to_hex(edges if isinstance(edges, tuple) else edges[0])
        parts.append(Markup('<rect x="4" y="1" width="20" height="10" fill="{}"/>').format(colour))
    return Markup('<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true">{}</svg>').format(
        Markup("").join(parts)
    )


def _paint(colour: str) -> str:
    """A colour of a swatch; a grey is that of the page."""
    return _PAINT.sub(_painted, f"fill: {colour}").removeprefix("fill: ")


def _marker(handle: Any, colour: str) -> Markup:
    """The marker of a line, in the middle of its swatch."""
    from matplotlib.markers import MarkerStyle

    style = MarkerStyle(handle.get_marker())
    path = style.get_path().transformed(style.get_transform())
    rings = [
        "M"
        + "L".join(f"{14 + 8 * x:.1f} {6 - 8 * y:.1f}" for x, y in np.asarray(ring, dtype=float))
        for ring in path.to_polygons(closed_only=False)
    ]
    empty = str(handle.get_markerfacecolor()) in ("none", "white")
    drawn = Markup('<path d="{}" style="fill: {}; stroke: {}"/>')
    paints = "var(--back, #ffffff)" if empty else _paint(colour), _paint(colour)
    return drawn.format("".join(rings), *paints)


def alone(figure: str) -> str:
    """A figure of a page as one SVG file: its legend, and below it its panels in rows; empty where
    it has no panel. What was escaped in the page stays so."""
    drawn = []
    x = y = width = 0.0
    for swatch, label in _ENTRY.findall(figure):
        wide = 44 + LETTER * len(unescape(label))
        if x and x + wide > ROW:
            x, y = 0.0, y + LINE
        drawn.append(_nested(swatch, x, y + 2, 28, 12))
        text = '<text x="{}" y="{}" font-size="12" font-family="sans-serif">{}</text>'
        drawn.append(text.format(round(x + 33), round(y + 12), label))
        x, width = x + wide, max(width, x + wide)
    x, y, high = 0.0, (y + LINE if drawn else 0.0), 0.0
    panels = _PANEL.findall(figure)
    for panel, *size in panels:
        wide, tall = map(float, size)
        if x and x + wide > ROW:
            x, y, high = 0.0, y + high, 0.0
        drawn.append(_nested(panel, x, y, wide, tall))
        x, high, width = x + wide, max(high, tall), max(width, x + wide)
    if not panels:
        return ""
    start = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:.0f} {y + high:.0f}"><rect width="100%" height="100%" fill="#fff"/>'
    )
    return _PAINTED.sub(r"\1", f"{start}{''.join(drawn)}</svg>")


def _nested(drawing: str, x: float, y: float, width: float, height: float) -> str:
    place = f'<svg x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
    return drawing.replace("<svg ", place, 1)
