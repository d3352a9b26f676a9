"""The runs of a study in MLflow: opened once per cell, sent to, and ended."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.tracking import projection, summary
from experiments.tracking.contents import send_contents
from experiments.tracking.projection import Point
from experiments.tracking.store import artifacts_of, client_of, initialise, tracking_uri
from experiments.tracking.traces import Lost, send_traces
from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import CellFolder, study_cells
from study.cell.parts import left_out
from study.cell.study_file import read_study
from study.cell.verify import read_form
from study.screen import visible
from study.system import stopping
from study.system.clock import boot
from study.system.files import Damaged, read_left, say, write_json
from study.system.secrets import redact

BATCH = 990
"""Points of one request; the server takes 1,000 entities, and the heartbeat tags ride along."""
MOST_LOOKED_AT = 100
"""Cells whose traces are looked for when a study ends; a rebuild looks for those of all."""
LONGEST_TAG = 300
PAUSE_S = 60.0
"""How long nothing is sent after a failure, at least."""

_log = logging.getLogger(__name__)


def open_run(client: Any, ids: dict[str, str], cell: Cell) -> tuple[str, int]:
    """The run of ``cell``, made where there is none: its id, and the last step sent, else -1."""
    from mlflow.entities import Param, RunTag
    from mlflow.exceptions import MlflowException

    last = kept_run(cell.folder)
    run = None
    if last.get("uri") == ids["uri"]:
        with contextlib.suppress(MlflowException):
            run = client.get_run(last["run_id"])
    if run is None:
        last = {}
        parent = f"tags.`mlflow.parentRunId` = '{ids['parent_run_id']}'"
        runs = client.search_runs(
            [ids["experiment_id"]], f"{parent} and tags.`judgedrift.cell` = '{cell.id}'"
        )
        run = runs[0] if runs else None
    if run is None:
        started = cell.folder.status().get("started") or time.time()
        run = client.create_run(
            ids["experiment_id"],
            start_time=int(started * 1000),
            tags={"judgedrift.cell": cell.id, "mlflow.parentRunId": ids["parent_run_id"]},
            run_name=cell.name,
        )
    run_id = run.info.run_id
    if run.info.lifecycle_stage == "deleted":
        client.restore_run(run_id)
    tags = {
        **projection.axes(cell),
        "mlflow.parentRunId": ids["parent_run_id"],
        "judgedrift.study": cell.config.study,
        "judgedrift.role": "cell",
    }
    path = cell.folder / "environment.json"
    environment = read_left(path, "commit and sandbox are left out of MLflow", read_form)
    if commit := environment.get("git", {}).get("commit"):
        tags["mlflow.source.git.commit"] = str(commit)
    if sandbox := environment.get("sandbox"):
        tags["judgedrift.sandbox"] = sandbox
    # parameters are write-once: what a resume changed of them stays as it was
    params = [
        Param(key, value)
        for key, value in projection.params(cell).items()
        if key not in run.data.params
    ]
    for batch in _chunks(params, 100):
        client.log_batch(run_id, params=batch)
    for batch in _chunks([RunTag(key, value) for key, value in tags.items()], 100):
        client.log_batch(run_id, tags=batch)
    keep_run(cell.folder, ids, run_id, last.get("sent", -1))
    return run_id, last.get("sent", -1)


def kept_run(folder: CellFolder) -> dict[str, Any]:
    """What `keep_run` kept; empty where that is damaged."""
    run = read_left(folder / "mlflow.json", "the run is looked up in MLflow", read_form)
    return run if {"uri", "run_id"} <= run.keys() else {}


def keep_run(folder: CellFolder, ids: dict[str, str], run_id: str, last_sent: int) -> None:
    """Note in a cell's ``mlflow.json`` its run and the last step that MLflow has of it."""
    place = {key: ids[key] for key in ("uri", "experiment_id", "parent_run_id")}
    write_json(folder / "mlflow.json", {**place, "run_id": run_id, "sent": last_sent}, signed=True)


