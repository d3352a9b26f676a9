"""MLflow's pages: a server of one's own on a free port, and the store of a study that was moved."""

import os
import shutil
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from experiments import ui
from experiments.tracking import pages
from experiments.tracking.__main__ import main as tracking
from experiments.tracking.store import client_of, tracking_uri
from study.cell.study_file import read_study, write_study
from study.config.schema import Tracking
from study.errors import UserError
from tests import commands
from tests.conftest import free_port, listens
from tests.experiments.mlflow_runs import begin, cell_of, record, sql
from tests.waiting import GENEROUS_S, wait_for

HEALTHY = """
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Page)
[server.handle_request() for _ in range(int(sys.argv[2]))]
print("out of pages", file=sys.stderr)
sys.exit(3)
"""
"""A server that answers so many requests and ends."""
PAGE = "http://127.0.0.1:7"


@pytest.fixture
def study(runs: Path) -> Path:
    """A study with one cell, a store beside it, and a file of its own run."""
    cell = cell_of(runs)
    record(cell, 2)
    report = cell.folder.study_dir / "report"
    report.mkdir()
    (report / "bias_report.html").write_text("<p>all</p>")
    write_study(cell.folder.study_dir, {"study": "demo", "factors": ["judge", "seed"]})
    assert tracking(["rebuild", "study=demo", f"runs_dir={runs}"]) == 0
    return cell.folder.study_dir


def ids_of(study: Path) -> dict[str, str]:
    return read_study(study)["mlflow"]


def artifacts(study: Path) -> Path:
    return study.parent / "mlartifacts" / study.name / ids_of(study)["parent_run_id"] / "artifacts"


def test_links_and_a_command_that_stays_on_this_machine(tmp_path: Path) -> None:
    ids = {"uri": "https://mlflow.example/", "experiment_id": "3", "parent_run_id": "abc"}
    assert pages.address(ids["uri"], 0) == "https://mlflow.example"
    assert pages.address("sqlite:///a.db", 7) == PAGE
    charts = f"{PAGE}/#/experiments/3/runs?compareRunsMode=CHART&viewStateShareKey="
    assert pages.charts_link(PAGE, ids) == f"{charts}judge.name"
    assert pages.charts_link(PAGE, ids, "judge.family") == f"{charts}judge.family"
    assert pages.parent_link(PAGE, ids) == f"{PAGE}/#/experiments/3/runs/abc"
    typed = pages.typed_command(f"sqlite:///{tmp_path}/mlflow.db", 7)
    for part in (
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false",
        "MLFLOW_DISABLE_TELEMETRY=true",
        f"--backend-store-uri sqlite:///{tmp_path}/mlflow.db",
        "--host 127.0.0.1 --port 7",
        "--allowed-hosts localhost:7,127.0.0.1:7",
    ):
        assert part in typed


def test_the_links_are_printed_when_the_pages_answer(study, capsys, monkeypatch) -> None:
    """Port 0 takes a free one; a server that ends gives its exit code."""

    def small(uri: str, port: int) -> list[str]:
        assert uri == ids_of(study)["uri"] and not listens(port)
        return [sys.executable, "-c", HEALTHY, str(port), "1"]

    monkeypatch.setattr(pages, "command", small)
    words = [f"runs_dir={study.parent}", f"study={study.name}"]
    assert ui.main(words) == 3
    charts, found = capsys.readouterr().out.splitlines()
    page = charts.removeprefix("The charts of demo: ").partition("/#/")[0]
    assert found == f"What was found: {pages.parent_link(page, ids_of(study))}"
    port = free_port()
    assert ui.main([words[0], f"port={port}"]) == 3
    assert capsys.readouterr().out.splitlines() == [f"All studies: http://127.0.0.1:{port}"]
    monkeypatch.setattr(pages, "command", lambda uri, port: [*small(uri, port)[:-1], "0"])
    assert ui.main(words) == 2
    error = capsys.readouterr().err
    assert "ended with exit code 3 before it answered" in error and "out of pages" in error


