"""What a page is made of: numbers and intervals in words, fragments of HTML, and the page itself.

Fragments come from the templates in ``templates``, which escape every value: completions are
written by a policy. A page loads nothing from anywhere. What a figure is called in the whole, such
as Figure 3, is known when all fragments are there: `numbered` counts marks that nothing which was
escaped can look like.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from analysis.display import svg
from analysis.display.spreadsheet import csv
from analysis.display.texts import TEXTS, explained, render_text
from analysis.statistics.estimate import Estimate
from study.screen import plural
from study.system.files import clear_leftovers, write_text

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).with_name("templates")
MISSING = "\u2013"
"""What stands in a table where there is no number."""
NOTHING = "Nothing is on record for this table."
LONG = 40
"""Characters beyond which a cell is broken into lines."""
MOST_COLUMNS = 7
"""Columns that a table shows; the rest are folded."""
MOST_ROWS = 10
"""Rows that a table shows; the rest are folded."""
NARROW = 46
"""Characters of a row, with two for the room between columns, that a phone shows beside each
other; of a wider table it shows each row as a few lines."""
SMALL, LARGE = 1e-4, 1e6
"""A number beyond these is written with a power of ten."""
RAISED = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)
"""Digits as a power is written."""


@cache
def environment(folder: Path = TEMPLATES) -> Environment:
    """The templates of a folder, which escape what is not `Markup`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)


def inline_hash(text: str) -> str:
    """What a Content-Security-Policy calls an inline script or style."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _parts() -> Any:
    """The macros of ``templates/parts.html.j2``."""
    return environment().get_template("parts.html.j2").module


class Sheet(Markup):
    """A table as HTML, with its name and the frame that stands in the file beside the page."""

    name: str = ""
    frame: pd.DataFrame | None = None


class Heading(Markup):
    """A heading as HTML, with its text and, where what follows is folded, the place of that."""

    text: str = ""
    anchor: str = ""


def number(value: float | None, sign: bool = False) -> str:
    """Three significant digits; a missing number is an en dash, never a 0."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "\u221e" if value > 0 else "-\u221e"
    if abs(value) < 1e-7:  # what rounding leaves of an exact zero
        return "0"
    if value == int(value) and abs(value) < LARGE and not sign:
        return f"{int(value)}"
    plus = "+" if sign else ""
    if not SMALL <= abs(value) < LARGE:
        digits, power = f"{value:{plus}.2e}".split("e")
        return f"{digits}\u00d710{str(int(power)).translate(RAISED)}"
    if abs(value) >= 1000:  # three digits would take a power of ten
        return f"{round(value):{plus}d}"
    return f"{value:{plus}.3g}"


def bracket(low: float, high: float) -> str:
    """An interval as ``[low, high]``, or nothing where there is none."""
    if math.isnan(low) or math.isnan(high):
        return ""
    return f"[{', '.join(number(_rounded(end, low, high)) for end in (low, high))}]"


def _rounded(value: float, *ends: float) -> float:
    """A number of an interval with no more decimals than three digits of the larger end have."""
    largest = max((abs(end) for end in ends if math.isfinite(end)), default=0.0)
    if not SMALL <= largest < LARGE or not math.isfinite(value):
        return value
    return round(value, max(0, 2 - math.floor(math.log10(largest))))


def estimate(mean: float, low: float, high: float, sign: bool = True) -> str:
    """A number with its interval, or the number alone where there is none."""
    shown = mean if math.isnan(low) or math.isnan(high) else _rounded(mean, low, high)
    return f"{number(shown, sign)} {bracket(low, high)}".strip()


def with_interval(each: Estimate) -> str:
    """``0.12 [0.1, 0.14]``"""
    return estimate(each.value, each.low, each.high, sign=False)


def signed(each: Estimate) -> str:
    """``+0.12 [0.1, 0.14]``: of a change or a difference."""
    return estimate(each.value, each.low, each.high)


def score(each: Estimate) -> str:
    """A change of a score, with no more than `DECIMALS`."""
    value, low, high = (round(number, DECIMALS) for number in (each.value, each.low, each.high))
    return estimate(value, low, high)