def send(client: Any, run_id: str, points: Iterable[Point], tags: dict[str, str]) -> None:
    """Log points and tags on a run, in batches that MLflow takes."""
    from mlflow.entities import Metric, RunTag

    heartbeat = [RunTag(key, value) for key, value in tags.items()]
    for batch in list(_chunks(list(points), BATCH)) or [[]]:
        client.log_batch(run_id, metrics=[Metric(*point) for point in batch], tags=heartbeat)


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def mark_killed(folder: CellFolder, reason: str) -> bool:
    """End the run of a cell whose process is gone. True where a run was RUNNING and is KILLED now;
    False where there is none, it had ended, or MLflow failed."""
    if not (run := kept_run(folder)):
        return False
    try:
        client = client_of(run["uri"])
        if client.get_run(run["run_id"]).info.status != "RUNNING":
            return False
        client.set_tag(run["run_id"], "judgedrift.reason", redact(reason))
        client.set_terminated(run["run_id"], "KILLED")
    except Exception as error:
        _log.warning("MLflow could not end the run of %s: %s", folder.name, one_line(error))
        return False
    return True


def release(folder: CellFolder, name: str) -> None:
    """Let go of the run of a cell that is moved away: from now on it is ``name``, and the cell gets
    a run of its own when it is trained anew. Where MLflow fails, a warning says why."""
    if not (run := kept_run(folder)):
        return
    try:
        client = client_of(run["uri"])
        for key in ("judgedrift.cell", "mlflow.runName"):
            client.set_tag(run["run_id"], key, name)
    except Exception as error:
        _log.warning("MLflow could not rename the run of %s: %s", folder.name, one_line(error))


def close_parent(
    ids: dict[str, str],
    status: str,
    study_dir: Path,
    whole: bool = False,
    ended_ms: int | None = None,
) -> bool:
    """End the parent run of a study by FINISHED, FAILED or KILLED, and put what the report says on
    it: a description, the numbers of each arm, figures and files. Whether MLflow took it all; if
    not, a warning says why and a rebuild repairs it. Whoever stops a study waits for it: one that
    was KILLED gets words and numbers only, unless ``whole``. It ended now, or at ``ended_ms``."""
    try:
        client = client_of(ids["uri"])
        run_id = ids["parent_run_id"]
        if ended_ms is not None:  # a parent that was made later cannot have ended before it began
            ended_ms = max(ended_ms, client.get_run(run_id).info.start_time)
        client.set_terminated(run_id, status, end_time=ended_ms)
        tags = {summary.DESCRIPTION: summary.description(study_dir)}
        if headline := visible(summary.summary_of(study_dir)["headline"]):
            tags[summary.FOUND] = headline[:LONGEST_TAG]
        send(client, run_id, summary.arm_points(study_dir), tags)
        if status == "KILLED" and not whole:
            return True
        _log_factors(client, run_id, study_dir)
        for path, place in summary.report_files(study_dir):
            client.log_artifact(run_id, str(path), place)
            if path.suffix == ".html" and place == "report":
                _log_pictures(client, run_id, path)
        loss: Lost | None = None
        for folder in study_cells(study_dir)[:MOST_LOOKED_AT]:
            try:
                _complete(client, ids, folder)
            except Damaged as damage:
                say(left_out(damage))
            except Lost as error:
                loss = error
        if loss is not None:
            raise loss
    except Exception as error:
        _log.warning("MLflow could not close the study's run: %s", one_line(error))
        return False
    return True


def _log_factors(client: Any, run_id: str, study_dir: Path) -> None:
    """Make the values of the study's factors parameters of its run."""
    from mlflow.entities import Param

    every = []
    for folder in study_cells(study_dir):
        try:
            every.append(cells.load_cell(folder))
        except Damaged as damage:
            say(left_out(damage))
    logged = client.get_run(run_id).data.params
    params = projection.factor_params(projection.factors(every), logged)
    for batch in _chunks([Param(*each) for each in params.items()], 100):
        client.log_batch(run_id, params=batch)


def _complete(client: Any, ids: dict[str, str], folder: CellFolder) -> None:
    """Send the traces of a cell that has ended and that MLflow lost when the cell sent them."""
    run = kept_run(folder)
    if run.get("uri") == ids["uri"] and folder.is_done():
        send_traces(client, ids, run["run_id"], cells.load_cell(folder))


