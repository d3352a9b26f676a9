"""What the commands of `analysis` print: the numbers of one study as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from study.files import write_json

NO_RUN = "No run of this study has recorded rollouts yet."


def show(options: Any, numbers: Any, text: str, draw: Callable[[], Any] | None = None) -> int:
    """Write the numbers to ``out``, print the text, save the figure; the exit code of success."""
    if options.out:
        write_json(options.out, numbers)
    print(text)
    if draw is not None and options.figure:
        draw().savefig(options.figure, dpi=150)
    return 0


def with_problems(lines: list[str], problems: list[str]) -> str:
    """The lines of a text, and what could not be read or told under them."""
    return "\n".join([*lines, *(f"problem: {problem}" for problem in problems)])


def table(rows: list[dict[str, str]], meaning: str, *lines: str) -> list[str]:
    """The rows under their heads in aligned columns, then what they mean."""
    if not rows:
        return [NO_RUN]
    columns = [[head, *(row[head] for row in rows)] for head in rows[0]]
    padded = [[text.ljust(max(map(len, column))) for text in column] for column in columns]
    aligned = ["  ".join(texts).rstrip() for texts in zip(*padded, strict=True)]
    return [*aligned, f"\n{meaning}", *lines]


def by_note(notes: Sequence[tuple[str, str]]) -> list[str]:
    """Each note once, with the cells that it is about."""
    cells: dict[str, dict[str, None]] = {}
    for note, cell in notes:
        if note:
            cells.setdefault(note, {})[cell] = None
    return [f"{note} ({', '.join(named)})" for note, named in cells.items()]
