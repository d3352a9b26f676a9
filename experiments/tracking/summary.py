"""What the report of a study puts on the study's own run: words, numbers, figures and its pages.

All of it is read from ``report/``, so that the sweep and a rebuild send the same.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from analysis.display.svg import alone
from experiments.tracking.projection import Point, points
from study.screen import visible
from study.system.files import read_left

DESCRIPTION = "mlflow.note.content"
"""Tag that MLflow shows as the description of a run, in Markdown."""
FOUND = "found"
"""Tag with the report's first sentence: a narrow page shows it above the description."""
LONGEST_DESCRIPTION = 4500
"""Characters; MLflow refuses a tag of 8,000 bytes, and most characters have one."""
MOST_HEADLINES = 12
LARGEST_FILE = 20 << 20
MOST_FILES = 200
_SUMMARY = "summary.json"
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>#|~$&])")
"""What Markdown, or the HTML in it, would obey."""
_KINDS = {"data:image/png;base64,": ".png", "data:image/svg+xml;base64,": ".svg"}
_TAG = re.compile(r"<[^<>]*>")


class Picture(NamedTuple):
    """A figure of the report's page as a file."""

    name: str
    content: bytes


def escaped(text: Any) -> str:
    """A text as Markdown that says it, on one line."""
    return _ACTIVE.sub(r"\\\1", " ".join(visible(str(text)).split()))


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of the same columns as a Markdown table."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names)]
    lines += [[escaped(row.get(name, "")) for name in names] for row in rows]
    lines[0] = [escaped(name) for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def summary_of(study_dir: Path) -> dict[str, Any]:
    """What the report left for other programs: ``rows``, ``headline``, ``headlines``, ``numbers``,
    and ``where``, on what these rest; those that are not of their form are left out."""
    path = study_dir / "report" / _SUMMARY
    content = read_left(path, "the study's run in MLflow gets no description")
    rows = content.get("rows")
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        rows = []
    sentences = content.get("headlines")
    numbers = content.get("numbers")
    headline, where = content.get("headline"), content.get("where")
    return {
        "rows": rows,
        "headline": headline if isinstance(headline, str) else "",
        "headlines": sentences if isinstance(sentences, dict) else {},
        "numbers": numbers if isinstance(numbers, dict) else {},
        "where": where if isinstance(where, str) else "",
    }


def description(study_dir: Path) -> str:
    """The study in Markdown: what it comes to, what each judge taught, a table of its arms, and
    where more stands."""
    name, content = study_dir.name, summary_of(study_dir)
    if not (content["headlines"] or content["rows"]):
        return (
            f"**{escaped(name)}** has no report yet. To write it, and to send it here, type "
            f"`python -m analysis.report study={name}` and then "
            f"`python -m experiments.tracking rebuild study={name}`."
        )
    # the page is headed by the study's name, and shows the first lines of this alone
    blocks = [f"**{escaped(content['headline'] or f'{name}: what each judge taught')}**"]
    if content["where"]:
        blocks += [f"Scores and behaviours {escaped(content['where'])}."]
    lines = [_headline(*each) for each in content["headlines"].items()]
    blocks += ["\n".join(lines[:MOST_HEADLINES])]
    if content["rows"]:
        blocks += [markdown_table(content["rows"])]
    last = (
        "The whole report is `report/bias_report.html` under *Artifacts*, its figures are in "
        "`figures/`. The numbers of each arm are the metrics `arm/...` of this run."
    )
    text = ""
    for block in filter(None, blocks):
        room = LONGEST_DESCRIPTION - len(text) - len(last) - 4
        if len(block) > room:  # whole lines, as a table or a list may end at any of them
            block = block[: max(0, room)].rpartition("\n")[0]
        text += f"{block}\n\n" if block else ""
    return text + last


def _headline(arm: str, sentence: Any) -> str:
    """What an arm taught, as an item of a list, with its name in bold as in the report."""
    text, name = escaped(sentence), escaped(arm)
    return f"- **{name}**{text.removeprefix(name)}" if text.startswith(name) else f"- {text}"


def arm_points(study_dir: Path) -> list[Point]:
    """The numbers of every arm as points ``arm/<arm>/<name>`` of the time of the report: sent
    again, they are the same. The name of a measure ends with what it rests on, so that a chart of
    several studies shows one thing."""
    path = study_dir / "report" / _SUMMARY
    content = summary_of(study_dir)
    rests = f" {content['where']}".replace(",", "").rstrip()  # MLflow takes no comma
    values = {
        f"arm/{arm}/{name}{rests if '/' in name else ''}": round(value, 6) + 0.0  # no noise, no -0
        for arm, of_arm in content["numbers"].items()
        if isinstance(of_arm, dict)
        for name, value in of_arm.items()
        if isinstance(value, int | float)
    }
    return points(0, int(path.stat().st_mtime * 1000), values) if values else []


def pictures(page: str) -> Iterator[Picture]:
    """The figures of a page: images that it holds as data, and drawings (SVG) in it, in order.

    The page is ours: what others wrote is escaped in it, so that no tag is theirs.
    """
    for number, part in enumerate(page.split("<figure")[1:], start=1):
        figure = part.partition("</figure>")[0]
        caption = figure.partition("<figcaption")[2].partition(">")[2].partition("</figcaption>")[0]
        words = re.findall(r"\w+", unescape(_TAG.sub(" ", caption)).lower())[:6]
        name = "-".join([f"{number:02d}", *words])[:80]
        for start, ending in _KINDS.items():
            _, mark, rest = figure.partition(start)
            if not mark:
                continue
            try:
                content = base64.b64decode(re.split("[\"']", rest, maxsplit=1)[0], validate=True)
            except binascii.Error:
                continue
            yield Picture(name + ending, content)
            break
        else:
            drawing = alone(figure)
            _, mark, rest = figure.partition("<svg")
            if not drawing and mark and "</svg>" in rest:  # of a page of other makers
                drawing = _standing_alone(mark + rest[: rest.rindex("</svg>")] + "</svg>")
            if drawing:
                yield Picture(f"{name}.svg", drawing.encode())


def _standing_alone(drawing: str) -> str:
    """An SVG of a page as a file of its own, which has to name its language."""
    head = drawing.partition(">")[0]
    namespaces = "" if "xmlns=" in head else ' xmlns="http://www.w3.org/2000/svg"'
    if "xlink:" in drawing and "xmlns:xlink=" not in head:
        namespaces += ' xmlns:xlink="http://www.w3.org/1999/xlink"'
    return drawing.replace("<svg", f"<svg{namespaces}", 1)


def report_files(study_dir: Path) -> list[tuple[Path, str]]:
    """The files of the report's folder, and older pages beside it, each with the folder of its
    artifact; links, and what is very large, are left out."""
    paths: Iterable[Path] = [*sorted(study_dir.glob("*.html")), *_files(study_dir / "report")]
    files = []
    for path in paths:
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST_FILE:
            inside = path.parent.relative_to(study_dir)
            place = "report" if inside == Path() else inside.as_posix()
            files.append((path, place))
    return files[:MOST_FILES]


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if not path.name.startswith("."))
