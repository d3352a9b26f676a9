"""How commands print: tables in aligned columns, short estimates, and problems under them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from analysis.display.markup import MISSING
from analysis.statistics.estimate import Estimate
from study.screen import visible
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
    """The rows under their heads in aligned columns."""
    if not rows:
        return []
    columns = [[head, *(row[head] for row in rows)] for head in rows[0]]
    padded = [[text.ljust(max(map(len, column))) for text in column] for column in columns]
    return ["  ".join(texts).rstrip() for texts in zip(*padded, strict=True)]


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
