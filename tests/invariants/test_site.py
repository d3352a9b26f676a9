"""The site of the pages: all are in it, every link leads somewhere, nothing is from outside.

None of this needs mkdocs, but for the last test, which runs where `make docs` has been typed.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

DOCS = ROOT / "docs"
CONFIG = DOCS / "site" / "mkdocs.yml"
OUTSIDE = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Page of the site -> the file at the top of the tree that it is made of."""
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)")
ITEM = re.compile(r"( *)([-*]|\d+\.) ")


def config() -> dict[str, Any]:
    return yaml.safe_load(CONFIG.read_text(encoding="utf-8"))


def named(node: Any) -> Iterator[str]:
    """The pages of a nav, in order."""
    if isinstance(node, str):
        yield node
    else:
        for item in node.values() if isinstance(node, dict) else node:
            yield from named(item)


def pages(docs: Path) -> set[str]:
    return {str(path.relative_to(docs)) for path in docs.rglob("*.md")} | set(OUTSIDE)


def source(docs: Path, page: str) -> Path:
    return docs.parent / OUTSIDE[page] if page in OUTSIDE else docs / page


def anchors(text: str) -> set[str]:
    """Names that the site gives to the headings of a page."""
    plain = [heading.replace("`", "") for heading in HEADING.findall(FENCE.sub("", text))]
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in plain]
    slugs = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in plain]
    return {re.sub(r"[-\s]+", "-", slug) for slug in slugs}


def dead(docs: Path, page: str) -> list[str]:
    """Links of a page to what is no page, file or heading of the site."""
    path = source(docs, page)
    lost = []
    for target, anchor in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        to = (path.parent / target).resolve() if target else path.resolve()
        inside = to.is_relative_to(docs.resolve()) or to.name in OUTSIDE.values()
        leads_there = to.is_file() and inside
        if leads_there and anchor and to.suffix == ".md":
            leads_there = anchor in anchors(to.read_text(encoding="utf-8"))
        if not leads_there:
            lost.append(f"{target}#{anchor}" if anchor else target)
    return lost


def run_on(text: str) -> list[str]:
    """Lines that begin a list or a table and are read as part of the line above them: the site's
    Markdown wants an empty line between, and four blanks before what belongs to a list's item."""
    wrong, above = [], ""
    for line in FENCE.sub("", text).splitlines():
        item, flat = ITEM.match(line), not above or above.startswith(("#", " "))
        after_text = bool(above.strip()) and not flat
        if item and (len(item[1]) % 4 or (after_text and not ITEM.match(above))):
            wrong.append(line)
        if line.startswith("|") and after_text and not above.startswith("|"):
            wrong.append(line)
        if re.match(r" {1,3}\S", line) and not above.strip():
            wrong.append(line)
        above = line
    return wrong


PAGES = sorted(pages(DOCS))


def test_every_page_is_in_the_navigation_once() -> None:
    """A new page needs one line under `nav` in docs/site/mkdocs.yml."""
    listed = Counter(named(config()["nav"]))
    assert set(listed) == set(PAGES) and set(listed.values()) == {1}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert dead(DOCS, page) == []


@pytest.mark.parametrize("page", PAGES)
def test_lists_and_tables_are_lists_and_tables_on_the_site_too(page: str) -> None:
    assert run_on(source(DOCS, page).read_text(encoding="utf-8")) == []


def test_faults_of_pages_are_seen(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "api").mkdir(parents=True)
    (docs / "a.md").write_text("# A `b/c`: d\n[x](#a-bc-d) [y](api/e.md#f) [z](gone.md)\n")
    (docs / "api" / "e.md").write_text("# E\n```\n# F\n```\n[up](../a.md) [out](../../README.md)\n")
    (tmp_path / "README.md").touch()
    assert pages(docs) == {"a.md", "api/e.md", *OUTSIDE}
    assert list(named([{"A": ["a.md", {"E": "api/e.md"}]}])) == ["a.md", "api/e.md"]
    assert dead(docs, "a.md") == ["api/e.md#f", "gone.md"]
    assert dead(docs, "api/e.md") == ["../../README.md"]
    good = "# H\n- a\n- b\n  on\n\n    more\n\nText\n\n| a |\n|---|\n\n    code\n"
    assert run_on(good) == []
    bad = ["- a", "| a |", "  - b", "  | c |"]
    assert run_on(f"Text\n{bad[0]}\n{bad[2]}\n\nText\n{bad[1]}\n\n{bad[3]}\n") == [
        *("- a", "  - b", "| a |", "  | c |")
    ]


def test_nothing_is_asked_of_others() -> None:
    settings = config()
    assert settings["theme"]["font"] is False and settings["strict"] is True
    assert not {"analytics", "consent"} & set(settings["extra"])
    assert not re.search(r"https?:", CONFIG.read_text(encoding="utf-8"))


class Loads(HTMLParser):
    """What a browser would fetch of a page by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        fetched = tag == "link" and attributes.get("rel") not in ("canonical", "next", "prev")
        name = "href" if fetched else "" if tag == "a" else "src"
        self.loads.append(attributes.get(name) or "")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_outside() -> None:
    if not (ROOT / ".venv-docs" / ".installed").exists():
        pytest.skip("make docs has not been typed here")
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert {page.replace(".md", ".html") for page in PAGES} <= built
    for path in site.rglob("*.html"):
        loads = Loads(path.read_text(encoding="utf-8")).loads
        assert not [url for url in loads if url.startswith(("http:", "https:", "//"))], path
