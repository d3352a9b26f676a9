"""A study's cells, their records, and the runs that a real MLflow store holds of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.tracking.pages import typed_command
from experiments.tracking.runs import RunLog
from experiments.tracking.store import initialise, tracking_uri
from study.cell.cells import Cell, make_cell, save_cell
from study.cell.study_file import write_study
from study.config.schema import Judge, Policy, Study, Task, Tracking
from study.system.files import read_json, write_json
from tests import commands
from tests.conftest import free_port
from tests.waiting import GENEROUS_S, wait_for


def cell_of(runs: Path, name: str = "sim-fair", seed: int = 0, **changes: Any) -> Cell:
    """A saved cell of study ``demo``; ``changes`` replace fields of the study."""
    study = Study(
        study="demo", runs_dir=str(runs), seed=seed, tracking=Tracking(flush_steps=3),
        judge=Judge(name=name, family="simulated", size="none"),
        policy=Policy(name="tiny", size="0.9M"), task=Task(name="instruct-mini"),
    )  # fmt: skip
    cell = make_cell(dataclasses.asdict(dataclasses.replace(study, **changes)))
    save_cell(cell)
    return cell


def copy_store(store: Path, place: Path) -> None:
    """Copy a store while others may have it open; its new folder is made."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.closing(sqlite3.connect(store)) as old,
        contextlib.closing(sqlite3.connect(place)) as new,
    ):
        old.backup(new)


def copy_runs(runs: Path, place: Path) -> None:
    """Copy a folder of studies with its store, which then says the new place for the old one."""
    shutil.copytree(runs, place, symlinks=True, ignore=shutil.ignore_patterns("mlflow.db*"))
    for file in place.rglob("*.json"):
        text = file.read_text()
        if str(runs) in text:  # another keeps its time
            content = json.loads(text.replace(str(runs), str(place)))
            signed = bool(content.pop("file_digest", ""))
            write_json(file, content, signed=signed)
    copy_store(runs / "mlflow.db", place / "mlflow.db")
    columns = "select t.name, c.name from sqlite_master t join pragma_table_info(t.name) c"
    for table, column in sql(place, f"{columns} where t.type = 'table'"):
        sql(
            place,
            f'update "{table}" set "{column}" = replace("{column}", ?1, ?2) '
            f'where instr("{column}", ?1)',
            str(runs),
            str(place),
        )


def begin(runs: Path, *study_cells: Cell) -> dict[str, str]:
    """What the sweep does before it fans out."""
    ids = initialise(tracking_uri(Tracking(), runs), runs, "demo", ["judge", "seed"])
    write_study(runs / "demo", {"factors": ["judge", "seed"], "mlflow": ids})
    assert all(cell.folder.study_dir == runs / "demo" for cell in study_cells)
    return ids


def metrics(step: int) -> dict[str, float]:
    return {"reward/mean": step / 3, "policy/length": 2.0 * step, "bias/gap": -0.1 * step}


