"""What the printed links open, in a real browser on MLflow's own server."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from experiments.track import store
from experiments.track.charts import CHARTS
from experiments.track.store import parent_link, ui_link
from experiments.tracking import main
from study import cells
from study.files import read_json
from tests.experiments.mlflow_runs import served

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


def shown(url: str, profile: Path) -> str:
    """The text of a page once its own requests are answered."""
    assert BROWSER is not None
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu"]
    words += ["--disable-background-networking", f"--user-data-dir={profile}"]
    words += ["--window-size=1440,2000", "--virtual-time-budget=30000", "--dump-dom", url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    return " ".join(unescape(re.sub(r"<[^<>]*>", " ", done.stdout)).split())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a browser (chromium)")
def test_the_printed_links_open_what_they_promise(
    small_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = shutil.copytree(small_study, tmp_path / "runs" / small_study.name, symlinks=True)
    assert main(["rebuild", f"study={study.name}", f"runs_dir={study.parent}"]) == 0
    ids = read_json(study / "study.json")["mlflow"]
    with served(ids["uri"], tmp_path, monkeypatch) as address:
        assert address.endswith(str(store.UI_PORT))
        charts = shown(ui_link(ids), tmp_path / "charts")
        found = shown(parent_link(ids), tmp_path / "parent")
        folder = cells.study_cells(study)[0]
        run = {**ids, "parent_run_id": read_json(folder / "mlflow.json")["run_id"]}
        cell = shown(parent_link(run), tmp_path / "cell")
    places = [charts.find(f" {metric} ") for metric in CHARTS]
    assert -1 not in places and places == sorted(places)
    assert "Group: sim-fair" in charts and "Group: sim-flaky" in charts
    assert "what each judge taught" in found and "sim-flaky" in found
    assert "What the judge gives" in cell and "instruct-mini" in cell
