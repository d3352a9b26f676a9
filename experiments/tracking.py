"""MLflow as a projection of the records: one run per cell, live, and rebuilt at will.

Points carry the time at which they were recorded, so that sending them again changes nothing. A
failure of MLflow never ends a training run: it is noted in ``status.json`` and put right by
``python -m experiments.tracking rebuild study=NAME``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.track import projection
from experiments.track.projection import Point
from experiments.track.store import initialise, load_mlflow, tracking_uri, ui_command, ui_link
from study import cells
from study.bounds import Name
from study.cells import Cell
from study.cli import command, option, word
from study.errors import UserError
from study.files import Damaged, say, write_json
from study.records import recorded
from study.schema import Study, Tracking
from study.secrets import redact
from study.status import read_status
from study.study_file import read_study
from study.verify import read_form, say_problems

__all__ = [
    "RunLog",
    "close_parent",
    "initialise",
    "load_mlflow",
    "mark_killed",
    "rebuild",
    "tracking_uri",
    "ui_command",
    "ui_link",
]

BATCH = 990
"""Points of one request; the server takes 1,000 entities, and the heartbeat tags ride along."""
PAUSE_S = 60.0
ENDS = {"done": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
"""State of a cell to status of its run."""

_log = logging.getLogger(__name__)


def _open_run(client: Any, ids: dict[str, str], cell: Cell) -> tuple[str, int]:
    """The run of ``cell``, made where there is none: its id, and the last step it was sent."""
    from mlflow.entities import Param, RunTag
    from mlflow.exceptions import MlflowException

    kept = _kept(cell.dir)
    run = None
    if kept.get("uri") == ids["uri"]:
        with contextlib.suppress(MlflowException):
            run = client.get_run(kept["run_id"])
    if run is None:
        kept = {}
        parent = f"tags.`mlflow.parentRunId` = '{ids['parent_run_id']}'"
        runs = client.search_runs(
            [ids["experiment_id"]], f"{parent} and tags.`judgedrift.cell` = '{cell.id}'"
        )
        run = runs[0] if runs else None
    if run is None:
        started = read_status(cell.dir).get("started") or time.time()
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
    path = cell.dir / "environment.json"
    environment = _left(path, "commit and sandbox are left out of MLflow")
    if commit := environment.get("git", {}).get("commit"):
        tags["mlflow.source.git.commit"] = str(commit)
    if sandbox := environment.get("sandbox"):
        tags["judgedrift.sandbox"] = sandbox
    new = {  # parameters are write-once: what a resume changed of them stays as it was
        key: value for key, value in projection.params(cell).items() if key not in run.data.params
    }
    for batch in _chunks([Param(key, value) for key, value in new.items()], 100):
        client.log_batch(run_id, params=batch)
    for batch in _chunks([RunTag(key, value) for key, value in tags.items()], 100):
        client.log_batch(run_id, tags=batch)
    _keep_run(cell.dir, ids, run_id, kept.get("sent", 0))
    return run_id, kept.get("sent", 0)


def _left(path: Path, instead: str) -> dict[str, Any]:
    """A file of `verify.FORMS`; one that is damaged counts as absent, and that is said."""
    try:
        return read_form(path)
    except Damaged as error:
        say(f"{path} is damaged: it {error.why}; {instead}.")
        return {}


def _kept(folder: Path) -> dict[str, Any]:
    """What `_keep_run` kept; empty where that is damaged."""
    kept = _left(folder / "mlflow.json", "the run is looked up in MLflow")
    return kept if {"uri", "run_id"} <= kept.keys() else {}


def _keep_run(folder: Path, ids: dict[str, str], run_id: str, sent: int) -> None:
    kept = {key: ids[key] for key in ("uri", "experiment_id", "parent_run_id")}
    write_json(folder / "mlflow.json", {**kept, "run_id": run_id, "sent": sent})


def _send(client: Any, run_id: str, points: Iterable[Point], tags: dict[str, str]) -> None:
    from mlflow.entities import Metric, RunTag

    heartbeat = [RunTag(key, value) for key, value in tags.items()]
    for batch in _chunks(list(points), BATCH):
        client.log_batch(run_id, metrics=[Metric(*point) for point in batch], tags=heartbeat)


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


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
        if cell.config.tracking.enabled:
            self._guarded(self._open)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish("FINISHED")
        else:
            self.finish("FAILED" if issubclass(kind, Exception) else "KILLED")

    def add(self, step: int, time_ms: int, metrics: dict[str, Any]) -> None:
        """Buffer one step; a step that an earlier process of this cell has sent is left out.

        Args:
            step: optimiser step, from 1.
            time_ms: when the step was recorded first, milliseconds since the epoch.
            metrics: name to value; what is not finite is counted in ``system/nonfinite``.
        """
        if not self.cell.config.tracking.enabled or step <= self._sent:
            return
        self._points.extend(projection.points(step, time_ms, metrics))
        self._steps.add(step)
        if len(self._steps) >= self.cell.config.tracking.flush_steps:
            self.flush()

    def flush(self) -> None:
        """Send what is buffered; after a failure, wait so that a dead server costs little."""
        if self._points and time.monotonic() >= self._retry_at:
            self._guarded(self._push)

    def finish(self, status: str) -> None:
        """Send the rest and end the run.

        Args:
            status: FINISHED, FAILED or KILLED.
        """
        if self.cell.config.tracking.enabled:
            self._guarded(lambda: self._end(status))

    def _open(self) -> None:
        config, runs_dir = self.cell.config, self.cell.dir.parent.parent
        uri = tracking_uri(config.tracking, runs_dir)
        self._ids = read_study(self.cell.dir.parent).get("mlflow", {})
        if self._ids.get("uri") != uri:
            self._ids = initialise(uri, runs_dir, config.study, config.factors)
        self._client = load_mlflow().MlflowClient(tracking_uri=uri)
        run_id, self._sent = _open_run(self._client, self._ids, self.cell)
        self._client.update_run(run_id, status="RUNNING")
        self._run_id = run_id
        self._client.log_batch(run_id, tags=_run_tags(_heartbeat()))

    def _push(self) -> None:
        if not self._run_id:
            self._open()
        if self._points:
            _send(self._client, self._run_id, self._points, _heartbeat())
            self._sent = max(self._sent, *self._steps)
            _keep_run(self.cell.dir, self._ids, self._run_id, self._sent)
            self._points, self._steps = [], set()

    def _end(self, status: str) -> None:
        self._push()
        self._client.set_terminated(self._run_id, status)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do ``action``; a failure is noted, and what is buffered stays for the next try."""
        began = time.monotonic()
        try:
            action()
        except Exception as error:
            took = time.monotonic() - began
            self._retry_at = time.monotonic() + max(PAUSE_S, 10 * took)
            if not self._problem:
                self._problem = _one_line(error)
                _log.warning(
                    "MLflow failed (%s). Training goes on and everything is recorded; repair with: "
                    "python -m experiments.tracking rebuild study=%s",
                    self._problem,
                    self.cell.config.study,
                )
                self._note(self._problem)
        else:
            if self._problem:
                self._problem = ""
                self._note("")

    def _note(self, problem: str) -> None:
        with contextlib.suppress(OSError):  # a full disk is for the records to complain of
            cells.set_status(self.cell.dir, tracking_problem=problem)


