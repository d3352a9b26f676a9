"""Where MLflow keeps the runs: a real store, whose own SQL is the oracle, and its pages."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import fsspec
import httpx
import pytest

from experiments.tracking import store
from experiments.tracking.runs import close_parent
from experiments.tracking.store import (
    CHARTS,
    VIEWS,
    artifacts_of,
    client_of,
    initialise,
    load_mlflow,
    tracking_uri,
)
from study.config.schema import Tracking
from study.errors import UserError
from study.system.files import read_json
from tests import commands
from tests.experiments.mlflow_runs import (
    begin,
    cell_of,
    expected,
    history,
    logged,
    record,
    served,
    sql,
    status_of,
    wait_for_server,
)
from tests.waiting import GENEROUS_S

CANARY = "sk-test-0123456789abcdef0123456789abcdef"


def test_uri_of_config_wins_over_environment_over_runs_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Tracking(), Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert tracking_uri(Tracking(), Path("runs")) == "http://127.0.0.1:5000"
    given = Tracking(uri="sqlite:///here.db")
    assert tracking_uri(given, Path("runs")) == f"sqlite:///{tmp_path}/here.db"
    given = Tracking(uri="mysql+pymysql://reader@db.example/mlflow")
    assert tracking_uri(given, Path("runs")) == given.uri
    assert list(tmp_path.iterdir()) == []  # asking makes nothing


@pytest.mark.parametrize(
    "uri",
    (
        "./mlruns mlruns /abs/mlruns file:///abs/mlruns file:mlruns ftp://x/y sqlite:// "
        "sqlite:///:memory:"
    ).split(),
)
@pytest.mark.parametrize("by", ["config", "environment"])
def test_store_that_cells_cannot_share_is_refused(uri, by, tmp_path, monkeypatch) -> None:
    if by == "environment":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError) as error:
        tracking_uri(Tracking(uri=uri if by == "config" else None), tmp_path)
    source = "tracking.uri" if by == "config" else "MLFLOW_TRACKING_URI"
    for part in (f"{source}={uri}", "sqlite:///FILE.db", "tracking=none"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "uri",
    [
        f"http://me:{CANARY}@host:5000",
        f"https://{CANARY}@host",
        f"postgresql://me:{CANARY}@host/db",
        f"postgresql://host/db?user=me&password={CANARY}",
        f"https://host/mlflow?access_token={CANARY}",
    ],
)
def test_uri_with_credentials_is_refused_without_printing_them(uri: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not shown") as error:
        tracking_uri(Tracking(uri=uri), tmp_path)
    assert CANARY not in str(error.value) and "MLFLOW_TRACKING_PASSWORD" in str(error.value)


def test_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for uri, folder in ((None, tmp_path / "file" / "runs"), (f"sqlite:///{tmp_path}", tmp_path)):
        with pytest.raises(UserError, match="cannot be written"):
            tracking_uri(Tracking(uri=uri), folder)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_initialise_makes_the_study_once(runs: Path) -> None:
    uri = tracking_uri(Tracking(), runs)
    first = initialise(uri, runs, "demo", ["judge"])
    client = load_mlflow().MlflowClient(tracking_uri=uri)
    client.set_terminated(first["parent_run_id"], "FAILED")
    client.delete_experiment(first["experiment_id"])
    client.restore_run(first["parent_run_id"])
    assert initialise(uri, runs, "demo", ["judge"]) == first
    assert status_of(runs, "demo") == "RUNNING"
    kind = client.get_experiment(first["experiment_id"]).tags[store.KIND]
    assert kind == "custom_model_development"
    client.set_experiment_tag(first["experiment_id"], store.KIND, "finetuning")
    initialise(uri, runs, "demo", ["judge"])  # what a user has chosen stays
    assert client.get_experiment(first["experiment_id"]).tags[store.KIND] == "finetuning"
    assert sql(runs, "pragma journal_mode") == [("wal",)]
    ((location,),) = sql(runs, "select artifact_location from experiments where name = 'demo'")
    assert location.removeprefix("file://") == str(runs / "mlartifacts" / "demo")
    assert initialise(uri, runs, "other", []) != first


@pytest.mark.parametrize("axis", VIEWS)
def test_every_study_has_a_chart_view(axis: str, runs: Path) -> None:
    ids = begin(runs)
    tags = f"select value from experiment_tags where key = 'mlflow.sharedViewState.{axis}'"
    ((state,),) = sql(runs, f"{tags} and experiment_id = ?", ids["experiment_id"])
    view = json.loads(state)
    assert view["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": axis}]
    first, *folded = view["compareRunSections"]
    assert [chart["metricKey"] for chart in view["compareRunCharts"]] == list(CHARTS)
    assert {chart["metricSectionId"] for chart in view["compareRunCharts"]} == {first["uuid"]}
    assert first["display"] and not any(section["display"] for section in folded)
    assert len(state) < 5000  # what MLflow allows a tag of an experiment


def test_fresh_store_is_private_and_survives_a_creation_that_was_cut(tmp_path: Path) -> None:
    (tmp_path / ".mlflow.db.new").write_bytes(b"SQLite format 3\0 cut here")
    (tmp_path / ".mlflow.db.new-journal").write_bytes(b"cut")
    initialise(tracking_uri(Tracking(), tmp_path), tmp_path, "demo", [])
    assert (tmp_path / "mlflow.db").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob(".mlflow.db.new*"))
    ((location,),) = sql(tmp_path, "select artifact_location from experiments where name='Default'")
    assert location.removeprefix("file://") == str(tmp_path / "mlartifacts" / "0")


def test_damaged_store_is_named_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("not a database, but somebody's")
    with pytest.raises(UserError, match=r"mlflow\.db away and type .* rebuild study=demo"):
        initialise(tracking_uri(Tracking(), tmp_path), tmp_path, "demo", [])
    assert (tmp_path / "mlflow.db").read_text() == "not a database, but somebody's"


@pytest.mark.parametrize(
    "theirs", ["create table t (x)", "update alembic_version set version_num='9'"]
)
def test_store_of_something_else_is_left_alone(theirs: str, runs: Path) -> None:
    if theirs.startswith("create"):
        (runs / "mlflow.db").unlink()
    sql(runs, theirs)
    before = (runs / "mlflow.db").read_bytes()
    with pytest.raises(UserError, match="not of MLflow or of a newer MLflow"):
        initialise(tracking_uri(Tracking(), runs), runs, "demo", [])
    assert (runs / "mlflow.db").read_bytes() == before


def test_older_store_is_upgraded_after_a_copy(tmp_path: Path) -> None:
    load_mlflow()
    from alembic import command
    from alembic.script import ScriptDirectory
    from mlflow.store.db import utils

    path = tmp_path / "mlflow.db"
    engine = utils.create_sqlalchemy_engine_with_retry(f"sqlite:///{path}")
    utils.InitialBase.metadata.create_all(engine)
    config = utils._get_alembic_config(str(engine.url))
    script = ScriptDirectory.from_config(config)
    head = script.get_current_head()
    assert head is not None
    older = script.get_revision(head).down_revision
    assert isinstance(older, str)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, older)
    engine.dispose()
    initialise(tracking_uri(Tracking(), tmp_path), tmp_path, "demo", [])
    assert sql(tmp_path, "select version_num from alembic_version") == [(head,)]
    (copy,) = tmp_path.glob("mlflow.db.*.bak")
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        (kept,) = connection.execute("select version_num from alembic_version")
    assert kept == (older,)


AT_ONCE = """
import multiprocessing, sys
from pathlib import Path
from experiments.tracking.runs import RunLog
from experiments.tracking.store import initialise, load_mlflow, tracking_uri
from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.config.schema import Tracking
import mlflow.store.tracking.sqlalchemy_store

