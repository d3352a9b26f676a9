"""What a process does that an engine started for one cell, on whatever machine."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.train import run_cell
from experiments.trainer.processes import launch
from study.cell import cells
from study.cell.folder import CellFolder
from study.errors import UserError

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
    os.environ.update(variables)
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
