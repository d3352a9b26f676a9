"""One page of fragments that loads nothing from anywhere: numbers, contents, and tables beside it.

What a figure is called in the whole, such as Figure 3, is known when all fragments are there:
`numbered` counts marks that nothing which was escaped can look like.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from analysis.display.markup import Heading, Sheet, environment
from study.screen import CONTROLS, FORMULA
from study.system.files import clear_leftovers, write_text

MARK = re.compile(r'<b class="nth">(Figure|Table)</b>')
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?\Z")


def write_page(path: Path, title: str, opening: Iterable[str], fragments: Iterable[str]) -> None:
    """Write a page and, in ``tables`` beside it, a CSV file of each of its tables.

    Args:
        path: of the HTML file; what a kill left half-written in its folder goes.
        opening: the first screen, which stands before the list of contents.
        fragments: what follows; its headings with an anchor are the list.
    """
    opening, fragments = list(opening), list(fragments)
    for folder in (path.parent, path.parent / "tables"):
        clear_leftovers(folder)
    _write_tables([*opening, *fragments], path.parent / "tables")
    write_text(path, page(title, opening, fragments))


def page(title: str, opening: Sequence[str], fragments: Sequence[str]) -> str:
    """The page as text, see `write_page`."""
    counts: Counter[str] = Counter()
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    headings = [each for each in fragments if isinstance(each, Heading) and each.anchor]
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            css=Markup(css),
            opening=Markup(numbered("".join(opening), counts)),
            contents=[{"to": each.anchor, "title": each.text} for each in headings],
            body=Markup(numbered("".join(fragments), counts)),
        )
    )


def numbered(body: str, counts: Counter[str]) -> str:
    """Figures and tables numbered in their order, going on from ``counts``."""

    def number(mark: re.Match[str]) -> str:
        counts[mark[1]] += 1
        return f'<b class="nth">{mark[1]} {counts[mark[1]]}.</b>'

    return MARK.sub(number, body)


def _write_tables(fragments: Iterable[str], folder: Path) -> None:
    """Write the named tables among the fragments; those of an earlier page go."""
    sheets = [each for each in fragments if isinstance(each, Sheet) and each.name]
    written = {folder / f"{each.name}.csv": each.frame for each in sheets if each.frame is not None}
    for path, frame in written.items():
        write_text(path, csv(frame), durable=False)
    for path in set(folder.glob("*.csv")).difference(written):
        path.unlink()


def csv(frame: pd.DataFrame) -> str:
    """A frame as the text of a CSV file, in which no text is a formula for a spreadsheet or makes a
    terminal do anything."""
    safe = frame.map(_inert).rename(columns=_inert)
    buffer = io.StringIO()
    safe.to_csv(buffer, index=False, float_format="%.9g", lineterminator="\n")
    return buffer.getvalue()


def _inert(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.translate(CONTROLS)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.match(text) else text
