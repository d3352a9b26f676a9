"""Rebuilds MLflow as a projection of the records.

``python -m experiments.tracking rebuild study=NAME`` sends the records of a study again: metrics,
samples, traces, evaluations, and the report on the study's own run. Points carry the time at which
they were recorded, so that sending them again changes nothing.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.tracking.contents import send_contents
from experiments.tracking.evaluations import PREFIX, kept_evaluations, send_evaluation
from experiments.tracking.projection import Point, points
from experiments.tracking.runs import close_parent, keep_run, one_line, open_run, send
from experiments.tracking.store import artifacts_of, client_of, initialise, tracking_uri
from experiments.tracking.traces import send_traces
from study.cell import cells, exchange
from study.cell.folder import CellFolder, Status, study_cells
from study.cell.study_file import read_study, write_study
from study.cell.verify import check_records
from study.cli import command, option, word
from study.config.bounds import Name
from study.config.schema import Study, Tracking
from study.errors import UserError
from study.finding import stop_at_problem

ENDS = {"done": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
"""State of a cell to status of its run."""


def rebuild(study_dir: Path, tracking: Tracking, runs_dir: Path) -> bool:
    """Project the records of a whole study again, printing one line per cell; whether all could be.

    Afterwards MLflow holds exactly the recorded points, each once, and the state that each cell
    is in. A run that holds other points than the records (steps that were redone after a crash
    and differ) is deleted, which MLflow can undo, and made anew. A cell that is running now is
    left to its running process. Raises UserError where the study has no cells, or the store cannot
    be opened.
    """
    folders = study_cells(study_dir)
    if not folders:
        studies = sorted({path.parent.parent.name for path in runs_dir.glob("*/*/config.yaml")})
        raise UserError(
            f"{study_dir} holds no cell. Studies under {runs_dir}: {', '.join(studies) or 'none'}. "
            "Type python -m experiments.tracking rebuild study=NAME runs_dir=FOLDER."
        )
    study = read_study(study_dir)
    factors = study.get("factors") or first_config(folders).factors
    uri, places = tracking_uri(tracking, runs_dir), artifacts_of(tracking)
    statuses = [folder.status() for folder in folders]
    began, ended = _times(statuses, "started"), _times(statuses, "ended")
    ids = initialise(uri, runs_dir, study_dir.name, factors, places, min(began, default=None))
    write_study(study_dir, {**study, "factors": factors, "mlflow": ids})
    client = client_of(ids["uri"])
    stop_at_problem(check_records(study_dir, folders))
    states = set()
    for folder in folders:
        try:
            state, line = _rebuild_cell(client, ids, folder)
        except Exception as error:
            state, line = "broken", one_line(error)
        states.add(state)
        print(f"{folder.name}: {state}: {line}", flush=True)
    if "running" not in states:
        ends = {"broken": "FAILED", "new": "KILLED", **ENDS}
        status = next(ends[s] for s in ("broken", "failed", "killed", "new", "done") if s in states)
        close_parent(ids, status, study_dir, whole=True, ended_ms=max(ended, default=None))
    return "broken" not in states


def _times(statuses: Iterable[Status], name: Literal["started", "ended"]) -> list[int]:
    """When the cells began, or ended, in milliseconds; without those that do not say."""
    return [int(status[name] * 1000) for status in statuses if status.get(name)]


def first_config(folders: Iterable[CellFolder]) -> Study:
    """The config of the first cell that has a sound one; a UserError where none has."""
    problem = UserError("The study holds no cell.")
    for folder in folders:
        try:
            return cells.load_cell(folder).config
        except UserError as error:
            problem = error
    raise problem


def _rebuild_cell(client: Any, ids: dict[str, str], folder: CellFolder) -> tuple[str, str]:
    """State of the cell and what was done, in a few words."""
    lock = folder.lock()
    if lock is None:
        return "running", "left to its running process"
    with lock:
        status = folder.status()
        state = folder.state_of_held()
        if state == "new":
            return state, "not started, no run"
        cell = dataclasses.replace(cells.load_cell(folder), folder=folder)
        lines = folder.lines()
        recorded_points: set[Point] = set()
        for line in lines:
            recorded_points.update(points(line["step"], line["time_ms"], line["metrics"]))
        run_id, _ = open_run(client, ids, cell)
        names = {point.name for point in recorded_points}
        stored = _stored(client, run_id)
        evaluated = {p for p in stored if p.name.startswith(PREFIX) and p.name not in names}
        replaced = bool(stored - recorded_points - evaluated)
        if replaced:
            client.delete_run(run_id)
            (folder / "mlflow.json").unlink()
            run_id, _ = open_run(client, ids, cell)
            stored = set()
        missing = sorted(recorded_points - stored, key=lambda point: (point.step, point.name))
        send(client, run_id, missing, {})
        send_contents(client, ids, run_id, cell)
        send_traces(client, ids, run_id, cell)
        run = {**ids, "run_id": run_id}
        for evaluation in kept_evaluations(folder):
            send_evaluation(client, run, cell.name, evaluation)
        if replaced:  # evaluations that were not written down when they were made
            send(client, run_id, sorted(evaluated - _stored(client, run_id)), {})
        last_ms = max((line["time_ms"] for line in lines), default=int(time.time() * 1000))
        ended_ms = int(status.get("ended", 0) * 1000) if status.get("state") != "running" else 0
        client.set_terminated(run_id, ENDS[state], end_time=ended_ms or last_ms)
        keep_run(folder, ids, run_id, max((line["step"] for line in lines), default=-1))
        if status.get("tracking_problem"):
            folder.set_status(tracking_problem="")
    how = ", replacing a run of other points" if replaced else ""
    return state, f"run {run_id}, {len(recorded_points)} points, {len(missing)} sent{how}"


def _stored(client: Any, run_id: str) -> set[Point]:
    """Every point that MLflow holds of a run."""
    return {
        Point(metric.key, metric.value, metric.timestamp, metric.step)
        for name in client.get_run(run_id).data.metrics
        for metric in client.get_metric_history(run_id, name)
    }


@dataclass(frozen=True)
class Options:
    """Options of `experiments.tracking`: the study, and the store to project it to."""

    what: str = word("send the records of a study to MLflow again", "rebuild")
    study: str = option("name of the study", required=True, legal=Name())
    runs_dir: Path = option("folder that holds the studies", Path("runs"))
    uri: str | None = option("tracking URI; left out, the study's own")


@command("experiments.tracking rebuild study=NAME", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 rebuilt, 1 if a cell failed, 2 for a user's error."""
    folder = options.runs_dir / options.study
    exchange.fetch(folder)
    folders = study_cells(folder)
    tracking = first_config(folders).tracking if folders else Tracking()
    if options.uri is not None:
        tracking = dataclasses.replace(tracking, uri=options.uri)
    return 0 if rebuild(folder, tracking, options.runs_dir) else 1


if __name__ == "__main__":
    sys.exit(main())
