"""A study and its cells in words: lines for pipes, and a terminal's screen, fitted to its size."""

from __future__ import annotations

import itertools
import math
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from experiments.monitor.read import View, clock
from study.cell.folder import STATES
from study.screen import UNKNOWN, duration, plural, visible

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.text import Text


BARS = "▁▂▃▄▅▆▇█"


def line(view: View, now: float) -> str:
    """One plain line that says what the cell is at."""
    words = [clock(now), view.cell, state(view)]
    if view.phase and view.state == "running":
        words.append(view.phase)
    words.append(f"step {view.step}/{view.steps or '?'}")
    if view.throttled:
        words.append(view.throttled)
    for name, text in (
        ("truth", number(view.truth)),
        ("judge", number(view.judge_mean)),
        ("gap", number(view.gap, "+z.2f")),
        ("unscored", share(view.unscored)),
        ("dead", share(view.zero_std)),
        ("tokens/s", number(view.tokens_per_s, ".0f")),
        ("eta", duration(view.eta_s)),
        ("accuracy", accuracies(view)),
    ):
        if text != UNKNOWN:
            words.append(f"{name} {text}")
    return "  ".join(words)


def state(view: View) -> str:
    """The state of a cell, where one that stalled is not called running."""
    return "stalled" if view.stalled else view.state


def accuracies(view: View) -> str:
    """Each domain's accuracy at the last held-out evaluation."""
    by_domain = {name: each["accuracy"] for name, each in view.domains.items()}
    texts = [
        f"{name} {value:.2f}".replace(" 0.", " .")
        for name, value in by_domain.items()
        if value is not None
    ]
    return " ".join(texts) or UNKNOWN


def throttled(views: Sequence[View]) -> list[str]:
    """What endpoints hold back now, a line for each: cells of one judge share its endpoint."""
    return list({view.judge: view.throttled for view in views if view.throttled}.values())


def summary(totals: dict[str, Any]) -> str:
    """The study in one line."""
    counts = [f"{totals[name]} {name}" for name in STATES if totals[name]]
    if totals["stalled"]:
        counts.append(f"{totals['stalled']} of the running stalled")
    words = [f"{plural(totals['cells'], 'cell')}: {', '.join(counts) or 'none yet'}"]
    if totals["start"] is not None:
        words.append(f"{totals['start']}, {duration(totals['start_s'])}")
    if totals["steps"]:
        words.append(f"step {totals['step']}/{totals['steps']}")
    if totals["tokens_per_s"] is not None:
        words.append(f"{totals['tokens_per_s']:.0f} tokens/s")
    if totals["calls"] is not None:
        words.append(f"{totals['calls']:.0f} judge calls")
    if totals["unscored"] is not None:
        words.append(f"missing {totals['unscored']:.1%}")
    if totals["usd"] is not None:
        words.append(f"${totals['usd']:.2f}")
    if totals["eta_s"] is not None:
        words.append(f"eta {duration(totals['eta_s'])}")
    if totals["risen"]:
        words.append(f"gap risen in {plural(totals['risen'], 'cell')}")
    if totals["alarms"]:
        words.append(plural(totals["alarms"], "alarm"))
    return "  ".join(words)


def number(value: float | None, form: str = ".2f") -> str:
    """A number in ``form``; a dash where there is none."""
    return UNKNOWN if value is None else format(value, form)


def share(value: float | None) -> str:
    """A share in whole percent; a dash where there is none."""
    return UNKNOWN if value is None else f"{value:.0%}"


def dollars(view: View) -> str:
    """What the acting judge of a cell has cost; nothing where it costs nothing."""
    usd = view.sums.get("cost/usd")
    return f"${usd:.2f}" if usd else UNKNOWN


