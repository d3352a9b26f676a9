"""Cells whose body is a stand-in: it says where and when it ran, and trains nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.config.schema import Judge, Serve, Study, Sweep, Trainer

ROOT = Path(__file__).resolve().parents[2]  # `tests.conftest` would load pytest into every job
LASTS = "FAKE_CELLS_LAST"
"""Variable with the seconds that a cell takes, or the file for which it waits."""
FAILS = "fails"
"""A file of this name in a cell's folder makes its job fail before the cell begins."""

DRIVER = """
import sys
from pathlib import Path
from experiments.launch import pool, slurm
from study.cell import cells
from study.cell.folder import CellFolder
from study.system import gpus
from tests.experiments import fake_cells

pool.run_cell = fake_cells.body
pool.PRELOAD = ["driver"]
slurm.job = fake_cells.job
gpus.HOST = Path(__file__).parent
if __name__ == "__main__":
    from study.system import stopping
    stopping.take_signals()
    todo = [cells.load_cell(CellFolder(Path(name))) for name in sys.argv[1:]]
    with pool.take_up(todo):
        pool.run_cells(todo)
"""


def body(folder: CellFolder, threads: int) -> int:
    """In place of `experiments.train.run_cell`."""
    with folder.lock() or sys.exit(cells.BUSY):
        began = time.time()
        folder.set_status(state="running", pid=os.getpid(), started=began)
        with (folder / "lives").open("a") as file:
            file.write(f"{os.getpid()}\n")
        try:
            _last(os.environ.get(LASTS, "0.1"))
        finally:
            shown = os.environ.get("CUDA_VISIBLE_DEVICES")
            told = {"gpus": shown, "began": began, "ended": time.time(), "threads": threads}
            (folder / "ran.json").write_text(json.dumps(told))
        folder.set_status(state="done", exit_code=0, ended=time.time(), error="")
        (folder / "DONE").touch()
    return 0


def _last(long: str) -> None:
    if not long.startswith("/"):
        time.sleep(float(long))
    while long.startswith("/") and not Path(long).exists():
        time.sleep(0.05)


def job(folder: CellFolder, threads: int, visible: Any = None) -> int:
    """In place of `experiments.launch.slurm.job`, which loads much."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if (folder / FAILS).exists():
        raise RuntimeError(f"there is a file {FAILS}")
    return body(folder, threads)


def laid(*cell_options: Any, **more: Any) -> list[Cell]:
    """Cells as by `made`, in their folders."""
    todo = made(*cell_options, **more)
    for cell in todo:
        cells.save_cell(cell)
    return todo


def made(
    runs_dir: Path,
    count: int,
    judge: str = "fake",
    serve: dict[str, Any] | None = None,
    **sweep: Any,
) -> list[Cell]:
    """So many cells of a study, by seed; their judge is served by ``serve``."""
    todo = []
    for seed in range(count):
        config = Study(
            study="fake", runs_dir=str(runs_dir), seed=seed, trainer=Trainer(steps=2),
            judge=Judge(name=judge, serve=Serve(**(serve or {}))), sweep=Sweep(**sweep),
        )  # fmt: skip
        todo.append(cells.make_cell(dataclasses.asdict(config)))
    return todo


def start(
    folder: Path, todo: list[Cell], terminal: int | None = None, **variables: str
) -> subprocess.Popen[str]:
    """Let an engine run the cells, in a process of its own."""
    return drive(DRIVER, folder, [cell.folder for cell in todo], terminal, **variables)


def drive(
    program: str,
    folder: Path,
    words: Sequence[Path | CellFolder],
    terminal: int | None = None,
    **variables: str,
) -> subprocess.Popen[str]:
    """A process of a program that its own children import as ``driver``; it prints to a pipe or
    to a terminal."""
    (folder / "driver.py").write_text(program)
    paths = os.pathsep.join([str(ROOT), str(folder)])
    return subprocess.Popen(
        [sys.executable, str(folder / "driver.py"), *map(str, words)],
        cwd=folder,
        stdin=terminal,
        stdout=subprocess.PIPE if terminal is None else terminal,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "COLUMNS": "200"} | variables,
    )


def ran(cell: Cell) -> dict[str, Any]:
    return json.loads((cell.folder / "ran.json").read_text())
