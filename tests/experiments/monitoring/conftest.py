"""Studies as a sweep leaves them on the disk while it runs, without anything that runs."""

import dataclasses
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from study.cell import cells
from study.cell.folder import CellFolder
from study.cell.records import METRICS
from study.cell.study_file import write_study
from study.config.schema import Study
from study.system.files import append_line

ENDED = 2**22 + 1
"""A process number that Linux gives to nobody."""


def lay(
    runs_dir: Path, *arms: str, seed: int = 0, steps: int = 40, **changes: Any
) -> list[CellFolder]:
    """A study ``mine`` of one new cell under each judge; their folders."""
    default = dataclasses.asdict(Study())
    study_dir = runs_dir / "mine"
    described = {"study": "mine", "factors": ["judge", "seed"], "base": {}, "mlflow": {}}
    write_study(study_dir, described)
    folders = []
    for arm in arms:
        data = default | {"study": "mine", "runs_dir": str(runs_dir), "seed": seed} | changes
        data["judge"] = default["judge"] | {"name": arm}
        data["trainer"] = default["trainer"] | {"steps": steps}
        cell = cells.make_cell(data)
        cells.save_cell(cell)
        folders.append(cell.folder)
    return folders


def run(folder: CellFolder, step: int = 0, silent_s: float = 0.0, **changes: Any) -> None:
    """Let a cell say that this process runs it, and that it was last alive ``silent_s`` ago."""
    alive = {"pid": os.getpid(), "host": socket.gethostname(), "beat": time.time() - silent_s}
    folder.set_status(**alive | {"state": "running", "phase": "judging", "step": step} | changes)


def record(folder: CellFolder, steps: int | range, pause_s: float = 2.0, **metrics: float) -> None:
    """Add the metrics lines of steps; ``truth__mean`` is truth/mean."""
    chosen = range(1, steps + 1) if isinstance(steps, int) else steps
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    for step in chosen:
        append_line(folder / METRICS, metrics_line(step, named, pause_s))


def metrics_line(step: int, metrics: Mapping[str, float | None], pause_s: float = 2.0) -> str:
    time_ms = 1_700_000_000_000 + int(1000 * pause_s * step)
    return json.dumps({"step": step, "time_ms": time_ms, "metrics": dict(metrics)})


@pytest.fixture
def folder(tmp_path) -> CellFolder:
    """The cell's folder; its study is ``mine`` in ``tmp_path``."""
    (made,) = lay(tmp_path, "fair")
    return made
