"""Where the cells of a sweep run.

An engine is a module with a function ``run(todo, watch)``. It is given cells whose folders are
laid, runs each of them to its end (`experiments.launch.task.run_task`, where the cell runs), and
tells the watch what becomes of it. Identity, resume, locks, records and the report are the same
whatever runs them.

An engine whose cells outlive the sweep also has ``taken_up(todo)``, a context manager. It holds the
study for one sweep, and yields the folders of the cells that an earlier one left running.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module

from experiments.launch.watch import Watch
from study.cell.cells import Cell
from study.cell.folder import CellFolder

ENGINES = {
    "local": "experiments.launch.local",
    "ray": "experiments.launch.ray_engine",
    "shard": "experiments.launch.local",  # of the share that `experiments.plan.shard` names
    "slurm": "experiments.launch.slurm",
}
"""Name, as ``sweep.engine`` has it -> module."""


def run_cells(todo: Sequence[Cell]) -> None:
    """Run the cells to their ends by the engine that the sweep names. Raises DiskError: a cell
    met a full disk."""
    with Watch(todo) as watch:
        import_module(ENGINES[todo[0].config.sweep.engine]).run(todo, watch)


def taken_up(todo: Sequence[Cell]) -> AbstractContextManager[set[CellFolder]]:
    """Within the block the study is this sweep's, where its engine wants that. Yields folders of
    cells that an earlier sweep left running: this one watches them to their ends.
    Raises UserError: another sweep has the study."""
    engine = import_module(ENGINES[todo[0].config.sweep.engine])
    return engine.taken_up(todo) if hasattr(engine, "taken_up") else nullcontext(set())
