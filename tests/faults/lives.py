"""Small cells whose life is cut short: how they are laid, run in a child, and compared."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import sqlite3
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from experiments.policies.checkpoints import fault
from study.cell.folder import CellFolder, study_cells
from study.system.files import read_json
from tests.conftest import sweep

TINY = ("debug=tiny", "sweep.report=false")
FLAKY = ("judge=sim-flaky", "seed=3", "shadow=[sim-verbose]")
"""A cell of the session's small study, which is what comes of it undisturbed."""
OF_THE_CLOCK = ("latency_s", "from_cache")
"""Columns of a verdict that say how it was had, and are another matter the second time."""
OF_THE_MACHINE = ("system/", "time/", "cost/", "judge/latency_s")
"""Metrics of the same kind."""


def unbroken(runs_dir: Path, *arguments: str) -> list[Path]:
    """The cells of a sweep that nothing disturbed."""
    done = sweep(runs_dir, *TINY, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return [cell.path for cell in study_cells(runs_dir / "debug")]


def lay(runs_dir: Path, whole: Path) -> Path:
    """A new cell with the config of ``whole``, in runs of its own, with a store of its own.

    The starting policy and the empty tables of MLflow are taken over: both take seconds to make.
    """
    folder = runs_dir / whole.parent.name / whole.name
    folder.mkdir(parents=True)
    shutil.copy(whole / "config.yaml", folder)
    old = whole.parent.parent
    shutil.copytree(old / ".cache", runs_dir / ".cache", symlinks=True)
    if (old / "mlflow.db").exists():
        with (
            contextlib.closing(sqlite3.connect(old / "mlflow.db")) as source,
            contextlib.closing(sqlite3.connect(runs_dir / "mlflow.db")) as copy,
        ):
            source.backup(copy)
            for name in ("runs", "metrics", "latest_metrics", "params", "tags"):
                copy.execute(f"DELETE FROM {name}")
            copy.commit()
    return folder


def start(folder: Path, prepare: Callable[[], None] | None = None) -> BaseProcess:
    """Run a cell in a child as the pool does, from a server that has the imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.launch.preload"])
    child = context.Process(target=_child, args=(folder, prepare))
    child.start()
    return child


def _child(folder: Path, prepare: Callable[[], None] | None) -> None:
    from experiments import train
    from experiments.launch import pool

    pool.redirect(folder / "log.txt")
    if prepare is not None:
        prepare()
    sys.exit(train.run_cell(CellFolder(folder), 1))


def run(folder: Path, prepare: Callable[[], None] | None = None) -> int:
    """`start`, and the exit code; negative is the signal."""
    child = start(folder, prepare)
    child.join()
    code = child.exitcode
    child.close()
    assert code is not None
    return code


def parts(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Rows of ``rollouts`` or ``verdicts`` in their order."""
    rows = ds.dataset(folder / kind, format="parquet").to_table().to_pylist()
    order = ("rollout_id", "role", "judge", "sample_index")
    return sorted(rows, key=lambda row: [row.get(name) or 0 for name in order])


def content(folder: Path, besides: tuple[str, ...] = ()) -> dict[str, Any]:
    """All that a run finds out, without what depends on the clock or on the machine; ``besides``
    are further columns of a verdict that are left out."""
    from safetensors.torch import load_file

    verdicts = [
        {name: value for name, value in row.items() if name not in (*OF_THE_CLOCK, *besides)}
        for row in parts(folder, "verdicts")
    ]
    metrics = [
        (
            line["step"],
            {k: v for k, v in line["metrics"].items() if not k.startswith(OF_THE_MACHINE)},
        )
        for line in CellFolder(folder).lines()
    ]
    weights = load_file(folder / "policy" / "adapter_model.safetensors")
    return {
        "rollouts": parts(folder, "rollouts"),
        "verdicts": verdicts,
        "metrics": metrics,
        "weights": {name: tensor.numpy().tobytes() for name, tensor in weights.items()},
        "evaluations": {
            path.name: path.read_bytes()
            for path in sorted(folder.glob("evaluations/*"))
            if path.is_file()
        },
        "kept": sorted(path.name for path in folder.glob("kept/*") if not fault(path)),
        "policy": sorted(path.name for path in (folder / "policy").iterdir()),
        "state": CellFolder(folder).state(),
        "step": read_json(folder / "status.json")["step"],
        "DONE": (folder / "DONE").exists(),
        "left": sorted(path.name for path in folder.glob(".*") if path.name != ".lock"),
    }


def differences(found: Path, whole: Path, besides: tuple[str, ...] = ()) -> list[str]:
    """In what ``found`` differs from ``whole``, by kind; none where nothing was lost or changed."""
    ours, theirs = content(found, besides), content(whole, besides)
    return [kind for kind in theirs if ours[kind] != theirs[kind]]


def everything(folder: Path) -> dict[str, bytes]:
    """Every file of a cell, its log apart."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "log.txt"
    }


def tracked(folder: Path) -> list[str]:
    """Status of each run of this cell in MLflow."""
    with contextlib.closing(sqlite3.connect(folder.parent.parent / "mlflow.db")) as store:
        return [
            row[0]
            for row in store.execute(
                "SELECT status FROM runs JOIN tags USING (run_uuid) "
                "WHERE tags.key = 'judgedrift.cell'"
            )
        ]
