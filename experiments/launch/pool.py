"""One child process per cell, forked from a server that has the heavy imports already.

A child never outlives the sweep: it holds the read end of a pipe whose only writer is the sweep,
and leaves when that end closes, however the sweep died. What it had in flight is redone by the
next run of the same command.
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
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments.launch.surroundings import surroundings
from experiments.preflight import judges_of
from experiments.processes import launch
from experiments.track.runs import mark_killed
from experiments.train import run_cell
from study import cells, storage
from study.cells import Cell
from study.errors import UserError
from study.machine import cpus
from study.schema import Judge, Study
from study.screen import visible
from study.status import read_status
from study.stopping import deaf_to_terminal

PRELOAD = ["experiments.launch.preload"]
ORPHANED = 75
"""Exit code of a child whose sweep is gone (EX_TEMPFAIL) and that could not end in order."""
STOP_S = 30.0
"""How long children that are told to stop may take to record it."""
LAST_S = 10.0
"""How long a child may take whose sweep is gone."""


def run_pool(
    todo: list[Path],
    workers: int,
    threads: int,
    on_end: Callable[[Path, int], None],
    on_tick: Callable[[], None] = lambda: None,
    skipped: Callable[[Path], bool] = lambda folder: False,
) -> dict[Path, int]:
    """Run each cell folder in a child of its own, ``workers`` at once.

    A cell that another process runs is waited for, and run here where that process dies.

    Args:
        todo: cell folders, in the order to start them.
        workers: children at once, at least 1.
        threads: torch threads of one child, at least 1.
        on_end: called with the folder and the exit code as each child ends.
        on_tick: called about once a second while children run.
        skipped: asked before each child is started; where it says so, the cell is left as it is.

    Returns:
        Exit code by folder; negative is the signal that ended the child.
    """
    context = start_server()
    alive, keep = context.Pipe(duplex=False)
    codes: dict[Path, int] = {}
    running: dict[int, tuple[Path, BaseProcess]] = {}
    waiting = list(todo)
    elsewhere: set[Path] = set()
    try:
        while waiting or running:
            while len(running) < workers and (folder := _first_free(waiting, elsewhere)):
                waiting.remove(folder)
                if not skipped(folder):
                    child = context.Process(target=_child, args=(folder, threads, alive))
                    child.start()
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
    except BaseException:
        _end(running.values(), on_end)
        raise
    finally:
        keep.close()
        alive.close()
    return codes


def start_server(device: str = "") -> ForkServerContext:
    """Let the fork server import what cells need, beside what the caller does meanwhile; one that
    runs stays. Its children compute on ``device``.
    Raises UserError: as `study.machine.device_variables`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    # the sweep alone tells its children to stop, once
    with surroundings(device), deaf_to_terminal():
        ensure_running()
    return context


def _first_free(waiting: list[Path], elsewhere: set[Path]) -> Path | None:
    """The first cell that no other process runs; says the others, and notes them."""
    for folder in waiting:
        if cells.state(folder) != "running":
            return folder
        if folder not in elsewhere:
            elsewhere.add(folder)
            print(f"{folder.name}: another process is running it; waiting for it", flush=True)
    return None


