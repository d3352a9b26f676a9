"""From the outputs of a notebook to one page: numbers, contents, and the tables beside it.

A notebook shows its sections one by one. What they are called in the whole, such as Figure 3, is
known when all of them are there: `numbered` and `contents` read it off the page, in which nothing
that was escaped can look like ours.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from analysis.display.markup import Sheet, environment
from study.screen import CONTROLS, FORMULA
from study.system.files import write_text

TABLES_MIME = "application/vnd.judgedrift.tables+json"
"""Under this type a cell hands over its tables: {name: text of the CSV file}."""
MARK = re.compile(r'<b class="nth">(Figure|Table)</b>')
HEAD = re.compile(r'<h2 id="([a-z0-9_-]+)">([^<]*)</h2>')
OPENING = re.compile(r'<header class="front">.*?</header>', re.DOTALL)
NAME = re.compile(r"[a-z0-9_-]+")
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?\Z")


def show(fragments: Iterable[str]) -> None:
    """Display fragments as the output of a notebook's cell, and hand over their tables."""
    from IPython.display import display

    parts = list(fragments)
    sheets = [part for part in parts if isinstance(part, Sheet) and part.name]
    tables = {each.name: csv(each.frame) for each in sheets if each.frame is not None}
    bundle: dict[str, Any] = {"text/html": "".join(parts)}
    display(bundle | ({TABLES_MIME: tables} if tables else {}), raw=True)


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


def page(body: str, title: str) -> str:
    """The whole page around what a notebook displayed. What stands in the first screen comes
    before the list of contents."""
    body = numbered(body)
    found = OPENING.search(body)
    opening = found[0] if found else ""
    rest = body.replace(opening, "", 1) if opening else body
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            css=Markup(css),
            opening=Markup(opening),
            contents=contents(rest),
            body=Markup(rest),
        )
    )


def numbered(body: str) -> str:
    """Figures and tables numbered in their order on the page."""
    seen: Counter[str] = Counter()

    def number(found: re.Match[str]) -> str:
        seen[found[1]] += 1
        return f'<b class="nth">{found[1]} {seen[found[1]]}.</b>'

    return MARK.sub(number, body)


def contents(body: str) -> list[dict[str, str]]:
    """The titles of the sections and where they stand; nothing on a page without anchors."""
    return [{"to": to, "title": unescape(title)} for to, title in HEAD.findall(body)]


def write_tables(cells: Sequence[Any], folder: Path) -> list[Path]:
    """Write the tables that the cells of an executed notebook handed over; their paths. Those of
    an earlier report go."""
    outputs = (output for cell in cells for output in cell.get("outputs", []))
    written = []
    for output in outputs:
        for name, text in output.get("data", {}).get(TABLES_MIME, {}).items():
            if NAME.fullmatch(name):
                write_text(folder / f"{name}.csv", text, durable=False)
                written.append(folder / f"{name}.csv")
    for path in set(folder.glob("*.csv")).difference(written):
        path.unlink()
    return written