def p_value(p: float) -> str:
    """A p value to two digits, bounded below at .001."""
    if math.isnan(p):
        return MISSING
    return "<.001" if p < 0.001 else f"{p:.2g}"


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``"""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def sentences(lines: Iterable[str]) -> Markup:
    """A list of sentences."""
    return _parts().sentences(list(lines))


def paragraph(text: str) -> Markup:
    """A text as a paragraph of HTML."""
    return Markup("<p>{}</p>").format(text)


def heading(text: str, level: int, anchor: str = "") -> Heading:
    """A heading; what follows one with an anchor is folded below it."""
    start = Markup('<h{} id="{}">').format(level, anchor) if anchor else Markup(f"<h{level}>")
    head = Heading(start + text + Markup(f"</h{level}>"))
    head.text, head.anchor = text, anchor
    return head


def table(
    frame: pd.DataFrame,
    name: str = "",
    title: str = "",
    lead: Sequence[str] = (),
    data: pd.DataFrame | None = None,
) -> Markup:
    """A frame as an HTML table; floats get three digits, missing values a dash.

    What stands in a column ``arm`` leads to that arm's runs, see `anchor`.

    Args:
        frame: what is shown. Columns beyond `MOST_COLUMNS` and rows beyond `MOST_ROWS` are folded.
        name: of the file that holds the table beside the page; a table without one has no number.
        title: what the table is of, in a few words.
        lead: the columns that are not folded; by default the first ones.
        data: what the file holds, where that is more than what is shown.
    """
    if frame.empty:
        return paragraph(f"{title}: nothing is on record." if title else NOTHING)
    names = [str(column) for column in frame.columns]
    leading = [column for column in lead if column in names] or names
    leading = leading[:MOST_COLUMNS]
    folded = len(names) > len(leading) or len(frame) > MOST_ROWS
    rest = f"All {len(names)} columns, {plural(len(frame), 'row')}" if folded else ""
    short = _cells(frame.head(_first_rows(frame.iloc[:, 0].tolist())), leading)
    whole = _cells(frame, names) if folded else {}
    sheet = Sheet(_parts().table(name, title, short, whole, rest))
    sheet.name, sheet.frame = name, frame if data is None else data
    return sheet


def title(name: str) -> Heading:
    """The heading of a section with that name's title; the section is folded below it."""
    return heading(TEXTS["titles"][name], 2, name)


def picture(name: str, draw: Callable[..., Any], *data: Any, **named: Any) -> Markup:
    """A figure with the caption of that name; nothing where nothing can be drawn."""
    drawn = draw(*data)
    return Markup() if drawn is None else figure(drawn, render_text("captions", name, **named))


def sheet(
    name: str,
    frame: pd.DataFrame,
    data: pd.DataFrame | None = None,
    of: str = "",
    **named: Any,
) -> Markup:
    """A table with the title of that name, and the columns that ``texts.yaml`` has it lead with.

    Args:
        name: of the title, and of the file beside the page; ``mixture-rates`` is titled by
            ``rates`` under ``mixture``.
        frame: what is shown.
        data: what the file holds, where that is more.
        of: what tells tables of one name apart, such as a behaviour.
        named: fills in the title and the names of the leading columns.
    """
    part, _, key = name.rpartition("-")
    called = TEXTS[part][key] if part else render_text("tables", name, **named)
    lead = [column.format(**named) for column in TEXTS["leading"].get(name, ())]
    file = _NOT_A_NAME.sub("-", f"{name} {of}".strip().lower().replace("_", "-"))
    return table(frame, file.strip("-"), called, lead, data)


_NOT_A_NAME = re.compile(r"[^a-z0-9_-]+")


def folded(summary: str, fragments: Iterable[str], printed: bool = False) -> list[str]:
    """Fragments that are shown when the summary is opened, and on paper where they are
    ``printed``."""
    start = Markup('<details class="text">' if printed else "<details>")
    start += Markup("<summary>{}</summary>").format(summary)
    return [start, *fragments, Markup("</details>")]


def _first_rows(firsts: Sequence[Any]) -> int:
    """How many rows of a table are shown: `MOST_ROWS`, less those of a measure that would be cut
    off from its others. ``firsts`` is the first column."""
    shown = min(MOST_ROWS, len(firsts))
    whole = shown
    while 0 < whole < len(firsts) and firsts[whole] == firsts[whole - 1]:
        whole -= 1
    return whole or shown


