"""The two pages that lie beside README.md become pages of the site, and links to them hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""A page at the top of the tree -> its page of the site."""
STYLE = "site.css"


def on_files(files: Files, config: Any) -> Files:
    """Add what does not lie in docs/, and the style that lies beside this file."""
    for name, page in OUTSIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    style = str(Path(__file__).with_name(STYLE))
    files.append(File.generated(config, STYLE, abs_src_path=style))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of docs/ lead to the pages that were added."""
    for name, page in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown
