"""MLflow as a projection: every test here talks to a real store; the oracle is the store's SQL."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.track import projection, store
from experiments.track.runs import RunLog, close_parent, mark_killed
from experiments.track.store import initialise, load_mlflow, tracking_uri, ui_command, ui_link
from experiments.tracking import main
from study import cells
from study.cells import Cell, make_cell, save_cell
from study.errors import UserError
from study.files import read_json
from study.records import recorded
from study.schema import Endpoint, Judge, Policy, Reward, Study, Task, Tracking
from study.study_file import write_study

CANARY = "sk-test-0123456789abcdef0123456789abcdef"
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, made once: the schema is the slow part."""
    runs = tmp_path_factory.mktemp("template")
    initialise(tracking_uri(Tracking(), runs), runs, "template", [])
    return runs / "mlflow.db"


@pytest.fixture
def runs(tmp_path: Path, template: Path) -> Path:
    """A runs folder with an initialised store."""
    folder = tmp_path / "runs"
    folder.mkdir()
    with (
        contextlib.closing(sqlite3.connect(template)) as old,
        contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as new,
    ):
        old.backup(new)
    return folder


def cell_of(runs: Path, name: str = "sim-fair", seed: int = 0, **changes: Any) -> Cell:
    """A saved cell of study ``demo``; ``changes`` replace fields of the study."""
    study = Study(
        study="demo",
        runs_dir=str(runs),
        seed=seed,
        judge=Judge(name=name, family="simulated", size="none"),
        policy=Policy(name="tiny", size="0.9M"),
        task=Task(name="instruct-mini"),
        tracking=Tracking(flush_steps=3),
    )
    cell = make_cell(dataclasses.asdict(dataclasses.replace(study, **changes)))
    save_cell(cell)
    return cell


def begin(runs: Path, *study_cells: Cell) -> dict[str, str]:
    """What the sweep does before it fans out."""
    ids = initialise(tracking_uri(Tracking(), runs), runs, "demo", ["judge", "seed"])
    write_study(runs / "demo", {"factors": ["judge", "seed"], "mlflow": ids})
    assert all(cell.dir.parent == runs / "demo" for cell in study_cells)
    return ids


def metrics(step: int) -> dict[str, float]:
    return {"reward/mean": step / 3, "policy/length": 2.0 * step, "bias/gap": -0.1 * step}


def record(cell: Cell, steps: int, state: str = "done") -> None:
    """A journal as the recorder leaves it, one line per step, in the past."""
    lines = [
        {"step": step, "time_ms": 1_700_000_000_000 + step, "metrics": metrics(step)}
        for step in range(1, steps + 1)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (cell.dir / "metrics.jsonl").write_text(text)
    cells.set_status(cell.dir, state=state, started=1_699_999_999.0, step=steps)
    if state == "done":
        (cell.dir / "DONE").touch()
        cells.set_status(cell.dir, ended=1_700_000_009.0)


def replay(log: RunLog, cell: Cell) -> None:
    for line in recorded(cell.dir):
        log.add(line["step"], line["time_ms"], line["metrics"])


def sql(runs: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(runs / "mlflow.db", timeout=20)) as connection:
        rows = connection.execute(query, values).fetchall()
        connection.commit()
    return rows


def history(runs: Path) -> list[tuple[Any, ...]]:
    """Every stored point of every run that is not deleted, by run name."""
    return sql(
        runs,
        "select r.name, m.key, m.step, m.timestamp, m.value from metrics m join runs r using "
        "(run_uuid) where r.lifecycle_stage = 'active' order by 1, 2, 3, 4, 5",
    )


def expected(*projected: Cell) -> list[tuple[Any, ...]]:
    """The same list from the journals, by hand."""
    return sorted(
        (cell.name, name, line["step"], line["time_ms"], value)
        for cell in projected
        for line in map(json.loads, (cell.dir / "metrics.jsonl").read_text().splitlines())
        for name, value in line["metrics"].items()
    )


def status_of(runs: Path, name: str) -> str:
    ((status,),) = sql(
        runs, "select status from runs where name = ? and lifecycle_stage = 'active'", name
    )
    return status


def run_id_of(cell: Cell) -> str:
    return read_json(cell.dir / "mlflow.json")["run_id"]


def rebuild(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "experiments.tracking", "rebuild", *words],
        capture_output=True,
        text=True,
        cwd=REPO,
        timeout=300,
    )


