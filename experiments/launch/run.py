"""A study from its cells to its report: laid, run, reported, and closed however it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from experiments import plan
from experiments.arms import check_study
from experiments.launch.conclusion import REPORT, conclude, report, say_nothing_to_run
from experiments.launch.live import run_cells
from experiments.preflight import judges_of, preflight, writable
from experiments.track.runs import close_parent, mark_killed
from experiments.track.store import initialise, tracking_uri
from judges.serving.server import leases
from study import cells, stopping, storage
from study.cells import Cell
from study.files import write_json
from study.study_file import base, read_study, write_study
from study.verify import mend

SUMMARY = "summary.json"
LAST_S = 20.0
"""How long cells of another launcher may take to end once the sweep is stopped."""


def run_study(todo: Sequence[Cell], elsewhere: Callable[[], None] | None) -> int:
    """Run what is not done, write the report, print the table.

    Args:
        todo: the cells of the sweep, checked.
        elsewhere: runs the cells by another launcher; None runs them here, in a pool.

    Returns:
        0 when every cell is done, else 1.
    """
    study_dir = todo[0].dir.parent
    for cell in todo:
        mend(cell)
    new = [cell for cell in todo if cells.state(cell.dir) not in ("done", "running")]
    if not new:
        return _nothing_to_run(todo)
    started = time.perf_counter()
    with leases(judges_of(new), study_dir.parent), _opened(todo, new) as mlflow_ids:
        run_cells(new) if elsewhere is None else elsewhere()
        report(todo, stale=True)
    if "running" not in _states(todo):
        write_json(study_dir / SUMMARY, plan.rows(todo, todo[0].config.factors))
    print(f"{len(new)} cells in {time.perf_counter() - started:.1f} s")
    return conclude(todo, mlflow_ids)


def _nothing_to_run(todo: Sequence[Cell]) -> int:
    """Every cell is done or run by another sweep; do what a sweep that was cut short left out."""
    study_dir = todo[0].dir.parent
    say_nothing_to_run(todo)
    mlflow_ids = read_study(study_dir).get("mlflow", {})
    # the summary comes last: without it, whoever ran the cells did not come to the end
    cut_short = not (study_dir / SUMMARY).exists() and _states(todo) == {"done"}
    report(todo, stale=cut_short)
    if cut_short:
        _close_tracking(mlflow_ids, "FINISHED", todo)
        write_json(study_dir / SUMMARY, plan.rows(todo, todo[0].config.factors))
    return conclude(todo, mlflow_ids)


def _states(todo: Sequence[Cell]) -> set[str]:
    return {cells.state(cell.dir) for cell in todo}


@contextmanager
def _opened(todo: Sequence[Cell], new: Sequence[Cell]) -> Generator[dict[str, Any]]:
    """Lay the study and the cells ``new``; however the block ends, no run of theirs stays open.

    Yields:
        What the study's run in MLflow is known by: empty where tracking is off.

    Raises:
        UserError: folder, factors, endpoints, keys or tracking are not usable.
    """
    study_dir = todo[0].dir.parent
    check_study(study_dir, todo, todo[0].config.factors)  # again: servers took their time to start
    writable(study_dir.parent)
    preflight(todo)
    mlflow_ids: dict[str, Any] = {}
    ended = "FAILED"
    try:
        with stopping.held():  # laid whole or not at all, and no run in MLflow that nobody knows
            _lay(todo[0], new, mlflow_ids)
        yield mlflow_ids
        if _states(todo) == {"done"}:
            ended = "FINISHED"
    except (KeyboardInterrupt, storage.DiskTrouble) as error:
        ended = "KILLED"
        limit = time.monotonic() + (LAST_S if isinstance(error, KeyboardInterrupt) else 0)
        while time.monotonic() < limit and "running" in _states(new):
            time.sleep(0.2)
        raise
    finally:
        _close_tracking(mlflow_ids, ended, todo)


def _lay(first: Cell, new: Sequence[Cell], mlflow_ids: dict[str, Any]) -> None:
    """Write what says what the study is, and the folder of each new cell."""
    config, study_dir = first.config, first.dir.parent
    if config.tracking.enabled:
        uri = tracking_uri(config.tracking, study_dir.parent)
        mlflow_ids |= initialise(uri, study_dir.parent, config.study, config.factors)
    study_dir.mkdir(parents=True, exist_ok=True)
    (study_dir / SUMMARY).unlink(missing_ok=True)
    described = {
        "study": config.study,
        "factors": config.factors,
        "base": base(first, config.factors),
        "mlflow": dict(mlflow_ids),
    }
    write_study(study_dir, described)
    for cell in new:
        cells.save_cell(cell)


def _close_tracking(mlflow_ids: dict[str, Any], status: str, todo: Sequence[Cell]) -> None:
    """End the runs of cells that were killed, and the study's own, with the report beside it.

    A study some of whose cells are run by another sweep is left for that one to end.
    """
    if not mlflow_ids:
        return
    states = {cell.dir: cells.state(cell.dir) for cell in todo}
    for folder, state in states.items():
        if state == "killed":
            mark_killed(folder, "its process is gone")
    if status == "KILLED" or "running" not in states.values():
        report_file = todo[0].dir.parent / REPORT
        close_parent(mlflow_ids, status, [report_file] if report_file.exists() else [])
