"""One child process per cell, forked from a server that has the heavy imports already.

A child never outlives the sweep: it holds the read end of a pipe whose only writer is the sweep,
and leaves when that end closes, however the sweep died. What it had in flight is redone by the
next run of the same command.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess

from experiments.launch.task import run_task
from experiments.trainer.surroundings import surroundings
from study.cell import cells
from study.cell.folder import CellFolder
from study.system.files import say
from study.system.gpus import Lease
from study.system.stopping import deaf_to_terminal

PRELOAD = ["experiments.launch.preload"]
ORPHANED = 75
"""Exit code of a child whose sweep is gone (EX_TEMPFAIL) and that could not end in order."""
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
    os._exit(ORPHANED)
