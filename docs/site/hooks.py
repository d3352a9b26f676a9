"""Two pages that lie beside README.md become pages of the site, as do the reports of finished
studies; links to them hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""A page at the top of the tree -> its page of the site."""
GALLERY = ROOT / "docs" / "gallery.md"
"""Names the studies whose reports are shown."""
SHOWN = re.compile(r"`gallery/([a-z-]+)\.html`")
RUNS = ROOT / "runs"
BESIDE = ("site.css", "iframe-worker.js")
"""What lies beside this file and is part of the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add what does not lie in docs/, and what lies beside this file."""
    for name, page in OUTSIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    for name in BESIDE:
        path = str(Path(__file__).with_name(name))
        files.append(File.generated(config, name, abs_src_path=path))
    for study in SHOWN.findall(GALLERY.read_text(encoding="utf-8")):
        place, report = f"gallery/{study}.html", RUNS / study / "report" / "bias_report.html"
        if report.is_file():
            files.append(File.generated(config, place, abs_src_path=str(report)))
        else:
            files.append(File.generated(config, place, content=_awaited(study)))
    return files


def _awaited(study: str) -> str:
    """The page of a study that was not run here."""
    what = "" if study == "quickstart" else f" experiment={study}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{study}</title>'
        f"<p>{study} was not run where this site was made. Type <code>judgedrift sweep{what}</code>"
        " and then <code>make docs</code>.</p></html>"
    )


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of docs/ lead to the pages that were added, and the gallery to its reports."""
    for name, page in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return SHOWN.sub(r"[\1](gallery/\1.html)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings mark what is typed by two colons, which a page does not show."""
    return re.sub(r"\s*::(?=</p>)", lambda _: ":", re.sub(r"(?<=[?.])\s*::(?=</p>)", "", html))
