"""The run of a cell while it trains: points are buffered and sent to MLflow every few steps.

A failure of MLflow never ends a training run: it is noted in ``status.json`` and put right by
``python -m experiments.tracking rebuild study=NAME``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from experiments.track.projection import Point, points
from experiments.track.runs import keep_run, one_line, open_run, send
from experiments.track.store import initialise, load_mlflow, tracking_uri
from study import cells
from study.cells import Cell
from study.clock import boot
from study.study_file import read_study

PAUSE_S = 60.0
"""How long nothing is sent after a failure, at least."""

_log = logging.getLogger(__name__)


class RunLog:
    """The live run of one cell: buffers points and sends them every ``tracking.flush_steps``.

    Used as a context manager it ends the run: FINISHED, KILLED on KeyboardInterrupt and its
    kind, FAILED on any other exception. With ``tracking.enabled`` false it does nothing.

    Args:
        cell: the cell; its run is reopened where ``mlflow.json`` knows one.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self._client: Any = None
        self._ids: dict[str, str] = {}
        self._run_id = ""
        self._sent = 0
        self._points: list[Point] = []
        self._steps: set[int] = set()
        self._problem = ""
        self._retry_at = 0.0
        self._guarded(self._open)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = "FINISHED"
        if kind is not None:
            status = "FAILED" if issubclass(kind, Exception) else "KILLED"
        self._guarded(lambda: self._end(status))

    def add(self, step: int, time_ms: int, metrics: dict[str, Any]) -> None:
        """Buffer one step; a step that an earlier process of this cell has sent is left out.

        Args:
            step: optimiser step, from 1.
            time_ms: when the step was recorded first, milliseconds since the epoch.
            metrics: name to value; what is not finite is counted in ``system/nonfinite``.
        """
        if not self.cell.config.tracking.enabled or step <= self._sent:
            return
        self._points.extend(points(step, time_ms, metrics))
        self._steps.add(step)
        enough = len(self._steps) >= self.cell.config.tracking.flush_steps
        if enough and time.monotonic() >= self._retry_at:  # a dead server shall cost little
            self._guarded(self._push)

    def _open(self) -> None:
        config, runs_dir = self.cell.config, self.cell.dir.parent.parent
        uri = tracking_uri(config.tracking, runs_dir)
        self._ids = read_study(self.cell.dir.parent).get("mlflow", {})
        if self._ids.get("uri") != uri:
            self._ids = initialise(uri, runs_dir, config.study, config.factors)
        self._client = load_mlflow().MlflowClient(tracking_uri=uri)
        run_id, self._sent = open_run(self._client, self._ids, self.cell)
        self._client.update_run(run_id, status="RUNNING")
        self._run_id = run_id
        send(self._client, run_id, [], _heartbeat())

    def _push(self) -> None:
        if not self._run_id:
            self._open()
        if self._points:
            send(self._client, self._run_id, self._points, _heartbeat())
            self._sent = max(self._sent, *self._steps)
            keep_run(self.cell.dir, self._ids, self._run_id, self._sent)
            self._points, self._steps = [], set()

    def _end(self, status: str) -> None:
        self._push()
        self._client.set_terminated(self._run_id, status)

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
            cells.set_status(self.cell.dir, tracking_problem=problem)


def _heartbeat() -> dict[str, str]:
    """Who writes this run and when it last did, so that a dead writer can be told from a slow."""
    return {
        "judgedrift.host": socket.gethostname(),
        "judgedrift.pid": str(os.getpid()),
        "judgedrift.boot_id": boot(),
        "judgedrift.heartbeat": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
