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
    run_pool(
        [cell.folder for cell in todo],
        workers=slots.at_once,
        threads=slots.threads,
        on_end=watch.ended,
        on_tick=watch.tick,
        skipped=watch.skips,
        lease=slots.lease,
    )


def supervise(cell: Cell) -> None:
    """Run one cell in a child to its end, for launchers that call the job where it should run."""

    def ended(folder: CellFolder, code: int) -> None:
        print(f"{folder.name}: {folder.state()} (exit {code})", flush=True)

    start_server(cell.config.device)
    slots = slots_of([cell])
    run_pool([cell.folder], workers=1, threads=slots.threads, on_end=ended, lease=slots.lease)
