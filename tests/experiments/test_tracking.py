"""The run of a cell in MLflow, live and rebuilt; the oracle is the SQL of a real store."""

import contextlib
import dataclasses
import math
import os
import socket
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.tracking import projection
from experiments.tracking.__main__ import main
from experiments.tracking.runs import RunLog, mark_killed
from experiments.tracking.store import load_mlflow
from study.cell.cells import Cell
from study.config.schema import Endpoint, Judge, Policy, Reward, Task, Tracking
from study.system.files import read_json
from tests.conftest import came_of
from tests.experiments.mlflow_runs import (
    begin,
    cell_of,
    expected,
    history,
    logged,
    metrics,
    rebuild,
    record,
    replay,
    run_id_of,
    sql,
    status_of,
)

CANARY = "sk-test-0123456789abcdef0123456789abcdef"


@pytest.fixture
def cell(runs: Path) -> Cell:
    """A cell whose study is in the store."""
    made = cell_of(runs)
    begin(runs, made)
    return made


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
        "judge.name": "sim-verbose", "judge.family": "simulated", "judge.size": "none",
        "judge.grading": "likert", "judge.on_failure": "unscored", "reward": "mixed",
        "reward.truth_weight": "0.25", "policy": "tiny", "policy.family": "-",
        "policy.size": "0.9M", "task": "instruct-mini", "seed": "7", "scaffold": "none",
        "cell": cell.name, "study": "demo",
    }  # fmt: skip
    assert run.data.params.items() >= (axes | {"trainer.learning_rate": "0.001"}).items()
    parent = {"mlflow.parentRunId": ids["parent_run_id"]}
    writer = {"judgedrift.pid": str(os.getpid()), "judgedrift.host": socket.gethostname()}
    assert run.data.tags.items() >= (axes | parent | writer).items()
    assert "T" in run.data.tags["judgedrift.heartbeat"]


def test_points_wait_for_the_flush(runs: Path, cell: Cell) -> None:
    record(cell, 7, "running")  # flush_steps = 3
    with RunLog(cell) as log:
        for line in cell.folder.lines():
            log.add(line["step"], line["time_ms"], line["metrics"])
            assert {row[2] for row in history(runs)} == set(range(1, line["step"] // 3 * 3 + 1))
    assert history(runs) == expected(cell)


def test_a_flush_of_thousands_is_cut_into_requests(runs: Path, cell: Cell) -> None:
    with RunLog(cell) as log:
        log.add(1, 5, {f"bias/feature-{index}": index / 7 for index in range(2500)})
    assert len(history(runs)) == 2500
    assert "tracking_problem" not in read_json(cell.folder / "status.json")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "FINISHED"),
        (ValueError(), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (came_of(KeyboardInterrupt(), ValueError()), "KILLED"),
    ],
)
def test_how_a_cell_ends_is_how_its_run_ends(error, status, runs, cell) -> None:
    with contextlib.suppress(ValueError, KeyboardInterrupt), RunLog(cell) as log:
        log.add(1, 5, metrics(1))
        if error:
            raise error
    assert status_of(runs, cell.name) == status and len(history(runs)) == 3


def test_resume_keeps_the_run_and_repeats_no_point(runs, cell, monkeypatch) -> None:
    record(cell, 9)
    log = RunLog(cell)  # killed: never finished, steps 7 and 8 still in the buffer
    for line in cell.folder.lines()[:8]:
        log.add(line["step"], line["time_ms"], line["metrics"])
    first = run_id_of(cell)
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # would win over the parent in mlflow's own API
    endpoint = Endpoint(url="http://127.0.0.1:8000/v1", deadline_s=1.0)
    moved = cell_of(runs, judge=dataclasses.replace(cell.config.judge, endpoint=endpoint))
    assert moved.folder == cell.folder  # how a judge is reached is not what a cell is
    logged(moved)
    assert run_id_of(cell) == first and history(runs) == expected(cell)
    assert status_of(runs, cell.name) == "FINISHED"
    assert len(sql(runs, "select 1 from runs where name = ?", cell.name)) == 1


def test_lost_run_id_is_found_again(runs: Path, cell: Cell) -> None:
    record(cell, 4)
    logged(cell)
    first = run_id_of(cell)
    (cell.folder / "mlflow.json").unlink()
    logged(cell)
    assert run_id_of(cell) == first and history(runs) == expected(cell)


def test_failure_of_mlflow_does_not_end_training_and_is_repaired(runs, cell, caplog) -> None:
    record(cell, 12)
    with RunLog(cell) as log:
        sql(runs, "alter table metrics rename to hidden")
        replay(log, cell)
        assert "no such table" in read_json(cell.folder / "status.json")["tracking_problem"]
    warned = [entry for entry in caplog.records if "rebuild study=demo" in entry.getMessage()]
    assert len(warned) == 1
    assert status_of(runs, cell.name) == "RUNNING"
    sql(runs, "alter table hidden rename to metrics")
    assert main(["rebuild", "study=demo", f"runs_dir={runs}"]) == 0
    assert history(runs) == expected(cell) and status_of(runs, cell.name) == "FINISHED"
    assert read_json(cell.folder / "status.json")["tracking_problem"] == ""