def _run_tags(tags: dict[str, str]) -> list[Any]:
    from mlflow.entities import RunTag

    return [RunTag(key, value) for key, value in tags.items()]


def _heartbeat() -> dict[str, str]:
    """Who writes this run and when it last did, so that a dead writer can be told from a slow."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "judgedrift.host": socket.gethostname(),
        "judgedrift.pid": str(os.getpid()),
        "judgedrift.boot_id": boot.read_text().strip() if boot.exists() else "-",
        "judgedrift.heartbeat": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def mark_killed(folder: Path, reason: str) -> bool:
    """End the run of a cell whose process is gone.

    Returns:
        True where a run was RUNNING and is KILLED now; False where there is none, it had ended,
        or MLflow failed.
    """
    kept = _kept(folder)
    if not kept:
        return False
    try:
        client = load_mlflow().MlflowClient(tracking_uri=kept["uri"])
        if client.get_run(kept["run_id"]).info.status != "RUNNING":
            return False
        client.set_tag(kept["run_id"], "judgedrift.reason", redact(reason))
        client.set_terminated(kept["run_id"], "KILLED")
    except Exception as error:
        _log.warning("MLflow could not end the run of %s: %s", folder.name, _one_line(error))
        return False
    return True


def close_parent(ids: dict[str, str], status: str, artifacts: Iterable[Path] = ()) -> bool:
    """End the parent run of a study and put files, such as the report, beside it.

    Args:
        ids: what `initialise` returned.
        status: FINISHED, FAILED or KILLED.
        artifacts: files; they go under ``report``.

    Returns:
        Whether MLflow took it all; if not, a warning says why and a rebuild repairs it.
    """
    try:
        client = load_mlflow().MlflowClient(tracking_uri=ids["uri"])
        client.set_terminated(ids["parent_run_id"], status)
        for path in artifacts:
            client.log_artifact(ids["parent_run_id"], str(path), "report")
    except Exception as error:
        _log.warning("MLflow could not close the study's run: %s", _one_line(error))
        return False
    return True


def _one_line(error: Exception) -> str:
    return redact(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]


def rebuild(study_dir: Path, tracking: Tracking, runs_dir: Path) -> bool:
    """Project the records of a whole study again, printing one line per cell.

    Afterwards MLflow holds exactly the recorded points, each once, and the state that each cell
    is in. A run that holds other points than the records (steps that were redone after a crash
    and differ) is deleted, which MLflow can undo, and made anew. A cell that is running now is
    left to its own process.

    Returns:
        Whether every cell could be projected.

    Raises:
        UserError: the study has no cells, or the store cannot be opened.
    """
    folders = cells.study_cells(study_dir)
    if not folders:
        there = sorted({path.parent.parent.name for path in runs_dir.glob("*/*/config.yaml")})
        raise UserError(
            f"{study_dir} holds no cell. Studies under {runs_dir}: {', '.join(there) or 'none'}. "
            "Type python -m experiments.tracking rebuild study=NAME runs_dir=FOLDER."
        )
    study = read_study(study_dir)
    factors = study.get("factors") or _first_config(folders).factors
    ids = initialise(tracking_uri(tracking, runs_dir), runs_dir, study_dir.name, factors)
    write_json(study_dir / "study.json", {**study, "mlflow": ids})
    client = load_mlflow().MlflowClient(tracking_uri=ids["uri"])
    say_problems(study_dir, folders)
    states = set()
    for folder in folders:
        try:
            state, line = _rebuild_cell(client, ids, folder)
        except Exception as error:
            state, line = "broken", _one_line(error)
        states.add(state)
        print(f"{folder.name}: {state}: {line}", flush=True)
    if "running" not in states:
        ends = {"broken": "FAILED", "new": "KILLED", **ENDS}
        status = next(ends[s] for s in ("broken", "failed", "killed", "new", "done") if s in states)
        reports = [*study_dir.glob("*.html"), *study_dir.glob("report/*.html")]
        close_parent(ids, status, reports)
    return "broken" not in states


def _first_config(folders: Iterable[Path]) -> Study:
    """The config of the first cell that has one; the others are told of one by one.

    Raises:
        UserError: no cell has one.
    """
    problem = UserError("The study holds no cell.")
    for folder in folders:
        try:
            return cells.load_cell(folder).config
        except UserError as error:
            problem = error
    raise problem


def _rebuild_cell(client: Any, ids: dict[str, str], folder: Path) -> tuple[str, str]:
    """State of the cell and what was done, in a few words."""
    held = cells.lock(folder)
    if held is None:
        return "running", "left to its own process"
    with held:
        status = read_status(folder)
        state = cells.state_of_held(folder)
        if state == "new":
            return state, "not started, no run"
        cell = dataclasses.replace(cells.load_cell(folder), dir=folder)
        lines = recorded(folder)
        wanted = {
            point
            for line in lines
            for point in projection.points(line["step"], line["time_ms"], line["metrics"])
        }
        run_id, _ = _open_run(client, ids, cell)
        stored = _stored(client, run_id)
        replaced = bool(stored - wanted)
        if replaced:
            client.delete_run(run_id)
            (folder / "mlflow.json").unlink()
            run_id, _ = _open_run(client, ids, cell)
            stored = set()
        missing = sorted(wanted - stored, key=lambda point: (point.step, point.name))
        _send(client, run_id, missing, {})
        last_ms = max((line["time_ms"] for line in lines), default=int(time.time() * 1000))
        ended_ms = int(status.get("ended", 0) * 1000) if status.get("state") != "running" else 0
        client.set_terminated(run_id, ENDS[state], end_time=ended_ms or last_ms)
        _keep_run(folder, ids, run_id, max((line["step"] for line in lines), default=0))
        if status.get("tracking_problem"):
            cells.set_status(folder, tracking_problem="")
    how = ", replacing a run of other points" if replaced else ""
    return state, f"run {run_id}, {len(wanted)} points, {len(missing)} sent{how}"


def _stored(client: Any, run_id: str) -> set[Point]:
    return {
        Point(metric.key, metric.value, metric.timestamp, metric.step)
        for name in client.get_run(run_id).data.metrics
        for metric in client.get_metric_history(run_id, name)
    }


@dataclass(frozen=True)
class Options:
    what: str = word("project the records of a study to MLflow again", "rebuild")
    study: str = option("name of the study", required=True, legal=Name())
    runs_dir: Path = option("folder that holds the studies", Path("runs"))
    uri: str | None = option("tracking URI; the study's own where it is left out")


@command("experiments.tracking rebuild study=NAME", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 rebuilt, 1 if a cell failed, 2 for a user's error."""
    folder = options.runs_dir / options.study
    found = cells.study_cells(folder)
    tracking = _first_config(found).tracking if found else Tracking()
    if options.uri is not None:
        tracking = dataclasses.replace(tracking, uri=options.uri)
    return 0 if rebuild(folder, tracking, options.runs_dir) else 1


if __name__ == "__main__":
    sys.exit(main())