def _end(
    running: Collection[tuple[Path, BaseProcess]], on_end: Callable[[Path, int], None]
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


def _child(folder: Path, threads: int, alive: Connection) -> None:
    """Body of a child: own log, own watchdog, then the cell; its exit code is the cell's."""
    redirect(folder)
    threading.Thread(target=leave_with_parent, args=(alive,), daemon=True).start()
    config = None
    if not cells.is_done(folder):
        with contextlib.suppress(UserError, OSError):  # `run_cell` says it
            config = cells.load_cell(folder).config
    if config is not None and config.sweep.accelerate:
        sys.exit(launch(folder, config, threads))
    sys.exit(run_cell(folder, threads))


class _Log(io.FileIO):
    """A log that takes what its disk takes: a full one must not end the run that talks to it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(memoryview(data))


def redirect(folder: Path) -> None:
    """Send this process's output, of C code too, to the cell's log."""
    try:
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Log(1, "w", closefd=False)), "utf-8", "backslashreplace", "\n", True
    )
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} pid {os.getpid()} ---", flush=True)


def leave_with_parent(alive: Connection) -> None:
    """End this process once the other end of ``alive`` is closed."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    os.kill(os.getpid(), signal.SIGTERM)  # as the sweep would have said it
    time.sleep(LAST_S)
    os._exit(ORPHANED)


def supervise(cell: Cell) -> int:
    """Run one cell in a child to its end, for launchers that call the job where it should run."""

    def say(folder: Path, code: int) -> None:
        print(f"{folder.name}: {cells.state(folder)} (exit {code})", flush=True)

    start_server(cell.config.device)
    return run_pool([cell.dir], 1, threads_of(cell.config, workers=1), say)[cell.dir]


def threads_of(config: Study, workers: int) -> int:
    """Torch threads of each of ``workers`` cells."""
    return config.sweep.threads or max(1, cpus() // workers)


def run_cells(todo: Sequence[Cell]) -> None:
    """Run the cells to their ends; what each came to is said, and is in its ``status.json``. Raises
    DiskTrouble where a cell met a full disk, to which the others write too."""
    config = todo[0].config
    at_once = 1 if config.sweep.accelerate else cpus()  # several processes share the GPUs
    workers = min(config.sweep.workers or at_once, len(todo))
    threads = threads_of(config, workers)
    console = Console()
    cell_of = {cell.dir: cell for cell in todo}
    refusals = Refusals()

    def say(text: str) -> None:
        # as Text nothing is taken for markup: errors quote what judges and endpoints wrote
        console.print(Text(visible(text)), soft_wrap=True)

    say(f"{len(todo)} cells to run, {workers} at once, {threads} threads each")
    live = Live(console=console, refresh_per_second=1) if console.is_terminal else None

    def ended(folder: Path, code: int) -> None:
        status = read_status(folder)
        note = f"{folder.name}: {cells.state(folder)} after {status.get('seconds', 0):.1f} s"
        say(note + (f" (exit {code}) {status.get('error', '')}" if code else ""))
        if code == cells.REFUSED:
            refusals.add(cell_of[folder], str(status.get("error", "")))
        if code < 0 or code in (ORPHANED, storage.EXIT):
            mark_killed(folder, f"exit code {code}")
        if code == storage.EXIT:  # the other cells write to the same disk
            raise storage.DiskTrouble(status.get("error") or storage.paragraph(None, folder))

    def tick() -> None:
        if live is not None:
            statuses = [(cell.name, read_status(cell.dir)) for cell in todo]
            lines = [
                f"{name}  step {status.get('step', 0)}/{status.get('steps', '?')}"
                f"  {status.get('phase', '')}"
                for name, status in statuses
                if status.get("state") == "running"
            ]
            live.update(Text(visible("\n".join(lines))))

    with live or nullcontext():
        run_pool(
            list(cell_of),
            workers,
            threads,
            ended,
            tick,
            lambda folder: refusals.covers(cell_of[folder]),
        )
    if refusals.left:
        say(refusals.paragraph())


class Refusals:
    """Judges whose endpoint refused key, account or model: no further cell that asks them starts. A
    judge is its address, its key and its model here, since those are what is refused."""

    def __init__(self) -> None:
        self.left: list[str] = []
        """Names of the cells that were not started."""
        self._refused: dict[tuple[str, str, str], str] = {}

    def add(self, cell: Cell, error: str) -> None:
        """A cell of which ``error`` says that a judge was refused."""
        asked = [judge for judge in judges_of([cell]) if judge.endpoint.url.startswith("http")]
        named = [judge for judge in asked if judge.endpoint.url in error]
        for judge in named or asked:
            self._refused[_account(judge)] = judge.name

    def covers(self, cell: Cell) -> bool:
        """Whether the cell asks a judge that was refused; it is then noted as left."""
        refused = any(_account(judge) in self._refused for judge in judges_of([cell]))
        if refused:
            self.left.append(cell.name)
        return refused

    def paragraph(self) -> str:
        """What was not started, why, and what to type."""
        names = ", ".join(dict.fromkeys(self._refused.values()))
        return (
            f"The endpoint of {names} refused its key, its account or its model, so "
            f"{len(self.left)} cells that ask it were not started and stay as they were: "
            f"{', '.join(self.left)}. Put the key, the account or judge.endpoint.model right, see "
            f"that it answers with python -m judges.check, and run the same command again."
        )


def _account(judge: Judge) -> tuple[str, str, str]:
    endpoint = judge.endpoint
    return endpoint.url, endpoint.api_key_env or "", endpoint.model
