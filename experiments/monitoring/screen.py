"""The study on a terminal: fitted to its width and height, what matters most on top."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.monitoring.lines import (
    UNKNOWN,
    accuracies,
    bar,
    cut,
    duration,
    number,
    scale,
    share,
    sparkline,
    state,
    summary,
)
from experiments.monitoring.read import Alarm, View
from study.screen import visible

if TYPE_CHECKING:
    from rich.console import Group

COLOURS = {
    "running": "green",
    "done": "dim",
    "failed": "bold red",
    "killed": "bold red",
    "stalled": "bold yellow",
}
SPAN = 0.2
"""A sparkline is at least so high, in score units."""
BAR, SPARK = 8, 8
NAME = (14, 34)
"""Fewest and most characters of the column that names the cell."""


@dataclass(frozen=True)
class Column:
    """A column: its header, what it says of a cell, and how soon a narrow terminal drops it."""

    header: str
    text: Callable[[View], str]
    rank: int
    """Columns of the highest ranks go first."""
    right: bool = True
    most: int = 40
    """Characters that it may take."""


def _step(view: View) -> str:
    return f"{bar(view.step, view.steps, BAR)} {view.step}/{view.steps or '?'}"


def _spark(metric: str) -> Callable[[View], str]:
    def text(view: View) -> str:
        values = [value for _, value in view.series(metric)]
        together = values
        if metric != "bias/judge_minus_truth":  # truth and judge on one scale
            pair = ("truth/mean", "judge/mean")
            together = [value for name in pair for _, value in view.series(name)]
        low, high = scale(together, SPAN)
        return sparkline(values, SPARK, low, high) if values else ""

    return text


COLUMNS = (
    Column("state", state, 0, right=False),
    Column("phase", lambda view: (view.phase or "") if view.state == "running" else "", 8, right=False),
    Column("step", _step, 1),
    Column("truth", lambda view: number(view.truth), 2),
    Column("", _spark("truth/mean"), 10, right=False),
    Column("judge", lambda view: number(view.judge_mean), 3),
    Column("", _spark("judge/mean"), 11, right=False),
    Column("gap", lambda view: number(view.gap, "+.2f"), 4),
    Column("", _spark("bias/judge_minus_truth"), 7, right=False),
    Column("held-out accuracy", accuracies, 9, right=False, most=48),
    Column("missing", lambda view: share(view.unscored), 6),
    Column("dead", lambda view: share(view.zero_std), 6),
    Column("tok/s", lambda view: number(view.tokens_per_s, ".0f"), 12),
    Column("ETA", lambda view: duration(view.eta_s), 5),
)


def screen(
    study: str,
    views: Sequence[View],
    totals: dict[str, Any],
    notes: Sequence[str],
    width: int,
    height: int | None,
) -> Group:
    """The whole screen.

    Args:
        notes: sentences under the table: what could not be read, what was restarted.
        width: characters of a line.
        height: lines; None is as many as are needed.
    """
    from rich.console import Group
    from rich.text import Text

    def text(words: str, style: str = "") -> Text:
        return Text(cut(visible(words).replace("\n", " "), width), style, no_wrap=True)

    head = [text(f"{study}  {summary(totals)}", "bold")]
    raised = sorted((alarm for view in views for alarm in view.alarms), key=_urgency)
    room = None if height is None else max(0, height - len(head) - 2)
    for_alarms = None if room is None else max(2, room // 3)
    foot = _alarm_lines(raised, width, for_alarms, text)
    for_notes = None if room is None else max(1, room // 6)
    foot += _shortened([text(note, "yellow") for note in notes], for_notes, text, "more like this")
    for_rows = None if room is None else max(1, room - len(foot))
    shown = sorted(views, key=_interest)
    left = Counter[str]()
    if for_rows is not None and len(shown) > for_rows:
        left = Counter(state(view) for view in shown[max(1, for_rows - 1) :])
        shown = shown[: max(1, for_rows - 1)]
    body = _table(shown, views, width)
    if left:
        counts = ", ".join(f"{count} {name}" for name, count in left.items())
        body.append(text(f"and {left.total()} more cells: {counts}", "dim"))
    return Group(*head, *body, *foot)


def _urgency(alarm: Alarm) -> int:
    kinds = ("stalled", "failed", "killed", "starved judge", "no signal", "gap onset")
    return kinds.index(alarm.kind) if alarm.kind in kinds else len(kinds)


def _interest(view: View) -> tuple[bool, int, str]:
    order = ("stalled", "failed", "killed", "running", "new", "done")
    return not view.alarms, order.index(state(view)), view.cell


def _alarm_lines(
    raised: Sequence[Alarm], width: int, room: int | None, text: Callable[..., Any]
) -> list[Any]:
    """Each alarm with what to type below it; of more than there is room for, how many."""
    if not raised:
        return []
    told = raised if room is None else raised[: max(1, (room - 1) // 2)]
    lines = []
    for alarm in told:
        since = f" Since {alarm.since}." if alarm.since else ""
        lines.append(text(f"! {alarm.cell}  {alarm.kind}: {alarm.seen}{since}", "bold yellow"))
        lines.append(text(f"    {alarm.type}", "cyan"))
    if len(told) < len(raised):
        kinds = Counter(alarm.kind for alarm in raised[len(told) :])
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        lines.append(text(f"! and {len(raised) - len(told)} more: {counts}", "bold yellow"))
    return lines


def _shortened(
    lines: list[Any], room: int | None, text: Callable[..., Any], what: str
) -> list[Any]:
    if room is None or len(lines) <= room:
        return lines
    return [*lines[: room - 1], text(f"and {len(lines) - room + 1} {what}", "yellow")]


def names_of(views: Sequence[View]) -> dict[str, str]:
    """Cell -> what it is called in the table: arm and seed where these are its alone."""
    short = {view.cell: f"{view.arm} s{view.seed}" for view in views}
    counts = Counter(short.values())
    return {cell: cell if counts[name] > 1 else name for cell, name in short.items()}


def _table(shown: Sequence[View], views: Sequence[View], width: int) -> list[Any]:
    """Header and rows. Columns that say nothing of any cell are left out, and then those of the
    highest rank until the rest fits."""
    from rich.text import Text

    names = {cell: visible(name) for cell, name in names_of(views).items()}
    columns = [(column, [visible(column.text(view)) for view in shown]) for column in COLUMNS]
    columns = [each for each in columns if any(text not in ("", UNKNOWN) for text in each[1])]
    longest = max([NAME[0], *(len(names[view.cell]) for view in shown)])
    sizes = [
        min(column.most, max(len(column.header), *map(len, texts))) for column, texts in columns
    ]
    while columns and sum(sizes) + 2 * len(sizes) + min(longest, NAME[0]) + 2 > width:
        worst = max(range(len(columns)), key=lambda place: columns[place][0].rank)
        del columns[worst], sizes[worst]
    free = width - sum(sizes) - 2 * len(sizes) - 2
    first = max(1, min(longest, NAME[1], free))

    def cells(texts: Sequence[str]) -> list[str]:
        return [
            cut(text, size).rjust(size) if column.right else cut(text, size).ljust(size)
            for text, size, (column, _) in zip(texts, sizes, columns, strict=True)
        ]

    head = "  ".join(["  " + "cell".ljust(first), *cells([column.header for column, _ in columns])])
    lines = [Text(head[:width], "dim", no_wrap=True)]
    for place, view in enumerate(shown):
        mark = "! " if view.alarms else "  "
        parts = [mark + cut(names[view.cell], first).ljust(first)]
        parts += cells([texts[place] for _, texts in columns])
        line = Text(no_wrap=True)
        for (column, _), part in zip([(None, None), *columns], parts, strict=True):
            style = COLOURS.get(state(view), "") if column and column.header == "state" else ""
            line.append(part, style or ("dim" if view.state == "done" else ""))
            line.append("  ")
        line.rstrip()
        lines.append(line)
    return lines