def test_failure_at_the_start_is_made_good_at_the_end(runs: Path, cell: Cell) -> None:
    record(cell, 4)
    sql(runs, "alter table experiments rename to hidden")
    with RunLog(cell) as log:
        assert read_json(cell.folder / "status.json")["tracking_problem"]
        replay(log, cell)
        sql(runs, "alter table hidden rename to experiments")
    assert history(runs) == expected(cell)
    assert read_json(cell.folder / "status.json")["tracking_problem"] == ""


def test_tracking_off_leaves_no_trace(tmp_path: Path) -> None:
    with RunLog(cell_of(tmp_path, tracking=Tracking(enabled=False))) as log:
        log.add(1, 5, metrics(1))
    assert not list(tmp_path.rglob("mlflow.*"))


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
    found = [word for word in ("judge.example", CANARY, "plain-looking", "hush-") if word in dump]
    assert found == ["judge.example"]


def test_long_values_are_cut_and_odd_keys_kept(runs: Path) -> None:
    cell = cell_of(runs, task=Task(name="x", options={"text": "w" * 9000, "a b(c)//d": 1}))
    params = projection.params(cell)
    assert params["task.options.text"] == "w" * 500
    assert params["task.options.a b_c_/d"] == "1"
    begin(runs, cell)
    with RunLog(cell):
        pass
    assert "tracking_problem" not in read_json(cell.folder / "status.json")


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


def test_rebuild_restores_a_deleted_store_and_is_idempotent(runs: Path) -> None:
    two = [cell_of(runs, judge) for judge in ("sim-fair", "sim-verbose")]
    begin(runs, *two)
    for cell in two:
        record(cell, 11)
    logged(*two)
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
    for name in ("demo", *(cell.name for cell in two)):
        assert status_of(runs, name) == "FINISHED"
    times = "select start_time, end_time from runs where name = ?"
    for name in (two[0].name, "demo"):
        assert sql(runs, times, name) == [(1_699_999_999_000, 1_700_000_009_000)]
    (report,) = (runs / "mlartifacts" / "demo").glob("*/artifacts/report/bias_report.html")
    assert report.parts[-4] == read_json(runs / "demo" / "study.json")["mlflow"]["parent_run_id"]
    sql(runs, "update runs set start_time = start_time + 86400000 where name = 'demo'")
    second = rebuild("study=demo", f"runs_dir={runs}")
    ((began, ended),) = sql(runs, times, "demo")
    assert began == ended  # it is no later study, and none of a negative duration
    assert second.stdout.splitlines() == [line.replace("33 sent", "0 sent") for line in lines]
    assert history(runs) == before


def test_rebuild_fixes_states(runs: Path) -> None:
    killed, failed, new, live = (cell_of(runs, seed=seed) for seed in range(4))
    begin(runs, killed, failed, new, live)
    for cell, state in ((killed, "running"), (failed, "failed"), (live, "running")):
        record(cell, 3, state)
        RunLog(cell)  # and never finished
    with (killed.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "time_ms": 17000')  # cut by the kill
    names = [killed.name, failed.name, live.name, "demo"]
    with live.folder.lock() or pytest.fail("the cell is held"):
        assert main(["rebuild", "study=demo", f"runs_dir={runs}"]) == 0
        states = [status_of(runs, name) for name in names]
        assert states == ["KILLED", "FAILED", "RUNNING", "RUNNING"]
        assert not sql(runs, "select 1 from runs where name = ?", new.name)
    assert main(["rebuild", "study=demo", f"runs_dir={runs}"]) == 0
    states = [status_of(runs, name) for name in names]
    assert states == ["KILLED", "FAILED", "KILLED", "FAILED"]
    assert len(history(runs)) == 3 * 9


def test_rebuild_replaces_a_run_of_other_points_and_reports_a_broken_cell(runs, cell, capsys):
    broken = cell_of(runs, seed=1)
    for each in (cell, broken):
        record(each, 5)
    (broken.folder / "config.yaml").write_text("study: demo\nno_such_key: 1\n")
    with RunLog(cell) as log:
        replay(log, cell)
        log.add(6, 7, {"reward/mean": 0.5})  # a step that the records dropped after a crash
    first = run_id_of(cell)
    assert main(["rebuild", "study=demo", f"runs_dir={runs}"]) == 1
    said = capsys.readouterr().out
    assert f"{broken.name}: broken: Damaged" in said and "15 points, 15 sent, replacing" in said
    assert run_id_of(cell) != first and history(runs) == expected(cell)


def test_mark_killed_ends_only_what_runs(runs: Path, cell: Cell) -> None:
    done = cell_of(runs, seed=1)
    assert not mark_killed(cell.folder, "no run yet")
    RunLog(cell)
    with RunLog(done):
        pass
    assert mark_killed(cell.folder, "exit code -9")
    assert not mark_killed(done.folder, "exit code -9")
    assert not mark_killed(cell.folder, "again")
    assert [status_of(runs, each.name) for each in (cell, done)] == ["KILLED", "FINISHED"]
    ((reason,),) = sql(runs, "select value from tags where key = 'judgedrift.reason'")
    assert reason == "exit code -9"
