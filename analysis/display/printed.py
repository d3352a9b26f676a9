"""How commands print: tables in aligned columns, short estimates, and problems under them."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from analysis.display.markup import MISSING
from analysis.statistics.estimate import Estimate
from study.screen import columns, visible
from study.system.files import write_json

if TYPE_CHECKING:
    import pandas as pd

NO_RUN = "No run of this study has recorded rollouts yet."


def show(
    options: Any, numbers: Any, text: Callable[[], str], draw: Callable[[], Any] | None = None
) -> int:
    """Write the numbers to ``out``, then make and print the text, then draw and save the figure;
    the exit code of success."""
    if options.out:
        write_json(options.out, numbers)
    print(text())
    if draw is not None and options.figure:
        draw().savefig(options.figure, dpi=150)
    return 0


def aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    """The rows under their heads in aligned columns. Where they are wider than a line
    (`study.screen.columns`), the widest columns are folded between words."""
    if not rows:
        return []
    cells = [list(rows[0]), *([row[head] for head in rows[0]] for row in rows)]
    widths = _widths([max(map(len, column)) for column in zip(*cells, strict=True)])
    lines = []
    for row in cells:
        folded = [fold(text, width) for text, width in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*folded, fillvalue=""):
            padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
    return lines


LEAST = 10
"""Characters to which a column is folded at most."""


def _widths(widths: list[int]) -> list[int]:
    """The widths of columns, the widest narrowed until a line holds all."""
    room = columns() - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > LEAST:
        widest = widths.index(max(widths))
        widths[widest] -= 1
    return widths


def fold(text: str, width: int) -> list[str]:
    """The lines of a cell."""
    return [text] if len(text) <= width else textwrap.wrap(text, width)


def with_problems(lines: list[str], problems: list[str]) -> str:
    """The lines of a text, and what could not be read or told under them."""
    return "\n".join([*lines, *(f"problem: {problem}" for problem in problems)])


WIDTH = 100


def short(estimate: Estimate) -> str:
    """``.85 [.80, 1]``: two decimals, no leading zero; 0 and 1 are exact."""
    if math.isnan(estimate.value):
        return MISSING
    value, low, high = map(_decimals, (estimate.value, estimate.low, estimate.high))
    return value if math.isnan(estimate.low) else f"{value} [{low}, {high}]"


def _decimals(value: float) -> str:
    text = f"{value:.2f}" if value % 1 else f"{value:g}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def as_text(table: pd.DataFrame) -> str:
    """A table in aligned columns, its texts made fit for a terminal."""
    shown = table.map(lambda cell: visible(str(cell))).rename(columns=visible)
    return shown.to_string(index=False, max_colwidth=60)


def without_infinities(value: Any) -> Any:
    """A table for JSON, in which a peak that is not reached says so."""
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(item) for item in value]
    return "not reached" if value == float("inf") else value


def turned(table: pd.DataFrame) -> str:
    """A table of few rows and long cells, its columns as rows."""
    shown = table.map(lambda cell: visible(str(cell)))
    blocks = []
    for row in shown.to_dict("records"):
        blocks.append("\n".join(f"{name:>28}  {cell}" for name, cell in row.items()))
    return "\n\n".join(blocks)
