"""What a terminal is given: text from outside (a judge's, an endpoint's) made safe to print,
as one line, tables, and what becomes of output that nobody reads. Also which text a spreadsheet
would run, and what a file of texts holds instead of what a terminal obeys."""

from __future__ import annotations

import os
import select
import shutil
import sys
from collections.abc import Callable, Sequence

UNREAD = 141
"""Exit code of a command whose reader has left; a shell says so of one that SIGPIPE ended."""
COSTS = ("completions", "judge calls", "tokens in", "tokens out")
"""Columns of what a cell is expected to take."""
LINE_CHARACTERS = 1_000
WIDE = 160
"""Columns of a table that goes to a pipe, where nobody says how many it has."""

UNKNOWN = "-"
"""In place of what is not known."""
FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""How a text begins that a spreadsheet may take for a formula; the last four are full-width."""
_KEPT = "\n\t"
_HIDDEN = (*range(0x20), *range(0x7F, 0xA0))
_TURNING = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
"""What reverses the reading order, ends lines or cannot be seen."""
_SPELLED = {code: f"\\x{code:02x}" for code in _HIDDEN if chr(code) not in _KEPT} | {
    code: f"\\u{code:04x}" for code in (*_TURNING, *range(0xD800, 0xE000))
}

CONTROLS = {code: spelled for code, spelled in _SPELLED.items() if code in _HIDDEN and code != 13}
"""Characters that a terminal obeys, as a CSV file spells them, which people look at in one; line
ends and tabs stay, as do marks of languages that are written from right to left."""


def visible(text: str) -> str:
    """``text`` with everything spelled out that a terminal would obey or could not print."""
    return text.translate(_SPELLED)


def writable(text: str) -> str:
    """``text`` as any file and table can hold it: with U+FFFD for lone surrogates and NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "\ufffd")


def one_line(text: str, limit: int = LINE_CHARACTERS) -> str:
    """``text`` as one line of at most so many characters, for a message or a table."""
    # Cut first: a text without end takes no time.
    short = " ".join(writable(text[: 4 * limit]).split())
    return short if len(short) <= limit else short[: limit - 3] + "..."


def plural(n: int, noun: str, many: str = "") -> str:
    """``1 run``, ``2 runs``; ``many`` where an s does not make the plural."""
    return f"{n} {noun}" if n == 1 else f"{n} {many or noun + 's'}"


def duration(seconds: float | None) -> str:
    """Seconds for people: 42s, 3m05s, 2h10m, 4d03h."""
    if seconds is None:
        return UNKNOWN
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def unless_unread(work: Callable[[], int]) -> int:
    """The exit code of ``work``, or `UNREAD`, without a word, where nobody reads any more what this
    process prints, as behind ``| head``."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not unread():
            raise
        # Python writes what is left in its buffer as it ends, and would complain.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return UNREAD


def unread() -> bool:
    """Whether the standard output is a pipe that has lost its reader."""
    try:
        poll = select.poll()
        poll.register(sys.stdout, 0)
    except (OSError, ValueError):
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _unread_table() -> None:
    """In place of rich's own, which ends the process by another code than other output does."""
    raise BrokenPipeError


def columns(otherwise: int = WIDE) -> int:
    """Characters of a line: those that COLUMNS says, or the terminal has; ``otherwise`` where
    neither does, as in a pipe."""
    return shutil.get_terminal_size((otherwise, 24)).columns


def print_table(lines: list[dict[str, str]], title: str, hidden: Sequence[str] = ()) -> None:
    """Print a table; columns that are empty in every row, or hidden, are left out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As Text nothing is taken for markup: names and errors hold what others wrote
    console = Console(width=columns())
    console.on_broken_pipe = _unread_table
    table = Table(title=Text(visible(title)), title_justify="left")
    names = [name for name in lines[0] if name not in hidden and any(line[name] for line in lines)]
    for name in names:
        right = name in ("step", "seconds", *COSTS)
        table.add_column(Text(visible(name)), justify="right" if right else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(visible(line[name])) for name in names))
    console.print(table)
