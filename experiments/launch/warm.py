"""The tiny policy's warm-up, started before the first cell asks for it.

It takes as long as a cell. Beside it MLflow's store is made and the fork server imports.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from experiments.launch.pool import leave_with_parent, redirect
from experiments.policies.load import TINY, cache_of
from experiments.policies.tiny import build_missing, is_built
from experiments.trainer.processes import surroundings
from study.cell.cells import Cell
from study.config.schema import Policy, Task
from study.errors import UserError
from study.system.stopping import deaf_to_terminal


@contextmanager
def warming(todo: Sequence[Cell]) -> Generator[None]:
    """Within the block, tiny policies that ``todo`` needs and the cache lacks are warmed up, each
    in a process of its own.

    A cell that needs one waits on the cache's lock. Where the process fails, which ``log.txt`` in
    the cache says, the cell builds the policy itself.
    """
    places = {
        repr((cell.config.policy, cell.config.task)): (
            cell.config.policy,
            cell.config.task,
            cache_of(cell),
        )
        for cell in todo
        if cell.config.policy.path == TINY
    }
    missing = [place for place in places.values() if _is_missing(*place)]
    context = multiprocessing.get_context("spawn")
    alive, keep = context.Pipe(duplex=False)
    with alive, keep:
        device = todo[0].config.device
        with surroundings(device), deaf_to_terminal(), contextlib.suppress(OSError):
            for place in missing:
                context.Process(target=_warm, args=(*place, alive), daemon=True).start()
        yield


def _is_missing(policy: Policy, task: Task, cache_dir: Path) -> bool:
    try:
        return not is_built(policy, task, cache_dir)
    except UserError:
        return False  # its cell says it


def _warm(policy: Policy, task: Task, cache_dir: Path, alive: Connection) -> None:
    with contextlib.suppress(OSError):  # building it fails by the same, and says so in the log
        cache_dir.mkdir(parents=True, exist_ok=True)
    redirect(cache_dir / "log.txt")
    threading.Thread(target=leave_with_parent, args=(alive,), daemon=True).start()
    build_missing(policy, task, cache_dir)