# --- where runs go


def test_uri_of_config_wins_over_environment_over_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Tracking(), Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert tracking_uri(Tracking(), Path("runs")) == "http://127.0.0.1:5000"
    given = Tracking(uri="sqlite:///here.db")
    assert tracking_uri(given, Path("runs")) == f"sqlite:///{tmp_path}/here.db"
    given = Tracking(uri="postgresql+psycopg://reader@db.example/mlflow")
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
def test_store_that_cells_cannot_share_is_refused(
    uri: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert CANARY not in str(error.value)
    assert "MLFLOW_TRACKING_PASSWORD" in str(error.value)


def test_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        tracking_uri(Tracking(), tmp_path / "file" / "runs")
    with pytest.raises(UserError, match="cannot be written"):
        tracking_uri(Tracking(uri=f"sqlite:///{tmp_path}"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# --- making the store


def test_initialise_makes_the_study_once(runs: Path) -> None:
    uri = tracking_uri(Tracking(), runs)
    first = initialise(uri, runs, "demo", ["judge"])
    client = load_mlflow().MlflowClient(tracking_uri=uri)
    client.set_terminated(first["parent_run_id"], "FAILED")
    client.delete_experiment(first["experiment_id"])
    client.restore_run(first["parent_run_id"])
    assert initialise(uri, runs, "demo", ["judge"]) == first
    assert status_of(runs, "demo") == "RUNNING"
    assert sql(runs, "pragma journal_mode") == [("wal",)]
    ((location,),) = sql(runs, "select artifact_location from experiments where name = 'demo'")
    assert location.removeprefix("file://") == str(runs / "mlartifacts" / "demo")
    assert initialise(uri, runs, "other", []) != first


def test_every_study_has_a_chart_view_by_judge_family(runs: Path) -> None:
    ids = begin(runs)
    assert ui_link(ids) == (
        f"http://127.0.0.1:5000/#/experiments/{ids['experiment_id']}/runs"
        "?compareRunsMode=CHART&viewStateShareKey=judge.family"
    )
    assert ui_link({**ids, "uri": "https://mlflow.example/"}).startswith("https://mlflow.example/#")
    ((view,),) = sql(
        runs,
        "select value from experiment_tags where key = 'mlflow.sharedViewState.judge.family' "
        "and experiment_id = ?",
        ids["experiment_id"],
    )
    (group,) = json.loads(view)["groupBy"]["groupByKeys"]
    assert group == {"mode": "tag", "groupByData": "judge.family"}


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
    with pytest.raises(UserError, match="of something else or of a newer MLflow"):
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
        assert connection.execute("select version_num from alembic_version").fetchall() == [
            (older,)
        ]


SIX = """
import multiprocessing, sys
from pathlib import Path
from experiments.track.runs import RunLog
from experiments.track.store import initialise, load_mlflow, tracking_uri
from study.cells import load_cell
from study.schema import Tracking
import mlflow.store.tracking.sqlalchemy_store

def start(cell, together):
    together.wait()
    if sys.argv[1] == "fresh":
        runs = cell.parent.parent
        initialise(tracking_uri(Tracking(), runs), runs, "demo", ["judge", "seed"])
    with RunLog(load_cell(cell)) as log:
        for step in range(1, 21):
            log.add(step, step, {"reward/mean": float(step)})

load_mlflow()
fork = multiprocessing.get_context("fork")
together = fork.Barrier(6)
six = [fork.Process(target=start, args=(Path(cell), together)) for cell in sys.argv[2:]]
for one in six:
    one.start()
for one in six:
    one.join()
print([one.exitcode for one in six])
"""


@pytest.mark.parametrize("kind", ["initialised", "fresh"])
def test_six_processes_start_at_once(kind: str, runs: Path) -> None:
    if kind == "fresh":
        (runs / "mlflow.db").unlink()
    six = [cell_of(runs, seed=seed) for seed in range(6)]
    if kind == "initialised":
        begin(runs, *six)
    done = subprocess.run(
        [sys.executable, "-c", SIX, kind, *(str(cell.dir) for cell in six)],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.stdout == "[0, 0, 0, 0, 0, 0]\n"
    assert len(history(runs)) == 6 * 20
    assert {status_of(runs, cell.name) for cell in six} == {"FINISHED"}
    assert len(sql(runs, "select 1 from runs where name = 'demo'")) == 1
    assert sql(runs, "pragma integrity_check") == [("ok",)]
    assert not [cell for cell in six if "tracking_problem" in read_json(cell.dir / "status.json")]


# --- the live run


def test_run_carries_every_axis_as_parameter_and_tag(runs: Path) -> None:
    cell = cell_of(
        runs,
        "sim-verbose",
        seed=7,
        reward=Reward(name="mixed", truth_weight=0.25),
        factors=["judge", "seed", "reward.truth_weight"],
    )
    ids = begin(runs, cell)
    with RunLog(cell):
        run = load_mlflow().MlflowClient(tracking_uri=ids["uri"]).get_run(run_id_of(cell))
    assert run.info.status == "RUNNING"
    axes = {
        "judge.name": "sim-verbose",
        "judge.family": "simulated",
        "judge.size": "none",
        "judge.grading": "likert",
        "judge.on_failure": "unscored",
        "reward": "mixed",
        "reward.truth_weight": "0.25",
        "policy": "tiny",
        "policy.family": "-",
        "policy.size": "0.9M",
        "task": "instruct-mini",
        "seed": "7",
        "scaffold": "none",
        "cell": cell.name,
        "study": "demo",
    }
    assert {key: run.data.params.get(key) for key in axes} == axes
    assert {key: run.data.tags.get(key) for key in axes} == axes
    assert run.data.params["trainer.learning_rate"] == "0.001"
    assert run.data.tags["mlflow.parentRunId"] == ids["parent_run_id"]
    assert run.data.tags["judgedrift.pid"] == str(os.getpid())
    assert run.data.tags["judgedrift.host"] == socket.gethostname()
    assert "T" in run.data.tags["judgedrift.heartbeat"]


def test_points_wait_for_the_flush(runs: Path) -> None:
    cell = cell_of(runs)  # flush_steps = 3
    begin(runs, cell)
    record(cell, 7, "running")
    with RunLog(cell) as log:
        lines = recorded(cell.dir)
        for line in lines[:2]:
            log.add(line["step"], line["time_ms"], line["metrics"])
        assert history(runs) == []
        for line in lines[2:]:
            log.add(line["step"], line["time_ms"], line["metrics"])
        assert {row[2] for row in history(runs)} == {1, 2, 3, 4, 5, 6}
    assert history(runs) == expected(cell)


def test_a_flush_of_thousands_is_cut_into_requests(runs: Path) -> None:
    cell = cell_of(runs)
    begin(runs, cell)
    with RunLog(cell) as log:
        log.add(1, 5, {f"bias/feature-{index}": index / 7 for index in range(2500)})
    assert len(history(runs)) == 2500
    assert "tracking_problem" not in read_json(cell.dir / "status.json")


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "FINISHED"), (ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")],
)
def test_how_a_cell_ends_is_how_its_run_ends(
    error: type[BaseException] | None, status: str, runs: Path
) -> None:
    cell = cell_of(runs)
    begin(runs, cell)
    with contextlib.suppress(ValueError, KeyboardInterrupt), RunLog(cell) as log:
        log.add(1, 5, metrics(1))
        if error:
            raise error
    assert status_of(runs, cell.name) == status
    assert len(history(runs)) == 3


def test_resume_keeps_the_run_and_repeats_no_point(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cell_of(runs)
    begin(runs, cell)
    record(cell, 9)
    log = RunLog(cell)  # killed: never finished, steps 7 and 8 still in the buffer
    for line in recorded(cell.dir)[:8]:
        log.add(line["step"], line["time_ms"], line["metrics"])
    first = run_id_of(cell)
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # would win over the parent in mlflow's own API
    endpoint = Endpoint(url="http://127.0.0.1:8000/v1", deadline_s=1.0)
    judge = dataclasses.replace(cell.config.judge, endpoint=endpoint)
    moved = cell_of(runs, judge=judge)
    assert moved.dir == cell.dir  # how a judge is reached is not what a cell is
    with RunLog(moved) as again:
        replay(again, moved)
    assert run_id_of(cell) == first
    assert history(runs) == expected(cell)
    assert status_of(runs, cell.name) == "FINISHED"
    assert len(sql(runs, "select 1 from runs where name = ?", cell.name)) == 1


def test_lost_run_id_is_found_again(runs: Path) -> None:
    cell = cell_of(runs)
    begin(runs, cell)
    record(cell, 4)
    with RunLog(cell) as log:
        replay(log, cell)
    first = run_id_of(cell)
    (cell.dir / "mlflow.json").unlink()
    with RunLog(cell) as log:
        replay(log, cell)
    assert run_id_of(cell) == first
    assert history(runs) == expected(cell)


def test_failure_of_mlflow_does_not_end_training_and_is_repaired(
    runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cell = cell_of(runs)
    begin(runs, cell)
    record(cell, 12)
    with RunLog(cell) as log:
        sql(runs, "alter table metrics rename to hidden")
        replay(log, cell)
        assert "no such table" in read_json(cell.dir / "status.json")["tracking_problem"]
    warned = [entry for entry in caplog.records if "rebuild study=demo" in entry.getMessage()]
    assert len(warned) == 1
    assert status_of(runs, cell.name) == "RUNNING"
    sql(runs, "alter table hidden rename to metrics")
    assert main(["rebuild", "study=demo", f"runs_dir={runs}"]) == 0
    assert history(runs) == expected(cell)
    assert status_of(runs, cell.name) == "FINISHED"
    assert read_json(cell.dir / "status.json")["tracking_problem"] == ""


def test_failure_at_the_start_is_made_good_at_the_end(runs: Path) -> None:
    cell = cell_of(runs)
    begin(runs, cell)
    record(cell, 4)
    sql(runs, "alter table experiments rename to hidden")
    with RunLog(cell) as log:
        assert read_json(cell.dir / "status.json")["tracking_problem"]
        replay(log, cell)
        sql(runs, "alter table hidden rename to experiments")
    assert history(runs) == expected(cell)
    assert read_json(cell.dir / "status.json")["tracking_problem"] == ""


def test_tracking_off_leaves_no_trace(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, tracking=Tracking(enabled=False))
    with RunLog(cell) as log:
        log.add(1, 5, metrics(1))
    assert not (tmp_path / "mlflow.db").exists()
    assert not (cell.dir / "mlflow.json").exists()


def test_no_secret_reaches_the_store(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "plain-looking-but-secret")
    cell = cell_of(
        runs,
        judge=Judge(
            name="real",
            revision="as plain-looking-but-secret says",
            endpoint=Endpoint(
                url=f"https://me:{CANARY}@judge.example:8443/v1?key=hush-in-query",
                api_key_env="JUDGE_KEY",
                extra_body={"user": "hush-in-body"},
                start_command="serve --token hush-in-command",
            ),
        ),
        task=Task(name="file", path=f"s3://me:{CANARY}@bucket", options={"api_key": "hush-named"}),
        policy=Policy(name="p", family=f"Bearer {CANARY}"),
    )
    begin(runs, cell)
    with RunLog(cell):
        pass
    params = dict(sql(runs, "select key, value from params"))
    assert params["judge.endpoint.url"] == "https://judge.example:8443/v1"
    assert params["judge.revision"] == "as *** says"
    assert params["task.options.api_key"] == "***"
    with contextlib.closing(sqlite3.connect(runs / "mlflow.db")) as connection:
        dump = "\n".join(connection.iterdump())
    assert "judge.example" in dump
    for secret in (CANARY, "plain-looking", "hush-"):
        assert secret not in dump


def test_long_values_are_cut_and_odd_keys_kept(runs: Path) -> None:
    cell = cell_of(runs, task=Task(name="x", options={"text": "w" * 9000, "a b(c)//d": 1}))
    params = projection.params(cell)
    assert params["task.options.text"] == "w" * 500
    assert params["task.options.a b_c_/d"] == "1"
    begin(runs, cell)
    with RunLog(cell):
        pass
    assert "tracking_problem" not in read_json(cell.dir / "status.json")


@given(
    st.dictionaries(
        st.text("abc/_- .", min_size=1).filter(lambda name: name.strip("/. ")),
        st.one_of(st.none(), st.floats(), st.integers(-9, 9)),
    )
)
def test_every_value_is_sent_or_counted(values: dict[str, float | None]) -> None:
    found = projection.points(3, 5, values)
    assert all(math.isfinite(point.value) for point in found)
    bad = [value for value in values.values() if value is None or not math.isfinite(value)]
    counted = [point.value for point in found if point.name == projection.NONFINITE]
    assert counted == ([float(len(bad))] if bad else [])
    assert len(found) - len(counted) == len(values) - len(bad)
    assert {(point.time_ms, point.step) for point in found} <= {(5, 3)}


# --- rebuild


def test_rebuild_restores_a_deleted_store_and_is_idempotent(runs: Path) -> None:
    two = [cell_of(runs, judge) for judge in ("sim-fair", "sim-verbose")]
    begin(runs, *two)
    for cell in two:
        record(cell, 11)
        with RunLog(cell) as log:
            replay(log, cell)
    before = history(runs)
    assert before == expected(*two)
    for path in runs.glob("mlflow.db*"):
        path.unlink()
    (runs / "demo" / "report").mkdir()
    (runs / "demo" / "report" / "bias_report.html").write_text("<p>bias</p>")

    first = rebuild("study=demo", f"runs_dir={runs}")
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == sorted(cell.name for cell in two)
    assert all("done: run " in line and "33 points, 33 sent" in line for line in lines)
    assert history(runs) == before
    assert {status_of(runs, name) for name in ("demo", *(cell.name for cell in two))} == {
        "FINISHED"
    }
    assert sql(runs, "select start_time, end_time from runs where name = ?", two[0].name) == [
        (1_699_999_999_000, 1_700_000_009_000)
    ]
    (report,) = (runs / "mlartifacts" / "demo").glob("*/artifacts/report/bias_report.html")
    parent = read_json(runs / "demo" / "study.json")["mlflow"]["parent_run_id"]
    assert report.parts[-4] == parent

    second = rebuild("study=demo", f"runs_dir={runs}")
    assert second.stdout.splitlines() == [line.replace("33 sent", "0 sent") for line in lines]
    assert history(runs) == before


def test_rebuild_fixes_states(runs: Path) -> None:
    killed, failed, new, live = (cell_of(runs, seed=seed) for seed in range(4))
    begin(runs, killed, failed, new, live)
    for cell, state in ((killed, "running"), (failed, "failed"), (live, "running")):
        record(cell, 3, state)
        RunLog(cell)  # and never finished
    with (killed.dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "time_ms": 17000')  # cut by the kill
    held = cells.lock(live.dir)
    assert held is not None
    assert main(["rebuild", "study=demo", f"runs_dir={runs}"]) == 0
    assert status_of(runs, killed.name) == "KILLED"
    assert status_of(runs, failed.name) == "FAILED"
    assert status_of(runs, live.name) == "RUNNING"
    assert status_of(runs, "demo") == "RUNNING"
    assert not sql(runs, "select 1 from runs where name = ?", new.name)
    held.close()
    assert main(["rebuild", "study=demo", f"runs_dir={runs}"]) == 0
    assert status_of(runs, live.name) == "KILLED"
    assert status_of(runs, "demo") == "FAILED"
    assert len(history(runs)) == 3 * 9


def test_rebuild_replaces_a_run_of_other_points_and_reports_a_broken_cell(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell, broken = cell_of(runs), cell_of(runs, seed=1)
    begin(runs, cell, broken)
    record(cell, 5)
    record(broken, 5)
    (broken.dir / "config.yaml").write_text("study: demo\nno_such_key: 1\n")
    with RunLog(cell) as log:
        replay(log, cell)
        log.add(6, 7, {"reward/mean": 0.5})  # a step that the records dropped after a crash
    first = run_id_of(cell)
    assert main(["rebuild", "study=demo", f"runs_dir={runs}"]) == 1
    said = capsys.readouterr().out
    assert f"{broken.name}: broken: Damaged" in said
    assert "15 points, 15 sent, replacing" in said
    assert run_id_of(cell) != first
    assert history(runs) == expected(cell)


@pytest.mark.parametrize(
    "words", [[], ["rebuild"], ["rebuild", "study=none-such"], ["rebuild", "study=a", "b=c"]]
)
def test_wrong_command_line_says_what_to_type(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    cell_of(tmp_path / "runs")
    assert main(words) == 2
    assert "rebuild study=NAME" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "mlflow.db").exists()


# --- the parent, the reaper and the user interface


def test_mark_killed_ends_only_what_runs(runs: Path) -> None:
    cell, done = cell_of(runs), cell_of(runs, seed=1)
    begin(runs, cell, done)
    assert not mark_killed(cell.dir, "no run yet")
    RunLog(cell)
    with RunLog(done):
        pass
    assert mark_killed(cell.dir, "exit code -9")
    assert not mark_killed(done.dir, "exit code -9")
    assert not mark_killed(cell.dir, "again")
    assert status_of(runs, cell.name) == "KILLED"
    assert status_of(runs, done.name) == "FINISHED"
    assert sql(runs, "select value from tags where key = 'judgedrift.reason'") == [
        ("exit code -9",)
    ]


def test_close_parent_keeps_the_report_under_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    ids = begin(runs)
    report = tmp_path / "report.html"
    report.write_text("<p>bias</p>")
    assert close_parent(ids, "FINISHED", [report])
    assert status_of(runs, "demo") == "FINISHED"
    stored = runs / "mlartifacts" / "demo" / ids["parent_run_id"] / "artifacts/report/report.html"
    assert stored.read_text() == "<p>bias</p>"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs"]
    assert not close_parent(ids, "FINISHED", [tmp_path / "gone.html"])
    assert "gone.html" in caplog.text


def test_network_file_systems_get_no_wal() -> None:
    mounts = "disk / ext4 rw 0 0\nhost:/home /home nfs4 rw 0 0\ntmp /home/fast tmpfs rw 0 0\n"
    answers = {
        "/data/runs": False,
        "/home/me/runs": True,
        "/home/fast/runs": False,
        "/homes": False,
    }
    for path, answer in answers.items():
        assert store._on_network(Path(path), mounts) is answer


@contextlib.contextmanager
def served(uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The server that `ui_command` starts, on a free port, ended by its own process group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(store, "UI_PORT", port)
    monkeypatch.chdir(folder)
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            f"exec env {ui_command(uri)}",
            shell=True,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        limit = time.monotonic() + 120
        while time.monotonic() < limit:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


@pytest.mark.slow
def test_printed_command_serves_and_a_remote_server_is_honoured(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tracking_uri(Tracking(), runs), tmp_path, monkeypatch) as url:
        for host, answer in ((url[7:], 200), ("evil.example", 403)):
            request = urllib.request.Request(f"{url}/version", headers={"Host": host})
            page = urllib.request.Request(f"{url}/", headers={"Host": host})
            assert urllib.request.urlopen(request).status == 200
            try:
                assert urllib.request.urlopen(page).status == answer
            except urllib.error.HTTPError as error:
                assert error.code == answer
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        cell = cell_of(tmp_path / "elsewhere")
        record(cell, 5)
        with RunLog(cell) as log:
            replay(log, cell)
        assert read_json(cell.dir / "mlflow.json")["uri"] == url
        assert history(runs) == expected(cell)
        assert not (tmp_path / "elsewhere" / "mlflow.db").exists()
        done = rebuild("study=demo", f"runs_dir={tmp_path / 'elsewhere'}")
        assert "15 points, 0 sent" in done.stdout
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match="Start that server"):
        initialise(url, tmp_path, "demo", [])


def test_ui_command_stays_on_this_machine(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    command = ui_command(uri)
    for part in (
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false",
        "MLFLOW_DISABLE_TELEMETRY=true",
        f"--backend-store-uri {uri}",
        "--host 127.0.0.1",
        "--allowed-hosts localhost:5000,127.0.0.1:5000",
    ):
        assert part in command
    assert "http://tracking.example" in ui_command("http://tracking.example")
