"""Cells whose training is a stand-in that writes steps and goes on where it was stopped.

``python -m tests.experiments.launch.fakes FOLDER...`` runs cells that were laid by `lay`, as a
sweep does: lock, status, signals and exit codes are those of `experiments.train.run_cell`.
"""

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments import train as training
from experiments.launch import pool
from judges.endpoint.failures import EndpointRefused
from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.config.schema import Endpoint, Judge, Study, Sweep, Trainer
from study.errors import UserError
from study.system import stopping
from study.system.files import append_line, read_json, write_json
from study.system.spent import Spent

SERVER = "tests.experiments.launch.fake_training"
"""What a fork server imports instead of what trains."""
KEY = "FAKE_JUDGE_KEY"


def lay(
    runs_dir: Path, sweep: Sweep, judges: Sequence[str], seeds: int, steps: int = 3, **script: Any
) -> list[Cell]:
    """New cells of the study ``fake``; each does what ``script`` says: ``step_s`` seconds per step,
    ``end``: how it ends, once, where ``ends`` names its judge, ``until``: the file for which it
    waits after its first step."""
    laid = []
    for name in judges:
        endpoint = Endpoint(url=f"http://{name}.invalid/v1", api_key_env=KEY)
        judge = Judge(name=name, endpoint=endpoint)
        for seed in range(seeds):
            config = Study(
                study="fake",
                runs_dir=str(runs_dir),
                seed=seed,
                judge=judge,
                trainer=Trainer(steps=steps),
                sweep=sweep,
            )
            cell = cells.make_cell(dataclasses.asdict(config))
            cells.save_cell(cell)
            write_json(cell.folder / "script.json", script)
            laid.append(cell)
    return laid


def train(cell: Cell, threads: int, spent: Spent) -> None:
    """In place of `experiments.train.train`: a line for each step that is not there yet."""
    script = read_json(cell.folder / "script.json")
    begun = {
        "node": os.environ.get("NODE", ""),
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "key": os.environ.get(KEY, ""),
        "began": time.time(),
        "pid": os.getpid(),
        "threads": threads,
    }
    append_line(cell.folder / "lives.jsonl", json.dumps(begun))
    told = 0.0
    for step in range(len(steps_of(cell.folder.path)), cell.config.trainer.steps):
        time.sleep(script.get("step_s", 0))
        append_line(cell.folder / "steps.txt", str(step))
        while "until" in script and not Path(script["until"]).exists():
            time.sleep(0.1)
        if time.monotonic() - told > 0.1:
            told = time.monotonic()
            cell.folder.set_status(step=step + 1)
    if cell.config.judge.name in script.get("ends", ()):
        if script["end"] == "refused":
            raise EndpointRefused(401, "the key is refused", cell.config.judge.endpoint.url)
        if script["end"] == "broken":
            raise UserError("This cell is broken.")
        os.kill(os.getpid(), signal.SIGKILL)


def job(place: CellFolder, threads: int, visible: Any = None) -> int:
    """In place of `experiments.launch.slurm.job`: a job has no fork server that is told."""
    training.train = train
    return pool.run_task(place, threads)


def steps_of(folder: Path) -> list[int]:
    """The steps on record."""
    path = folder / "steps.txt"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def lives(folder: Path) -> list[dict[str, Any]]:
    """What each process found that ran the cell."""
    path = folder / "lives.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(folders: Sequence[str]) -> int:
    """Run the cells by the engine of their config; exit codes as a sweep's."""
    pool.PRELOAD = [SERVER]
    stopping.take_signals()
    try:
        todo = [cells.load_cell(CellFolder(Path(folder))) for folder in folders]
        if todo[0].config.sweep.engine == "slurm":
            import_module("experiments.launch.slurm").job = job
        with pool.take_up(todo):
            pool.run_cells(todo)
    except UserError as error:
        print(error)
        return 2
    except KeyboardInterrupt:
        stopping.deafen()
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
