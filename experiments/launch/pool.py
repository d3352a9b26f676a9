"""Where the cells of a sweep run; on this machine a few at a time, each in a child forked ready.

An engine is a module with a function ``run(todo, watch)``, as this one is for a sweep that runs
here. It is given cells whose folders are laid, runs each of them to its end (`run_task`, where the
cell runs), and tells the watch what becomes of it. Identity, resume, locks, records and the report
are the same whatever runs them.

An engine whose cells outlive the sweep also has ``taken_up(todo)``, a context manager. It holds the
study for one sweep, and yields the folders of the cells that an earlier one left running.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from experiments.launch.watch import Watch
from experiments.plan.memory import slots_of
from experiments.train import run_cell
from experiments.trainer.processes import launch, surroundings
from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.errors import UserError
from study.system.files import say
from study.system.gpus import Lease
from study.system.machine import kernel_variables
from study.system.stopping import deaf_to_terminal

NOTHING: Mapping[str, str] = {}


def run_task(folder: CellFolder, threads: int, variables: Mapping[str, str] = NOTHING) -> int:
    """Run a cell whose folder is laid to its end, with its output in the cell's log; to be called
    in the main thread of a process, before anything of it touches a GPU.

    Args:
        threads: torch threads, at least 1.
        variables: environment of this cell, such as CUDA_VISIBLE_DEVICES.

    Returns:
        The exit code, as `experiments.train.run_cell`.
    """
    trouble = ""
    try:
        folder.find()
    except UserError as error:
        folder.path.mkdir(parents=True, exist_ok=True)
        trouble = str(error)
    redirect(folder / "log.txt")
    if trouble:
        print(trouble, flush=True)
        return 2
    os.environ.update(kernel_variables() | dict(variables))
    config = None
    if not folder.is_done():
        with contextlib.suppress(UserError, OSError):  # `run_cell` says it
            config = cells.load_cell(folder).config
    if config is not None and config.sweep.accelerate:
        return launch(folder, config, threads)
    return run_cell(folder, threads)


class _Log(io.FileIO):
    """A log that takes what its disk takes: a full one must not end the run that talks to it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(memoryview(data))


def redirect(path: Path) -> None:
    """Send this process's output, of C code too, to a log."""
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Log(1, "w", closefd=False)), "utf-8", "backslashreplace", "\n", True
    )
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} pid {os.getpid()} ---", flush=True)


PRELOAD = ["experiments.launch.preload"]
STOP_S = 30.0
"""How long children that are told to stop may take to record it."""
LAST_S = 10.0
"""How long a child may take whose sweep is gone."""


def run_pool(
    todo: list[CellFolder],
    workers: int,
    threads: int,
    on_end: Callable[[CellFolder, int], None],
    on_tick: Callable[[], None] = lambda: None,
    skipped: Callable[[CellFolder], bool] = lambda folder: False,
    lease: Callable[[], Lease | None] = lambda: Lease({}, []),
) -> dict[CellFolder, int]:
    """Run each cell folder in a child of its own, ``workers`` at once.

    A cell that another process runs is waited for, and run here where that process dies.

    Args:
        todo: cell folders, in the order to start them.
        workers: children at once, at least 1.
        threads: torch threads of one child, at least 1.
        on_end: called with the folder and the exit code as each child ends.
        on_tick: called about once a second while children run.
        skipped: asked before each child is started; where it says so, the cell is left as it is.
        lease: the GPUs of one more child, which has them to its end; None where there are none now.

    Returns:
        Exit code by folder; negative is the signal that ended the child.
    """
    context = start_server()
    alive, keep = context.Pipe(duplex=False)
    codes: dict[CellFolder, int] = {}
    running: dict[int, tuple[CellFolder, BaseProcess]] = {}
    waiting = list(todo)
    with alive, keep:
        try:
            while waiting or running:
                while len(running) < workers and (folder := _first_free(waiting)):
                    if skipped(folder):
                        waiting.remove(folder)
                        continue
                    if (leased := lease()) is None:
                        break
                    waiting.remove(folder)
                    arguments = (folder, threads, alive, leased)
                    child = context.Process(target=child_body, args=arguments)
                    child.start()
                    leased.close()
                    running[child.sentinel] = (folder, child)
                on_tick()
                for sentinel in wait(list(running), timeout=1.0):
                    folder, child = running.pop(int(sentinel))  # ty: ignore[invalid-argument-type]
                    child.join()
                    code = 1 if child.exitcode is None else child.exitcode
                    child.close()
                    if code == cells.BUSY:
                        waiting.append(folder)
                    else:
                        codes[folder] = code
                        on_end(folder, code)
        finally:  # some run only where an error or a signal ends this
            _end(running.values(), on_end)
    return codes


