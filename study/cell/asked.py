"""What the cells of a sweep ask: judges and executors."""

from __future__ import annotations

from collections.abc import Sequence

from study.cell.cells import Cell
from study.config.schema import Executor, Judge, Model


def judges_of(todo: Sequence[Cell]) -> list[Judge]:
    """Every judge that the cells ask, acting and shadow, as often as it is asked."""
    return [j for cell in todo for j in (cell.config.judge, *cell.config.shadow_judges)]


def executors_of(todo: Sequence[Cell]) -> list[Executor]:
    """The executor of every cell whose completions are programs."""
    return [cell.config.executor for cell in todo if cell.config.world == "workflow"]


def models_of(todo: Sequence[Cell]) -> list[Model]:
    """All that the cells ask: judges and executors."""
    return [*judges_of(todo), *executors_of(todo)]
