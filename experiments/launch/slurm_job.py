"""What a job of a cluster does: one cell, where its environment is that of the sweep."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import cast

from experiments.launch.node import Node, check_clock, check_node, clock_of_folder, describe
from experiments.launch.pool import run_task
from experiments.plan.memory import slots_of
from experiments.train import PACKAGES
from study.cell import cells
from study.cell.folder import CellFolder
from study.errors import UserError
from study.finding import stop_at_problem
from study.system.files import read_json
from study.system.machine import device_variables

FOLDER = ".jobs"
"""In a study's folder: what is known of its jobs."""
SWEEP = "sweep"
ENVIRONMENT = "environment.json"
"""In that folder: who submits jobs, and what `describe` says of where that is."""


def job(place: CellFolder, threads: int, visible: Mapping[str, str] | None = None) -> int:
    """Body of a job; returns the cell's exit code, which is on record then.

    Args:
        threads: torch threads, at least 1.
        visible: CUDA_VISIBLE_DEVICES of the sweep, where it is set, for a job of this machine,
            which takes a lease of its own; None where Slurm says which GPUs are the job's.
    """
    os.umask(0o077)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit passes over it
    # Slurm sends it before the time is up, or where another job is to have the node
    signal.signal(signal.SIGUSR2, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before, problem = place.status().get("ended"), ""
    try:
        code = _run(place, threads, visible)
    except UserError as error:
        print(error, flush=True)
        code, problem = 2, str(error)
    if code not in (0, cells.BUSY) and place.status().get("ended") == before:
        _record(place, code, problem or f"exit code {code}; see log.txt")
    return code


def _run(place: CellFolder, threads: int, visible: Mapping[str, str] | None) -> int:
    """Raises UserError: this node is not as the sweep is, or lacks what the cell needs."""
    jobs_dir = place.study_dir / FOLDER
    here = describe(PACKAGES, str(jobs_dir / SWEEP))
    sweep = cast(Node, read_json(jobs_dir / ENVIRONMENT))
    stop_at_problem(check_node(sweep, here, jobs_dir / SWEEP))
    (theirs, within), (ours, within_here) = sweep["clock"], clock_of_folder(jobs_dir)
    stop_at_problem(check_clock(here["host"], theirs - ours, within + within_here))
    cell = cells.load_cell(place)
    if visible is None:
        return run_task(place, threads, device_variables(cell.config.device))
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # submitit's own
    os.environ.update(visible)
    slots = slots_of([cell])
    while (lease := slots.lease()) is None:
        time.sleep(1.0)
    return run_task(place, threads, device_variables(cell.config.device) | lease.variables)


def _record(place: CellFolder, code: int, problem: str) -> None:
    """Say in the cell's status why it did not begin."""
    if (lock := place.lock(wait_s=2.0)) is not None:
        with lock:
            place.set_status(
                state="failed", phase="failed", exit_code=code, error=problem, ended=time.time()
            )