def sparkline(values: Sequence[float], width: int, low: float, high: float) -> str:
    """The values in ``width`` characters at most, means where there are more values than that.

    Args:
        low: what the lowest bar stands for.
        high: what the highest one stands for, more than ``low``.
    """
    if len(values) > width:
        ends = [place * len(values) // width for place in range(width + 1)]
        parts = [values[a:b] for a, b in pairwise(ends)]
        values = [math.fsum(part) / len(part) for part in parts]
    shares = [(value - low) / (high - low) for value in values]
    return "".join(BARS[round(min(max(part, 0.0), 1.0) * (len(BARS) - 1))] for part in shares)


def scale(values: Sequence[float], least: float) -> tuple[float, float]:
    """Lowest and highest value, ``least`` apart at the least."""
    if not values:
        return 0.0, least
    low, high = min(values), max(values)
    slack = max(0.0, least - (high - low)) / 2
    return low - slack, high + slack


def bar(step: int, of: int | None, width: int) -> str:
    """A bar of steps."""
    full = round(width * min(step / of, 1.0)) if of else 0
    return "━" * full + "╌" * (width - full)


def cut(text: str, width: int) -> str:
    """``text`` in ``width`` characters at most."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


COLOURS = {
    "running": "green",
    "done": "dim",
    "failed": "bold red",
    "killed": "bold red",
    "stalled": "bold yellow",
}
SPAN = 0.2
"""A sparkline is at least so high, in score units."""
BAR, SPARK, NAME, WIDEST = 6, 8, 18, 48
"""Characters of a bar, of a sparkline, of a cell's name where space is short, and of a column."""
LINES = 3
"""Most lines of an alarm."""


def draws(console: Console) -> bool:
    """Whether a person sees the output at once, on something that can move its cursor and draw."""
    return sys.stdout.isatty() and not console.is_dumb_terminal and console.encoding == "utf-8"


@dataclass(frozen=True)
class Column:
    """A column: its header, and what it says of a cell."""

    header: str
    text: Callable[[View], str]
    rank: int
    """Where not all fit, the lowest ranks are taken first."""
    right: bool = True


def _step(view: View) -> str:
    of = str(view.steps or "?")
    return f"{bar(view.step, view.steps, BAR)} {view.step:>{len(of)}}/{of}"


def _phase(view: View) -> str:
    return (view.phase or "") if view.state == "running" else ""


def _spark(metric: str) -> Callable[[View], str]:
    def text(view: View) -> str:
        values = [value for _, value in view.series.get(metric, [])]
        together = values
        if metric != "bias/judge_minus_truth":  # truth and judge on one scale
            pair = ("truth/mean", "judge/mean")
            together = [value for name in pair for _, value in view.series.get(name, [])]
        low, high = scale(together, SPAN)
        return sparkline(values, SPARK, low, high) if values else ""

    return text


COLUMNS = (
    Column("state", state, 0, right=False),
    Column("phase", _phase, 9, right=False),
    Column("step", _step, 1),
    Column("truth", lambda view: number(view.truth), 2),
    Column("", _spark("truth/mean"), 10, right=False),
    Column("judge", lambda view: number(view.judge_mean), 3),
    Column("", _spark("judge/mean"), 11, right=False),
    Column("gap", lambda view: number(view.gap, "+z.2f"), 4),
    Column("", _spark("bias/judge_minus_truth"), 8, right=False),
    Column("held-out accuracy", accuracies, 7, right=False),
    Column("miss", lambda view: share(view.unscored), 6),
    Column("dead", lambda view: share(view.zero_std), 6),
    Column("tok/s", lambda view: number(view.tokens_per_s, ".0f"), 12),
    Column("cost", dollars, 7),
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

    names = names_of(views)
    head = _wrapped(f"{study}  {summary(totals)}", width, "bold")
    room = None if height is None else max(3, height - len(head) - 2)
    spare = None if room is None else max(LINES + 2, room // 3, room - len(views) - len(notes))
    foot = _alarm_lines(views, names, width, spare)
    note_lines = [line for note in notes for line in _wrapped(note, width, "yellow", LINES)]
    if room is not None and len(note_lines) > (most := max(2, room // 6)):
        more = f"and {len(note_lines) - most + 1} more lines like these: see once=true"
        note_lines = [*note_lines[: most - 1], *_wrapped(more, width, "yellow", 1)]
    rows_shown, hidden = sorted(views, key=_interest), []
    if room is not None and len(rows_shown) > (rows := max(2, room - len(foot) - len(note_lines))):
        rows_shown, hidden = rows_shown[: rows - 1], rows_shown[rows - 1 :]
    body = _table(rows_shown, names, width)
    if hidden:
        counts = Counter(state(view) for view in hidden)
        words = ", ".join(f"{count} {name}" for name, count in counts.items())
        body += _wrapped(f"  and {len(hidden)} more cells: {words}", width, "dim", 1)
    return Group(*[*head, *body, *foot, *note_lines][:height])


def _wrapped(words: str, width: int, style: str, most: int | None = None) -> list[Text]:
    """What may be shown of some words, in lines of which the first is not indented."""
    from rich.text import Text

    lines = textwrap.wrap(
        visible(words),
        max(width, 20),
        subsequent_indent=4 * " ",
        max_lines=most,
        placeholder=" …",
        break_on_hyphens=False,
    )
    return [Text(cut(line, width), style, no_wrap=True) for line in lines]


KINDS = (
    *("stalled", "failed", "killed", "starved judge", "no signal", "gap onset", "lost push"),
    "truncation",
)
"""Of alarms, the most urgent first."""


def _interest(view: View) -> tuple[bool, int, str]:
    order = ("stalled", "failed", "killed", "running", "new", "done")
    return not view.alarms, order.index(state(view)), view.cell


def _alarm_lines(
    views: Sequence[View], names: dict[str, str], width: int, room: int | None
) -> list[Text]:
    """Alarms with what to type below each: the first of each kind, then others while there is room;
    then how many more there are."""
    by_kind = {kind: [a for v in views for a in v.alarms if a.kind == kind] for kind in KINDS}
    turns = itertools.zip_longest(*by_kind.values())
    waiting = [alarm for turn in turns for alarm in turn if alarm is not None]
    lines: list[Text] = []
    while waiting:
        alarm = waiting[0]
        words = f"! {names[alarm.cell]}  {alarm.describe()}"
        alarm_lines = _wrapped(words, width, "bold yellow", LINES)
        alarm_lines += _wrapped(f"    {alarm.type}", width, "cyan")
        if lines and room is not None and len(lines) + len(alarm_lines) + (len(waiting) > 1) > room:
            break
        lines += alarm_lines
        waiting.pop(0)
    if waiting:
        counts = Counter(alarm.kind for alarm in waiting)
        more = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        lines += _wrapped(f"! and {len(waiting)} more alarms: {more}", width, "bold yellow", 1)
    return lines


def names_of(views: Sequence[View]) -> dict[str, str]:
    """Cell -> what it is called on the screen: arm and seed, where no other cell has both."""
    short = {v.cell: v.cell if v.seed is None else f"{v.arm} s{v.seed}" for v in views}
    counts = Counter(short.values())
    return {cell: visible(cell if counts[name] > 1 else name) for cell, name in short.items()}


def _table(views: Sequence[View], names: dict[str, str], width: int) -> list[Text]:
    """Header and rows; columns that say nothing of any cell are left out."""
    from rich.text import Text

    texts = {column: [visible(column.text(view)) for view in views] for column in COLUMNS}
    sizes = {
        column: min(WIDEST, max(map(len, (column.header, *cells_of_column))))
        for column, cells_of_column in texts.items()
        if any(text not in ("", UNKNOWN) for text in cells_of_column)
    }
    longest = max((len(names[view.cell]) for view in views), default=4)
    room = width - 2 - min(longest, NAME)
    for column in sorted(sizes, key=lambda column: column.rank):
        if room < sizes[column] + 2:
            del sizes[column]
        else:
            room -= sizes[column] + 2
    first = max(1, min(longest, min(longest, NAME) + room))
    headers = [_fitted(each, each.header, sizes[each]) for each in COLUMNS if each in sizes]
    head = "  ".join(["  " + "cell".ljust(first), *headers]).rstrip()
    lines = [Text(cut(head, width), "dim", no_wrap=True)]
    for place, view in enumerate(views):
        dim = "dim" if view.state == "done" else ""
        name = _shortened(names[view.cell], first)
        line = Text(f"{'!' if view.alarms else ' '} {name:<{first}}", dim, no_wrap=True)
        for column in COLUMNS:
            if column in sizes:
                style = COLOURS.get(state(view), "") if column.header == "state" else ""
                line.append("  " + _fitted(column, texts[column][place], sizes[column]), style)
        line.rstrip()
        line.truncate(width)
        lines.append(line)
    return lines


def _fitted(column: Column, text: str, size: int) -> str:
    text = cut(text, size)
    return text.rjust(size) if column.right else text.ljust(size)


def _shortened(name: str, width: int) -> str:
    """A name in ``width`` characters at most: the end stays, which tells seeds apart."""
    if len(name) <= width or width < 8:
        return cut(name, width)
    return f"{name[: width - 5]}…{name[-4:]}"