def record(cell: Cell, steps: int, state: str = "done") -> None:
    """A journal as the recorder leaves it, one line per step, in the past."""
    lines = [
        {"step": step, "time_ms": 1_700_000_000_000 + step, "metrics": metrics(step)}
        for step in range(1, steps + 1)
    ]
    (cell.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cell.folder.set_status(state=state, started=1_699_999_999.0, step=steps)
    if state == "done":
        (cell.folder / "DONE").touch()
        cell.folder.set_status(ended=1_700_000_009.0)


def replay(log: RunLog, cell: Cell) -> None:
    for line in cell.folder.lines():
        log.add(line["step"], line["time_ms"], line["metrics"])


def logged(*projected: Cell) -> None:
    """Log the run of each cell from its journal."""
    for cell in projected:
        with RunLog(cell) as log:
            replay(log, cell)


WRITERS = ("host", "pid", "boot_id", "heartbeat")
"""What a live run says of its process, which a rebuild cannot know."""


def everything(client: Any, experiment_id: str) -> dict[str, Any]:
    """All that MLflow has of a study, under names instead of the ids that it gives by chance, and
    without the time at which a run ended and where files lie."""
    experiment = client.get_experiment(experiment_id)
    runs = client.search_runs([experiment_id])
    names = {run.info.run_id: run.info.run_name for run in runs}
    models = {}
    for model in client.search_logged_models([experiment_id]):
        values = sorted((m.key, m.value, m.step, m.dataset_digest) for m in model.metrics or [])
        models[model.model_id] = (model.name, names[model.source_run_id], model.tags, values)
    found: dict[str, Any] = {
        "experiment": dict(experiment.tags),
        "models": sorted(models.values(), key=str),
    }
    for run in runs:
        run_id, data = run.info.run_id, run.data
        tags = {
            key: names.get(value, value)
            for key, value in data.tags.items()
            if key not in {f"judgedrift.{writer}" for writer in WRITERS}
        }
        outputs = run.outputs.model_outputs if run.outputs else []
        found[run.info.run_name] = {
            "state": (run.info.status, run.info.start_time),
            "params": data.params,
            "tags": tags,
            "metrics": {name: _history(client, run_id, name) for name in data.metrics},
            "files": _files(run.info.artifact_uri),
            "data": [
                (dict(each.dataset), sorted((tag.key, tag.value) for tag in each.tags))
                for each in run.inputs.dataset_inputs
            ],
            "outputs": sorted((models[each.model_id][0], each.step) for each in outputs),
            "calls": _calls(client, experiment_id, run_id),
        }
    return found


def _history(client: Any, run_id: str, name: str) -> list[tuple[float, int, int]]:
    points = client.get_metric_history(run_id, name)
    return sorted((point.value, point.timestamp, point.step) for point in points)


def _files(artifact_uri: str) -> dict[str, bytes]:
    place = Path(artifact_uri.removeprefix("file://"))
    paths = (path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in paths}


def _calls(client: Any, experiment_id: str, run_id: str) -> list[Any]:
    calls = []
    for trace in client.search_traces(locations=[experiment_id], run_id=run_id):
        ours = {key: value for key, value in trace.info.tags.items() if "mlflow." not in key}
        spans = []
        for span in trace.data.spans:
            about = {key: value for key, value in span.attributes.items() if "mlflow" not in key}
            times = (span.start_time_ns, span.end_time_ns)
            spans.append((span.name, span.inputs, span.outputs, str(span.status), times, about))
        calls.append((ours, trace.info.state.value, spans))
    return sorted(calls, key=str)


def sql(runs: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(runs / "mlflow.db", timeout=GENEROUS_S)) as connection:
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
        for line in map(json.loads, (cell.folder / "metrics.jsonl").read_text().splitlines())
        for name, value in line["metrics"].items()
    )


def status_of(runs: Path, name: str) -> str:
    ((status,),) = sql(
        runs, "select status from runs where name = ? and lifecycle_stage = 'active'", name
    )
    return status


def run_id_of(cell: Cell) -> str:
    return read_json(cell.folder / "mlflow.json")["run_id"]


def rebuild(*words: str, real: bool = False) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own as a user runs it."""
    return commands.run("experiments.tracking", "rebuild", *words, real=real)


@contextlib.contextmanager
def served(uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The server that `typed_command` starts, on a free port, ended by its own process group."""
    port = free_port()
    monkeypatch.chdir(folder)
    with (folder / "server.log").open("w") as log:
        command = f"exec env {typed_command(uri, port)}"
        server = subprocess.Popen(
            command, shell=True, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for_server(f"http://127.0.0.1:{port}/health", server, folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(GENEROUS_S)


def wait_for_server(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Return when a server answers; the test fails, with its log, where it ends before."""

    def answers() -> bool:
        assert server.poll() is None, f"the server of {address} ended:\n{log.read_text()[-2000:]}"
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            return False
        return True

    wait_for(answers, f"an answer of {address}")
