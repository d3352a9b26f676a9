"""What the commands of `analysis` print: the numbers of one study as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from study.files import write_json

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