def start(cell, together, steps):
    together.wait()
    runs = cell.parent.parent
    if runs.name == "fresh":
        initialise(tracking_uri(Tracking(), runs), runs, "demo", ["judge", "seed"])
    with RunLog(load_cell(CellFolder(cell))) as log:
        for step in range(1, steps + 1):  # flushed while others write, and at the end
            log.add(step, step, {"reward/mean": float(step)})

load_mlflow()
fork = multiprocessing.get_context("fork")
steps, cells = int(sys.argv[1]), [Path(cell) for cell in sys.argv[2:]]
for kind in ("runs", "fresh"):
    here = [cell for cell in cells if cell.parent.parent.name == kind]
    together = fork.Barrier(len(here))
    processes = [fork.Process(target=start, args=(cell, together, steps)) for cell in here]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    print(kind, [one.exitcode for one in processes])
"""


@pytest.mark.parametrize(
    ("processes", "steps"), [(3, 4), pytest.param(4, 8, marks=pytest.mark.long)]
)
def test_processes_start_at_once(runs: Path, tmp_path: Path, processes: int, steps: int) -> None:
    """In a store that is there, and in one that the first of them makes."""
    fresh = tmp_path / "fresh"
    begun = {
        place: [cell_of(place, seed=seed) for seed in range(processes)] for place in (runs, fresh)
    }
    begin(runs, *begun[runs])
    folders = [cell.folder for cells in begun.values() for cell in cells]
    child = commands.start_program(AT_ONCE, steps, *folders, stderr=subprocess.STDOUT)
    out, _ = child.communicate(timeout=GENEROUS_S)
    assert out == f"runs {[0] * processes}\nfresh {[0] * processes}\n"
    for place, cells in begun.items():
        assert len(history(place)) == processes * steps
        assert {status_of(place, cell.name) for cell in cells} == {"FINISHED"}
        assert len(sql(place, "select 1 from runs where name = 'demo'")) == 1
        assert sql(place, "pragma integrity_check") == [("ok",)]
        states = [read_json(cell.folder / "status.json") for cell in cells]
        assert not [state for state in states if "tracking_problem" in state]


def test_network_file_systems_get_no_wal(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql(runs, "pragma journal_mode=delete")
    monkeypatch.setattr(store, "network_kind", lambda path: "nfs4")
    initialise(tracking_uri(Tracking(), runs), runs, "demo", [])
    assert sql(runs, "pragma journal_mode") == [("delete",)]


def test_a_server_that_does_not_answer_fails_its_test(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("no such store")
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
        with pytest.raises(AssertionError, match="no such store"):
            wait_for_server("http://127.0.0.1:1/health", ended, log)


@pytest.mark.long
@pytest.mark.slow
def test_printed_command_serves_and_a_remote_server_is_honoured(runs, tmp_path, monkeypatch):
    with served(tracking_uri(Tracking(), runs), tmp_path, monkeypatch) as url:
        for host, answer in ((url[7:], 200), ("evil.example", 403)):
            for page, status in (("version", 200), ("", answer)):
                said = httpx.get(f"{url}/{page}", headers={"Host": host}, timeout=GENEROUS_S)
                assert said.status_code == status
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        cell = cell_of(tmp_path / "elsewhere")
        record(cell, 5)
        logged(cell)
        assert read_json(cell.folder / "mlflow.json")["uri"] == url
        assert history(runs) == expected(cell)
        assert not (tmp_path / "elsewhere" / "mlflow.db").exists()
        words = ("study=demo", f"runs_dir={tmp_path / 'elsewhere'}")
        done = commands.run("experiments.tracking", "rebuild", *words, real=True)
        assert "15 points, 0 sent" in done.stdout
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match="Start that server"):
        initialise(url, tmp_path, "demo", [])


def test_a_report_and_a_figure_go_to_a_bucket(s3, runs):
    pytest.importorskip("boto3", reason="MLflow writes to s3 by it")
    tracking = Tracking(artifacts=f"{s3}/mlflow/")
    uri = tracking_uri(tracking, runs)
    ids = initialise(uri, runs, "demo", [], artifacts_of(tracking))
    report = runs / "demo" / "report"
    report.mkdir(parents=True)
    (report / "report.html").write_text("<p>all</p>"), (report / "drift.svg").write_text("<svg/>")
    assert close_parent(ids, "FINISHED", runs / "demo")
    client = client_of(uri)
    assert client.get_experiment_by_name("demo").artifact_location == f"{s3}/mlflow/demo"
    logged = client.list_artifacts(ids["parent_run_id"], "report")
    assert [item.path for item in logged] == ["report/drift.svg", "report/report.html"]
    fs = fsspec.filesystem("s3")
    place = f"{s3}/mlflow/demo/{ids['parent_run_id']}/artifacts/report/report.html"
    assert fs.cat_file(place) == b"<p>all</p>"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("bucket/mlflow", "=bucket/mlflow is none"),
        ("s3://AKIATESTTESTTESTTEST:very-secret-words@bucket/x", r"holds a key \(not shown\)"),
    ],
)
def test_a_place_of_artifacts_is_a_url_without_keys(place, said):
    with pytest.raises(UserError, match=said) as caught:
        artifacts_of(Tracking(artifacts=place))
    assert "very-secret-words" not in str(caught.value)
    assert artifacts_of(Tracking()) == ""
