"""The engine of a Slurm cluster: submitit submits arrays of jobs, a job a cell.

What was submitted is in the study's ``.jobs`` folder: a sweep that was killed finds its jobs there
when the same command is typed again. What a job came to is in the cell's own folder; the queue only
says which jobs are still there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from submitit.core.utils import FailedJobError
from submitit.helpers import clean_env

from experiments.launch.node import clock_of_folder, describe
from experiments.launch.pool import STOP_S
from experiments.launch.slurm_job import ENVIRONMENT, FOLDER, SWEEP, job
from experiments.launch.watch import Watch
from experiments.plan.memory import slots_of
from experiments.slurm import jobs as queue
from experiments.slurm.jobs import executor_of
from experiments.train import PACKAGES
from experiments.trainer.processes import surroundings
from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.config.schema import Study
from study.errors import UserError
from study.system import locks, stopping
from study.system.files import Damaged, read_json, say, write_json
from study.system.secrets import redact

SHOWN = ("CUDA_VISIBLE_DEVICES",)
LEDGER = "jobs.json"
POLL_S = 0.5
KEPT = ("SLURM_CONF", "SBATCH_")


@dataclass(frozen=True)
class Job:
    """What is known of a cell's job."""

    id: str
    tries: int
    """How often the cell was submitted, this time included."""
    ended: float
    """When the cell had last ended as this was submitted; 0 for never."""


@contextmanager
def taken_up(todo: Sequence[Cell]) -> Generator[set[CellFolder]]:
    """As `experiments.launch.pool.take_up`."""
    study_dir = todo[0].folder.study_dir
    folder = study_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    lock = locks.take(folder / "lock")
    if lock is None:
        owner = " ".join((folder / SWEEP).read_text().split()) or "another sweep"
        raise UserError(
            f"The study {study_dir.name} is in use: {owner} submits its cells to Slurm, in"
            f" {study_dir}. A second process would submit cells twice. Wait for it, or stop it"
            " with Ctrl-C where it runs, or type another name, for example:"
            f" study={study_dir.name}-2"
        )
    with lock:
        (folder / SWEEP).write_text(f"process {os.getpid()} on {socket.gethostname()}")
        ledger = _read_ledger(folder)
        yield {cell.folder for cell in todo if cell.name in ledger}


def run(todo: Sequence[Cell], watch: Watch) -> None:
    """Run the cells to their ends as jobs of a cluster. Where Ctrl-C or an error ends this, jobs
    that are left are cancelled; where the system does, they go on."""
    config, folder = todo[0].config, todo[0].folder.study_dir / FOLDER
    local = config.sweep.slurm.cluster == "local"
    threads = config.sweep.threads or max(1, config.sweep.cpus_per_cell)
    limit, array = len(todo), len(todo)
    if local:
        slots = slots_of(todo)
        threads, limit = slots.threads, slots.at_once
    else:
        array = queue.most_of_an_array()
    jobs = {
        CellFolder(folder.parent / name): queued for name, queued in _read_ledger(folder).items()
    }
    others = {cell: jobs.pop(cell) for cell in [*jobs] if cell not in watch.cell_of}
    waiting = [(cell.folder, 0) for cell in todo if cell.folder not in jobs]
    for cell in jobs:
        watch.skips(cell)  # so that it is watched
    again = f", {len(jobs)} of them submitted earlier" if jobs else ""
    asked_at = 0.0
    try:
        watch.say(f"{len(todo)} cells to run as jobs of {config.sweep.slurm.cluster}{again}")
        described = describe(PACKAGES, str(folder / SWEEP)) | {"clock": clock_of_folder(folder)}
        write_json(folder / ENVIRONMENT, described)
        while waiting or jobs:
            room = max(0, min(limit - len(jobs), array))
            batch = [(cell, tries) for cell, tries in waiting[:room] if not watch.skips(cell)]
            del waiting[:room]
            if batch:
                with stopping.held():  # no job that nobody knows of
                    jobs |= _submitted(config, folder, batch, threads)
                    _write(folder, others | jobs)
            watch.tick()
            time.sleep(POLL_S)
            if time.monotonic() < asked_at + queue.EVERY_S[config.sweep.slurm.cluster]:
                continue
            asked_at = time.monotonic()
            states = queue.states([queued.id for queued in jobs.values()], local)
            for text in states.notices:
                say(text)
            state_of = {cell: states.of.get(queued.id, queue.GONE) for cell, queued in jobs.items()}
            ended = [cell for cell, state in state_of.items() if state not in queue.ALIVE]
            for cell in ended:
                if cell.state() == "running":
                    continue
                queued, state = jobs.pop(cell), state_of[cell]
                if not _is_lost(cell, queued, state) or queued.tries > config.sweep.retries:
                    _tell(cell, queued, state, watch)
                    continue
                waiting.append((cell, queued.tries))
                watch.say(
                    f"{cell.name}: its job {queued.id} was lost ({state.lower()}); it is"
                    f" submitted again, {queued.tries} of {config.sweep.retries} times"
                )
            if ended:
                _write(folder, others | jobs)
    except BaseException as error:
        if stopping.interrupted(error) and not local and not stopping.told_by_user():
            watch.say(
                f"{len(jobs)} jobs are still with Slurm. Rerun the command to follow them again;"
                " Ctrl-C in it cancels them."
            )
            others |= jobs
            jobs.clear()
        raise
    finally:  # some are left only where an error or a signal ends this
        _cancel(jobs, local, watch)
        _write(folder, others)