def start_server(device: str = "") -> ForkServerContext:
    """Let the fork server import what cells need, beside what the caller does meanwhile; one that
    runs stays. Its children compute on ``device``.
    Raises UserError: as `study.system.machine.device_variables`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    # the sweep alone tells its children to stop, once
    with surroundings(device), deaf_to_terminal():
        ensure_running()
    return context


def is_busy(folder: CellFolder) -> bool:
    """Whether another process runs a cell, which is said once: the cell has to wait."""
    if folder.state() != "running":
        return False
    say(f"{folder.name}: another process is running it; waiting for it")
    return True


def _first_free(waiting: list[CellFolder]) -> CellFolder | None:
    return next((folder for folder in waiting if not is_busy(folder)), None)


def _end(
    running: Collection[tuple[CellFolder, BaseProcess]], on_end: Callable[[CellFolder, int], None]
) -> None:
    """Let every child end its cell and its run in MLflow; kill what has not ended in time."""
    for _, child in running:
        child.terminate()
    limit = time.monotonic() + STOP_S
    for folder, child in running:
        child.join(max(0.0, limit - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()
        with contextlib.suppress(Exception):  # why the pool ends is known; each one is told of
            on_end(folder, 1 if child.exitcode is None else child.exitcode)


def child_body(folder: CellFolder, threads: int, alive: Connection, leased: Lease) -> None:
    """Body of a child: own watchdog, then the cell; its exit code is the cell's."""
    threading.Thread(target=leave_with_parent, args=(alive,), daemon=True).start()
    sys.exit(run_task(folder, threads, leased.variables))


def leave_with_parent(alive: Connection) -> None:
    """End this process once the other end of ``alive`` is closed."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    os.kill(os.getpid(), signal.SIGTERM)  # as the sweep would have said it
    time.sleep(LAST_S)
    os._exit(cells.ORPHANED)


def run(todo: Sequence[Cell], watch: Watch) -> None:
    """Run the cells to their ends, here."""
    slots = slots_of(todo)
    watch.say(slots.describe(len(todo)))
    run_pool(
        [cell.folder for cell in todo],
        workers=slots.at_once,
        threads=slots.threads,
        on_end=watch.ended,
        on_tick=watch.tick,
        skipped=watch.skips,
        lease=slots.lease,
    )


def supervise(cell: Cell) -> None:
    """Run one cell in a child to its end, for launchers that call the job where it should run."""

    def ended(folder: CellFolder, code: int) -> None:
        print(f"{folder.name}: {folder.state()} (exit {code})", flush=True)

    start_server(cell.config.device)
    slots = slots_of([cell])
    run_pool([cell.folder], workers=1, threads=slots.threads, on_end=ended, lease=slots.lease)


ENGINES = {
    "local": "experiments.launch.pool",
    "ray": "experiments.launch.ray_engine",
    "shard": "experiments.launch.pool",  # of the share that `experiments.plan.needs` names
    "slurm": "experiments.launch.slurm",
}
"""Name, as ``sweep.engine`` has it -> module."""


def run_cells(todo: Sequence[Cell]) -> None:
    """Run the cells to their ends by the engine that the sweep names. Raises DiskError: a cell
    met a full disk."""
    with Watch(todo) as watch:
        import_module(ENGINES[todo[0].config.sweep.engine]).run(todo, watch)


def take_up(todo: Sequence[Cell]) -> AbstractContextManager[set[CellFolder]]:
    """Within the block the study is this sweep's, where its engine wants that. Yields folders of
    cells that an earlier sweep left running: this one watches them to their ends.
    Raises UserError: another sweep has the study."""
    engine = import_module(ENGINES[todo[0].config.sweep.engine])
    return engine.taken_up(todo) if hasattr(engine, "taken_up") else nullcontext(set())
