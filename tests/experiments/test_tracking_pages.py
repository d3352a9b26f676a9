"""What the printed links open, in a real browser on MLflow's own server."""

import shutil

import pytest

from experiments.tracking import store
from experiments.tracking.__main__ import main
from experiments.tracking.charts import CHARTS, FIRST
from experiments.tracking.store import parent_link, ui_link
from study.cell.folder import study_cells
from study.system.files import read_json
from tests.chromium import Browser
from tests.experiments.mlflow_runs import served
from tests.waiting import wait_for


def shown(browser: Browser, url: str, *awaited: str) -> str:
    """The text of a page as soon as it says all that is awaited."""
    page = browser.open(url, width=1440, height=4000)

    def text() -> str:
        return " ".join(page.ask("document.body.innerText").split())

    said = wait_for(lambda: all(words in (said := text()) for words in awaited) and said)
    page.close()
    return said


@pytest.mark.long
@pytest.mark.slow
def test_the_printed_links_open_what_they_promise(browser, small_study, tmp_path, monkeypatch):
    study = shutil.copytree(small_study, tmp_path / "runs" / small_study.name, symlinks=True)
    assert main(["rebuild", f"study={study.name}", f"runs_dir={study.parent}"]) == 0
    ids = read_json(study / "study.json")["mlflow"]
    folder = study_cells(study)[0]
    run = {**ids, "parent_run_id": read_json(folder / "mlflow.json")["run_id"]}
    groups = ("Group: sim-fair", "Group: sim-flaky")
    told = ("what each judge taught", "sim-flaky", "Child runs")
    held = ("Judge score", "instruct-mini", f"{folder.name}-step-2", "Parent run")
    with served(ids["uri"], tmp_path, monkeypatch) as address:
        assert address.endswith(str(store.UI_PORT))
        charts = shown(browser, ui_link(ids), FIRST, *groups, *CHARTS)
        parent = shown(browser, parent_link(ids), *told)
        cell = shown(browser, parent_link(run), *held)
    assert "Training runs" in charts and FIRST in charts
    places = [charts.find(f" {metric} ", charts.find(FIRST)) for metric in CHARTS]
    assert -1 not in places and places == sorted(places)
    assert [words for words in groups if words not in charts] == []
    assert [words for words in told if words not in parent] == []
    assert [words for words in held if words not in cell] == []
