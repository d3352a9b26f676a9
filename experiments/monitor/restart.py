"""Ends a stalled cell that runs on this host, and has it go on from its last checkpoint."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from experiments.monitor.read import View, on_this_host
from experiments.trainer.processes import surroundings
from study.cell import cells
from study.cell.folder import CellFolder
from study.cell.places import LOCK
from study.errors import UserError
from study.system import locks
from study.system.files import Damaged, read_json

STOP_S, KILLED_S, STARTED_S = 30.0, 10.0, 60.0
"""How long a process may take to end after SIGTERM, to end after SIGKILL, and to start."""
_STARTED: list[subprocess.Popen[bytes]] = []
"""Cells that go on in processes of their own; they outlive this one."""


def restart(view: View) -> str:
    """End the process of a stalled cell and start ``experiments.train`` for it; says what was done,
    or why nothing was.

    The process gets a SIGTERM, and a SIGKILL where it has not ended within `STOP_S` seconds. It is
    signalled only if it is surely the cell's: it has the file of the cell's lock open, and somebody
    holds that lock.
    """
    host, pid, lock = view.status.get("host"), view.status.get("pid"), view.folder / LOCK
    again = "stop its sweep, and rerun it"
    if not on_this_host(view):
        where = f"{host or 'an unknown host'} and not on this one"
        return f"{view.cell} runs on {where}, so it was not restarted. Type the same command there."
    try:
        config = cells.load_cell(view.folder).config
    except UserError as error:
        return f"{view.cell} could not be restarted. {error}"
    if config.sweep.accelerate:
        return (
            f"{view.cell} has several processes, so it was not restarted. To restart it, {again}."
        )
    try:
        handle = os.pidfd_open(int(pid or 0))
    except (OSError, AttributeError) as error:
        return f"Process {pid} of {view.cell} cannot be reached ({error}), so it was not restarted."
    try:
        # From here on the handle is that process, whatever becomes of its number.
        if not (_has_open(int(pid or 0), lock) and locks.is_held(lock)):
            return (
                f"Process {pid} may not be the one that runs {view.cell}, so it was not restarted."
                f" To restart it, {again}."
            )
        how = _end(handle)
    finally:
        os.close(handle)
    limit = time.monotonic() + KILLED_S
    while locks.is_held(lock):
        if time.monotonic() > limit:
            return f"{view.cell}: process {pid} {how}, but another one still holds the cell."
        time.sleep(0.1)
    return f"{view.cell}: process {pid} {how}; {_start(view.folder)}"


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has the very file open."""
    try:
        file = os.stat(path)
        handles = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for handle in handles:
        try:
            opened = os.stat(f"/proc/{pid}/fd/{handle}")
        except OSError:
            continue
        if os.path.samestat(opened, file):
            return True
    return False


def _end(handle: int) -> str:
    """End the process behind a pidfd; how it ended, in words."""
    for number, limit, how in (
        (signal.SIGTERM, STOP_S, "ended on SIGTERM"),
        (signal.SIGKILL, KILLED_S, "was killed"),
    ):
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return "had ended"
        if select.select([handle], [], [], limit)[0]:
            return how
    return "did not end on SIGKILL"


def _start(folder: CellFolder) -> str:
    """Train the cell in a process that goes on without this one, its output in the cell's log; says
    so once the cell names that process as its own."""
    try:
        threads = read_json(folder / "environment.json").get("threads")
    except Damaged:
        threads = None
    words = [f"cell={folder}"] + ([f"threads={threads}"] if isinstance(threads, int) else [])
    log = folder / "log.txt"
    with log.open("ab") as file, surroundings():
        child = subprocess.Popen(
            [sys.executable, "-m", "experiments.train", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _STARTED.append(child)
    limit = time.monotonic() + STARTED_S
    while child.poll() is None and time.monotonic() < limit:
        if folder.status([]).get("pid") == child.pid:
            return f"process {child.pid} resumes from the last checkpoint."
        time.sleep(0.1)
    end = "is slow to start" if child.returncode is None else f"ended ({child.returncode})"
    return f"process {child.pid}, which should resume it, {end}; its log: {log}"
