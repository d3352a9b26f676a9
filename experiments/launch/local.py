"""The engine of this machine: a pool of children, as many at once as it has CPUs, GPUs and memory
for."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.launch.pool import run_pool, start_server
from experiments.launch.watch import Watch
from experiments.plan.slots import slots_of
from study.cell.cells import Cell
from study.cell.folder import CellFolder


def run(todo: Sequence[Cell], watch: Watch) -> None:
    """Run the cells to their ends, here."""
    slots = slots_of(todo)
    watch.say(slots.describe(len(todo)))
    folders = [cell.folder for cell in todo]
    callbacks = (watch.ended, watch.tick, watch.skips)
    run_pool(folders, slots.at_once, slots.threads, *callbacks, slots.lease)


def supervise(cell: Cell) -> int:
    """Run one cell in a child to its end, for launchers that call the job where it should run."""

    def ended(folder: CellFolder, code: int) -> None:
        print(f"{folder.name}: {folder.state()} (exit {code})", flush=True)

    start_server(cell.config.device)
    slots = slots_of([cell])
    return run_pool([cell.folder], 1, slots.threads, ended, lease=slots.lease)[cell.folder]
