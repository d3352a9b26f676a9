"""The site of the pages is read from a folder, where a browser starts no worker."""

import re
from pathlib import Path

import yaml

from tests.chromium import Browser
from tests.conftest import ROOT
from tests.waiting import wait_for

SITE = ROOT / "docs" / "site"
PAGE = """<!doctype html><body><script src="{shim}"></script><script>
const worker = new Worker("worker.js"); let said = "";
worker.addEventListener("message", event => {{ said = event.data; }});
worker.postMessage("asked");
</script></body>"""


def test_what_searches_answers_where_no_worker_may_start(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "worker.js").write_text(
        "addEventListener('message', event => postMessage(event.data + ', answered'));"
    )
    page = tmp_path / "page.html"
    page.write_text(PAGE.format(shim=(SITE / "iframe-worker.js").as_uri()))
    opened = browser.open(page)
    assert wait_for(lambda: opened.ask("said")) == "asked, answered" and opened.errors == []


def test_nothing_of_the_site_lies_outside() -> None:
    config = yaml.safe_load((SITE / "mkdocs.yml").read_text(encoding="utf-8"))
    assert "offline" in config["plugins"] and config["theme"]["font"] is False
    beside = [*config["extra"]["polyfills"], *config["extra_css"]]
    # where none of this name is listed, the offline plugin takes one from elsewhere
    assert "iframe-worker.js" in beside
    assert all((SITE / name).is_file() for name in beside)


def test_the_gallery_shows_studies_that_can_be_run() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    studies = re.findall(r"`gallery/([a-z-]+)\.html`", text)
    assert len(studies) == 7
    for name in studies:
        preset = yaml.safe_load((ROOT / f"conf/experiment/{name}.yaml").read_text(encoding="utf-8"))
        assert preset.get("study", "quickstart") == name