def _log_pictures(client: Any, run_id: str, page: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for picture in summary.pictures(page.read_text(encoding="utf-8")):
            file = Path(folder) / picture.name
            file.write_bytes(picture.content)
            client.log_artifact(run_id, str(file), "figures")


def one_line(error: Exception) -> str:
    """An error in one line of at most 300 characters, without secrets."""
    return redact(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]


class RunLog:
    """The live run of one cell: buffers points and sends them every ``tracking.flush_steps``.

    Used as a context manager it ends the run: FINISHED, KILLED on an interruption, FAILED on
    any other exception. With ``tracking.enabled`` false it does nothing.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self._client: Any = None
        self._ids: dict[str, str] = {}
        self._run_id = ""
        self._last_sent = -1
        self._points: list[Point] = []
        self._steps: set[int] = set()
        self._problem = ""
        self._retry_at = 0.0
        self._guarded(self._open)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        status = "FINISHED"
        if error is not None:
            status = "KILLED" if stopping.interrupted(error) else "FAILED"
        self._guarded(lambda: self._end(status))

    def add(self, step: int, time_ms: int, metrics: dict[str, Any]) -> None:
        """Buffer one step; a step that an earlier process of this cell has sent is left out.

        Args:
            step: optimiser step, from 1; 0 is what was measured before it.
            time_ms: when the step was recorded first, milliseconds since the epoch.
            metrics: name to value; what is not finite is counted in ``tracking/nonfinite``.
        """
        if not self.cell.config.tracking.enabled or step <= self._last_sent:
            return
        self._points.extend(projection.points(step, time_ms, metrics))
        self._steps.add(step)
        enough = len(self._steps) >= self.cell.config.tracking.flush_steps
        if enough and time.monotonic() >= self._retry_at:  # a dead server shall cost little
            self._guarded(self._push)

    def _open(self) -> None:
        config, runs_dir = self.cell.config, self.cell.folder.study_dir.parent
        uri = tracking_uri(config.tracking, runs_dir)
        self._ids = read_study(self.cell.folder.study_dir).get("mlflow", {})
        if self._ids.get("uri") != uri:
            places = artifacts_of(config.tracking)
            self._ids = initialise(uri, runs_dir, config.study, config.factors, places)
        self._client = client_of(uri)
        run_id, self._last_sent = open_run(self._client, self._ids, self.cell)
        self._client.update_run(run_id, status="RUNNING")
        self._run_id = run_id
        send(self._client, run_id, [], _heartbeat())

    def _push(self) -> None:
        if not self._run_id:
            self._open()
        if self._points:
            send(self._client, self._run_id, self._points, _heartbeat())
            self._last_sent = max(self._last_sent, *self._steps)
            keep_run(self.cell.folder, self._ids, self._run_id, self._last_sent)
            self._points, self._steps = [], set()

    def _end(self, status: str) -> None:
        self._push()
        self._client.set_terminated(self._run_id, status)
        if status != "KILLED":  # whoever stops a run waits for it
            send_contents(self._client, self._ids, self._run_id, self.cell)
            send_traces(self._client, self._ids, self._run_id, self.cell)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do ``action``; a failure is noted, and what is buffered stays for the next try."""
        if not self.cell.config.tracking.enabled:
            return
        began = time.monotonic()
        try:
            action()
        except Exception as error:
            now = time.monotonic()
            self._retry_at = now + max(PAUSE_S, 10 * (now - began))
            if not self._problem:
                self._note(one_line(error))
                _log.warning(
                    "MLflow failed (%s). Training goes on and everything is recorded; repair with: "
                    "python -m experiments.tracking rebuild study=%s",
                    self._problem,
                    self.cell.config.study,
                )
        else:
            if self._problem:
                self._note("")

    def _note(self, problem: str) -> None:
        self._problem = problem
        with contextlib.suppress(OSError):  # a full disk is for the records to complain of
            self.cell.folder.set_status(tracking_problem=problem)


def _heartbeat() -> dict[str, str]:
    """Who writes this run and when it last did, so that a dead writer can be told from a slow."""
    return {
        "judgedrift.host": socket.gethostname(),
        "judgedrift.pid": str(os.getpid()),
        "judgedrift.boot_id": boot() if boot().strip("0") else "-",
        "judgedrift.heartbeat": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
