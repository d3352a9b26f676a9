"""A cell is one training run of a study: its identity, its config and its folder.

The folder is ``runs/<study>/<judge>-s<seed>-<hash>/``; the hash covers what of the resolved config
can change a result (`study.config.identity`), so the same command finds the same folder and resumes
it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from study.cell import places
from study.cell.folder import CellFolder
from study.config.identity import digest, identifying
from study.config.schema import Embedder, Executor, Judge, Model, Study, freeze
from study.system.files import Damaged, write_yaml

STOPPED = 3
"""Exit code of a cell that a signal stopped: its sweep was stopped, its job preempted, or its time
up."""
BUSY = 4
"""Exit code of a cell that another process runs."""
REFUSED = 5
"""Exit code of a cell whose key, account or model the endpoint refused: others would be, too."""
ORPHANED = 75
"""Exit code of a cell whose sweep or launcher is gone (EX_TEMPFAIL) and that could not end in
order."""


@dataclass(frozen=True)
class Cell:
    """One run to be made: the resolved config as plain data, frozen, and where it lives."""

    data: Mapping[str, object]
    config: Study
    id: str
    folder: CellFolder

    @property
    def name(self) -> str:
        """The name of the cell, which is that of its folder."""
        return self.folder.name

    @functools.cached_property
    def identity(self) -> dict[str, object]:
        """The flat config that makes the cell what it is: `study.config.identity.identifying`."""
        return identifying(self.data)


def make_cell(
    data: Mapping[str, object], folder: CellFolder | None = None, config: Study | None = None
) -> Cell:
    """Freeze a resolved config, unless ``config`` is that already, and give it its address, or the
    ``folder`` where it lives."""
    config = config or freeze(Study, data)
    digits = digest(data)
    if folder is None:
        name = f"{config.judge.name}-s{config.seed}-{digits}"
        folder = CellFolder(places.local(config.runs_dir) / config.study / name)
    return Cell(data, config, digits, CellFolder(folder.path.absolute()))


def load_cell(folder: CellFolder) -> Cell:
    """The cell that lives in ``folder``, from the config that was saved there.
    Raises Damaged: its ``config.yaml`` does not hold a config of this version."""
    path = folder / "config.yaml"
    remedy = (
        "Rerun the command that made the cell to write its config again, or move the folder away"
    )
    try:
        return make_cell(folder.config(remedy), folder)
    except FileNotFoundError as error:
        raise Damaged(path, "is not there", remedy) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"is not the config of a cell ({type(error).__name__}: {error})"
        raise Damaged(path, why, remedy) from error


def save_cell(cell: Cell) -> None:
    """Make the folder: write the resolved config, then a state if there is none yet.

    A cell that is done, or that another process runs, stays as it is.
    """
    lock = cell.folder.lock(wait_s=1.0)
    if lock is None:
        return
    with lock:
        if cell.folder.is_done():
            return
        save_config(cell)
        if not (cell.folder / "status.json").exists():
            cell.folder.set_status(state="new", step=0, steps=cell.config.trainer.steps)


def save_config(cell: Cell) -> None:
    """Write the resolved config; the caller holds the cell."""
    write_yaml(cell.folder / "config.yaml", cell.data)


def judges_of(todo: Sequence[Cell]) -> list[Judge]:
    """Every judge that the cells ask, acting and shadow, as often as it is asked."""
    return [j for cell in todo for j in (cell.config.judge, *cell.config.shadow_judges)]


def executors_of(todo: Sequence[Cell]) -> list[Executor]:
    """The executor of every cell whose completions are programs."""
    return [cell.config.executor for cell in todo if cell.config.world == "workflow"]


def embedders_of(todo: Sequence[Cell]) -> list[Embedder]:
    """The embedder of every cell that looks for examples by vectors."""
    buffers = [cell.config.workflow.buffer for cell in todo if cell.config.world == "workflow"]
    return [each.embedder for each in buffers if each.shots and each.embedder.endpoint.model]


def models_of(todo: Sequence[Cell]) -> list[Model]:
    """All that the cells ask: judges, executors and embedders."""
    return [*judges_of(todo), *executors_of(todo), *embedders_of(todo)]