def test_a_port_of_another_program_is_refused_and_nothing_is_started(study, capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert ui.main([f"runs_dir={study.parent}", f"study={study.name}", f"port={port}"]) == 2
    shown = capsys.readouterr()
    assert f"127.0.0.1:{port}" in shown.err and "leave it out for a free one" in shown.err
    assert shown.out == ""


@pytest.mark.long
@pytest.mark.slow
def test_mlflow_itself_answers_until_ctrl_c(study: Path) -> None:
    words = (f"runs_dir={study.parent}", f"study={study.name}")
    with commands.start("experiments.ui", *words, real=True, stdout=-1, text=True) as process:
        assert process.stdout is not None
        page = process.stdout.readline().removeprefix("The charts of demo: ").partition("/#/")[0]
        search = f"{page}/api/2.0/mlflow/experiments/get-by-name?experiment_name=demo"
        with urllib.request.urlopen(search, timeout=GENEROUS_S) as response:
            assert ids_of(study)["experiment_id"] in response.read().decode()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(GENEROUS_S) == 130
    wait_for(lambda: not listens(int(page.rpartition(":")[2])))


def test_a_moved_folder_reads_its_own_store_and_a_rebuild_brings_the_files(
    study: Path, tmp_path: Path
) -> None:
    old, ids, there = artifacts(study), ids_of(study), tmp_path / "elsewhere"
    assert pages.here(ids, study) == (ids, "")
    assert (old / "report" / "bias_report.html").is_file()
    shutil.move(study.parent, there)
    moved = there / study.name
    now, remark = pages.here(ids, moved)
    assert now == {**ids, "uri": f"sqlite:///{there / 'mlflow.db'}"}
    assert str(old) in remark and f"rebuild study=demo runs_dir={there}" in remark
    assert tracking(["rebuild", "study=demo", f"runs_dir={there}"]) == 0
    assert (artifacts(moved) / "report" / "bias_report.html").is_file() and not old.exists()
    assert pages.here(ids_of(moved), moved) == (ids_of(moved), "")
    assert sql(there, "select count(*) from experiments where name like 'demo%'") == [(2,)]
    assert tracking(["rebuild", "study=demo", f"runs_dir={there}"]) == 0  # and once is enough
    assert sql(there, "select count(*) from experiments where name like 'demo%'") == [(2,)]


def test_a_copy_reads_its_own_store_or_says_how_to_make_one(study: Path, tmp_path: Path) -> None:
    ids, alone, whole = ids_of(study), tmp_path / "alone" / "demo", tmp_path / "whole"
    shutil.copytree(study, alone)
    with pytest.raises(UserError, match=rf"is that of {study.parent}.* rebuild study=demo"):
        pages.here(ids, alone)
    shutil.copytree(study.parent, whole)
    now, remark = pages.here(ids, whole / "demo")
    assert now["uri"] == f"sqlite:///{whole / 'mlflow.db'}" and str(artifacts(study)) in remark
    before = sorted(artifacts(study).rglob("*"))
    assert tracking(["rebuild", "study=demo", f"runs_dir={whole}"]) == 0
    assert sorted(artifacts(study).rglob("*")) == before  # the first one's files are its own
    shutil.rmtree(study.parent)
    with pytest.raises(UserError, match=r"is not there, and there is none here"):
        pages.here(ids, alone)
    (alone.parent / "mlflow.db").write_text("not a database, but longer than its header is")
    with pytest.raises(UserError, match="no store of MLflow"):
        pages.here(ids, alone)


def test_a_store_that_was_chosen_stays_wherever_it_is(runs: Path, tmp_path: Path) -> None:
    """A file that several folders of studies share, and a server."""
    shared = tmp_path / "shared.db"
    ids = begin(runs)
    shutil.copy(runs / "mlflow.db", shared)
    for uri in (f"sqlite:///{shared}", "https://mlflow.example", "postgresql://host/db"):
        chosen = {**ids, "uri": uri}
        assert pages.here(chosen, tmp_path / "other" / "demo") == (chosen, "")


def test_the_parameters_of_the_study_are_its_factors(study: Path) -> None:
    """What a later sweep adds gets parameters of its own, as MLflow changes none."""
    runs, ids = study.parent, ids_of(study)
    client = client_of(tracking_uri(Tracking(), runs))
    record(cell_of(runs, seed=1), 2)
    for _ in range(2):
        assert tracking(["rebuild", "study=demo", f"runs_dir={runs}"]) == 0
        params = client.get_run(ids["parent_run_id"]).data.params
        assert params == {"judge": "sim-fair", "seed": "0", "seed 2": "1"}