def _cells(frame: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    shown = frame.set_axis([str(column) for column in frame.columns], axis=1)[list(names)]
    rows = shown.itertuples(index=False, name=None)
    lines = [[_cell(*each) for each in zip(names, row, strict=True)] for row in rows]
    widths = [max(map(len, name.split()), default=0) for name in names]
    for line in lines:
        widths = [max(width, len(cell["text"])) for width, cell in zip(widths, line, strict=True)]
    return {"heads": list(names), "lines": lines, "narrow": sum(widths) + 2 * len(widths) <= NARROW}


def anchor(arm: str) -> str:
    """Name of the place in the page that lists an arm's runs."""
    return "arm-" + hashlib.blake2b(arm.encode(), digest_size=5).hexdigest()


def _cell(column: str, value: Any) -> dict[str, str]:
    """Text of a cell, its CSS class, and where it leads."""
    if column == "arm":
        return {"text": str(value), "kind": "", "to": anchor(str(value))}
    if isinstance(value, bool) or value is None or isinstance(value, str):
        text = "" if value is None else str(value)
        wraps = column in ("note", "error") or len(text) > LONG
        return {"text": text, "kind": "note" if wraps else "", "to": ""}
    return {"text": number(float(value)), "kind": "number", "to": ""}


def figure(drawn: Figure, caption: str) -> Markup:
    """A figure as inline SVG, a picture for each panel; the caption is its text for those who
    cannot see it."""
    legend = svg.legend(drawn)
    return _parts().figure(caption, svg.panels(drawn, caption), legend)


def front(
    title: str,
    extent: str,
    headlines: Mapping[str, str],
    figures: Iterable[Markup],
    more: Markup,
    said: Opening | None = None,
) -> Markup:
    """The first screen. ``headlines``: arm -> its sentence, which begins with the arm."""
    parts = [
        (arm, Markup.escape(text)[len(Markup.escape(arm)) :]) for arm, text in headlines.items()
    ]
    return _parts().front(title, extent, parts, list(figures), more, said or Opening())


@dataclass(frozen=True)
class Opening:
    """What a first screen says beside its sentences.

    Attributes:
        warning: over all else.
        headline: the whole in one sentence.
        look: what that takes where results are looked at more than once.
        folded: arms whose sentences are folded, under ``summary``.
        steps: what to do next, and what to type; ``next`` stands above, ``note`` below them.
    """

    warning: str = ""
    headline: str = ""
    look: str = ""
    folded: Collection[str] = ()
    summary: str = ""
    steps: Sequence[tuple[str, str]] = ()
    next: str = ""
    note: str = ""


def links(places: Mapping[str, str]) -> Markup:
    """Links within the page in one line. ``places``: anchor -> text."""
    anchors = (Markup('<a href="#{}">{}</a>').format(*each) for each in places.items())
    return Markup(" \u00b7 ").join(anchors)


def samples(frame: pd.DataFrame) -> Markup:
    """Sample completions side by side, a card for each arm of `drift.estimate.sample_completions`.

    The prompt stands once above the cards where all arms were given the same one.
    """
    groups = []
    for _, cards in frame.groupby(["when", "rank"], observed=True, sort=True):
        when, rank = cards[["when", "rank"]].iloc[0]
        steps = ", ".join(str(step) for step in sorted(cards["step"].unique()))
        shared = cards["prompt"].nunique() == 1
        rows = cards.to_dict("records")
        groups.append(
            {
                "title": f"{when} step ({steps}), prompt {rank + 1} of that step",
                "prompt": str(rows[0]["prompt"]) if shared else "",
                "cards": [_card(row, "" if shared else str(row["prompt"])) for row in rows],
            }
        )
    return _parts().samples(groups)


def _card(row: dict[str, Any], prompt: str) -> dict[str, Any]:
    scores = ", ".join(
        f"{label} {'missing' if math.isnan(row[key]) else number(row[key])}"
        for label, key in (("judge", "judge_score"), ("truth", "truth"), ("reward", "reward"))
    )
    text = row["completion"] if isinstance(row["completion"], str) else ""
    return {"row": row, "text": text, "scores": scores, "prompt": prompt}


DECIMALS = 3
"""Of scores and shares, which lie between 0 and 1: what is beyond is noise."""


MARK = re.compile(r'<b class="nth">(Figure|Table)</b>')


def write_page(path: Path, title: str, opening: Iterable[str], fragments: Iterable[str]) -> None:
    """Write a page and, in ``tables`` beside it, a CSV file of each of its tables.

    Args:
        path: of the HTML file; what a kill left half-written in its folder goes.
        opening: the first screen.
        fragments: what follows, folded by its headings with an anchor.
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
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            css=Markup(css),
            opening=Markup(numbered("".join(opening), counts)),
            body=Markup(numbered("".join(_folded_questions(fragments)), counts)),
        )
    )


def _folded_questions(fragments: Sequence[str]) -> Iterator[str]:
    """What stands before the first heading with an anchor; then each of them with what follows it
    folded below. A link to the anchor unfolds it."""
    starts = [k for k, each in enumerate(fragments) if isinstance(each, Heading) and each.anchor]
    yield from fragments[: starts[0] if starts else None]
    for start, end in pairwise([*starts, len(fragments)]):
        head, body = fragments[start], explained("".join(fragments[start + 1 : end]))
        assert isinstance(head, Heading)
        yield _parts().question(head.text, head.anchor, body)


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
