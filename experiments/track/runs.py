"""The runs of a study in MLflow: opened once per cell, sent to, and ended."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.track import projection
from experiments.track.projection import Point
from experiments.track.store import load_mlflow
from study.cells import Cell
from study.files import Damaged, say, write_json
from study.secrets import redact
from study.status import read_status
from study.verify import read_form

BATCH = 990
"""Points of one request; the server takes 1,000 entities, and the heartbeat tags ride along."""

_log = logging.getLogger(__name__)


def open_run(client: Any, ids: dict[str, str], cell: Cell) -> tuple[str, int]:
    """The run of ``cell``, made where there is none: its id, and the last step it was sent."""
    from mlflow.entities import Param, RunTag
    from mlflow.exceptions import MlflowException

    last = kept_run(cell.dir)
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
    keep_run(cell.dir, ids, run_id, last.get("sent", 0))
    return run_id, last.get("sent", 0)


def _left(path: Path, instead: str) -> dict[str, Any]:
    """A file of `verify.FORMS`; one that is damaged counts as absent, and that is said."""
    try:
        return read_form(path)
    except Damaged as error:
        say(f"{path} is damaged: it {error.why}; {instead}.")
        return {}


def kept_run(folder: Path) -> dict[str, Any]:
    """What `keep_run` kept; empty where that is damaged."""
    run = _left(folder / "mlflow.json", "the run is looked up in MLflow")
    return run if {"uri", "run_id"} <= run.keys() else {}


def keep_run(folder: Path, ids: dict[str, str], run_id: str, sent: int) -> None:
    place = {key: ids[key] for key in ("uri", "experiment_id", "parent_run_id")}
    write_json(folder / "mlflow.json", {**place, "run_id": run_id, "sent": sent})


def send(client: Any, run_id: str, points: Iterable[Point], tags: dict[str, str]) -> None:
    from mlflow.entities import Metric, RunTag

    heartbeat = [RunTag(key, value) for key, value in tags.items()]
    for batch in list(_chunks(list(points), BATCH)) or [[]]:
        client.log_batch(run_id, metrics=[Metric(*point) for point in batch], tags=heartbeat)


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def mark_killed(folder: Path, reason: str) -> bool:
    """End the run of a cell whose process is gone.

    Returns:
        True where a run was RUNNING and is KILLED now; False where there is none, it had ended,
        or MLflow failed.
    """
    if not (run := kept_run(folder)):
        return False
    try:
        client = load_mlflow().MlflowClient(tracking_uri=run["uri"])
        if client.get_run(run["run_id"]).info.status != "RUNNING":
            return False
        client.set_tag(run["run_id"], "judgedrift.reason", redact(reason))
        client.set_terminated(run["run_id"], "KILLED")
    except Exception as error:
        _log.warning("MLflow could not end the run of %s: %s", folder.name, one_line(error))
        return False
    return True


def close_parent(ids: dict[str, str], status: str, artifacts: Iterable[Path] = ()) -> bool:
    """End the parent run of a study and put files, such as the report, under its ``report``.

    Args:
        ids: what `initialise` returned.
        status: FINISHED, FAILED or KILLED.

    Returns:
        Whether MLflow took it all; if not, a warning says why and a rebuild repairs it.
    """
    try:
        client = load_mlflow().MlflowClient(tracking_uri=ids["uri"])
        client.set_terminated(ids["parent_run_id"], status)
        for path in artifacts:
            client.log_artifact(ids["parent_run_id"], str(path), "report")
    except Exception as error:
        _log.warning("MLflow could not close the study's run: %s", one_line(error))
        return False
    return True


def one_line(error: Exception) -> str:
    return redact(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]
