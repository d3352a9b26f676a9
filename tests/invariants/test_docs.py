"""Every path of this project that a page names exists, and every heading that a link leads to."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOPS = "study|judges|analysis|experiments|tests|conf|notebooks|benchmarks|docs"
PATH = re.compile(rf"(?<![\w./-])(?:{TOPS})/[\w./*-]*[\w/*]")
"""A path from the root of the source tree; a star or NAME stands for any name."""
COMMAND = re.compile(rf"python -m ((?:{TOPS})(?:\.\w+)+)")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What leads to the headings of a page, on GitHub as on the site: one that the two would spell
    differently, as of signs between blanks, is none."""
    headings = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    slugs = (re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings)
    return {slug for slug in slugs if "--" not in slug}


def missing(page: Path, root: Path) -> list[str]:
    """The paths, links and ``python -m`` modules of a page that are not in the tree."""
    text = page.read_text(encoding="utf-8")
    paths = [name for name in PATH.findall(text) if not any(root.glob(name.replace("NAME", "*")))]
    commands = [name.replace(".", "/") for name in COMMAND.findall(text)]
    files = ("{}.py", "{}/__main__.py")
    modules = [
        name for name in commands if not any((root / file.format(name)).exists() for file in files)
    ]
    links = [name for name in LINK.findall(text) if not (page.parent / name).exists()]
    targets = (
        (page.parent / name if name else page, anchor) for name, anchor in ANCHOR.findall(text)
    )
    headings = [
        f"{target.name}#{anchor}"
        for target, anchor in targets
        if target.suffix == ".md" and target.exists() and anchor not in anchors(target)
    ]
    return [*paths, *modules, *links, *headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page):
    assert missing(page, ROOT) == []


def test_where_is_answers_twenty_questions_with_files():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Where is ...?")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 20 and all(PATH.search(row) for row in rows)


def test_a_path_that_is_gone_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`study/gone.py`, `study/*.py`, [x](away.md), [y](https://a.b/c), `runs/study/x.py`, "
        "python -m judges.lost FILE, http://docs/x, [z](#the-end), [z](#the-start), [z](#p--4)\n"
        "## The `end`\n## p = .4\n```\n# The start\n```\n"
    )
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "a.py").touch()
    assert missing(page, tmp_path) == [
        *("study/gone.py", "judges/lost", "away.md"),
        *("page.md#the-start", "page.md#p--4"),
    ]