def _is_lost(cell: CellFolder, queued: Job, state: str) -> bool:
    """Whether a job is gone without a word of its cell, and nobody cancelled it."""
    return _code(cell, queued) is None and state != queue.CANCELLED


def _tell(cell: CellFolder, queued: Job, state: str, watch: Watch) -> None:
    """Tell the watch what a cell came to whose job is gone for good."""
    folder, code = cell.study_dir / FOLDER, _code(cell, queued)
    if code is None:
        watch.say(f"its last job's output is in {queue.log(folder, queued.id)}")
        code = cells.STOPPED if state == queue.CANCELLED else cells.ORPHANED
    elif not code:
        queue.clear(folder, queued.id)
    watch.ended(cell, code)


def _code(cell: CellFolder, queued: Job) -> int | None:
    """The exit code of a cell whose job is gone; None where it came to no end of its own."""
    if cell.state() == "done":
        return 0
    status = cell.status()
    code = status.get("exit_code")
    fresh = status.get("ended", 0.0) != queued.ended
    return int(code) if fresh and code not in (None, cells.STOPPED) else None


def _submitted(
    config: Study, folder: Path, batch: Sequence[tuple[CellFolder, int]], threads: int
) -> dict[CellFolder, Job]:
    """Submit cells as an array. Raises UserError: Slurm does not take it; with its own words."""
    executor, visible = executor_of(config, folder), None
    ended = [float(cell.status().get("ended", 0.0)) for cell, _ in batch]
    if config.sweep.slurm.cluster == "local":
        visible = {name: os.environ[name] for name in SHOWN if name in os.environ}
    try:
        # Ctrl-C is for the sweep, which then ends what it submitted
        with _as_at_login(), surroundings(), stopping.deaf_to_terminal(), executor.batch():
            submissions = [executor.submit(job, cell, threads, visible) for cell, _ in batch]
    except FailedJobError as error:
        raise UserError(
            f"Slurm does not take {len(batch)} cells of {config.study} as jobs:"
            f" {redact(' '.join(str(error).split()))[:600]} The settings are sweep.slurm.*,"
            " sweep.gpus_per_cell, cpus_per_cell and memory_per_cell_gb."
        ) from error
    jobs: dict[CellFolder, Job] = {}
    for (cell, tries), before, submitted in zip(batch, ended, submissions, strict=True):
        queue.keep(submitted)
        jobs[cell] = Job(submitted.job_id, tries + 1, before)
    return jobs


@contextmanager
def _as_at_login() -> Generator[None]:
    """Within the block nothing says that this sweep is a job itself: its jobs would take that for
    their own. What a user sets for sbatch stays."""
    for_sbatch = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    with clean_env():
        os.environ.update(for_sbatch)
        yield


def _cancel(jobs: Mapping[CellFolder, Job], local: bool, watch: Watch) -> None:
    """End every job that was submitted and is not over, and let the cells record it."""
    queue.cancel([queued.id for queued in jobs.values()], local)
    limit = time.monotonic() + STOP_S
    while time.monotonic() < limit and any(cell.state() == "running" for cell in jobs):
        time.sleep(POLL_S)
    if local:
        queue.kill([queued.id for queued in jobs.values()])
    for cell, queued in jobs.items():
        if cell.status().get("ended", 0.0) != queued.ended:
            with contextlib.suppress(Exception):  # why the sweep ends is known
                watch.ended(cell, cells.STOPPED)


def _read_ledger(folder: Path) -> dict[str, Job]:
    """Cell's name -> its job, as an earlier sweep left them; none where that cannot be read."""
    with contextlib.suppress(Damaged, TypeError):
        return {name: Job(**queued) for name, queued in read_json(folder / LEDGER).items()}
    return {}


def _write(folder: Path, jobs: Mapping[CellFolder, Job]) -> None:
    write_json(folder / LEDGER, {cell.name: asdict(queued) for cell, queued in jobs.items()})
