"""The tasks by name, each a `study.tasks.kind.TaskKind`; their rows, orders and rule truths."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from study.config import bounds
from study.config.schema import Study, Task, freeze
from study.rows import Row
from study.tasks import instruct_mini, mixed, mixed_mini, prompts, workflow_mini
from study.tasks.drawing import Drawing
from study.tasks.kind import TaskKind
from study.tasks.lessons import model_answer
from study.tasks.mix import nominal, realised
from study.truth.oracle import Oracle

TASKS: dict[str, TaskKind] = {
    "instruct-mini": instruct_mini.TASK,
    "mixed": mixed.TASK,
    "mixed-mini": mixed_mini.TASK,
    "workflow-mini": workflow_mini.TASK,
    **dict.fromkeys(
        ("prompts", "verinstruct", "verinstruct-verif", "healthbench", "researchqa"), prompts.TASK
    ),
}
SAMPLE = 1024
"""Rows that are looked at where a task does not have them in memory."""


def kind_of(task: Task) -> TaskKind:
    """What ``task`` is. Raises UserError: no such task."""
    return bounds.pick("task", task.name, TASKS, "instruct-mini")


def oracle(task: Task) -> Oracle:
    """The one oracle of ``task`` in this process."""
    return _oracle(kind_of(task), json.dumps(asdict(task), sort_keys=True))


def sample(rows: Sequence[Row], count: int) -> list[Row]:
    """Evenly spaced rows, the first among them: ``count`` or more, and fewer than twice as many."""
    return [rows[place] for place in range(0, len(rows), max(1, len(rows) // count))]


def checked(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows that stand for a task where it is checked: all that are in memory, else `SAMPLE`."""
    return rows if isinstance(rows, list | tuple) else sample(rows, SAMPLE)


@functools.lru_cache(maxsize=8)
def _oracle(kind: TaskKind, task_json: str) -> Oracle:
    task = freeze(Task, json.loads(task_json))
    lessons = functools.cache(partial(kind.lessons, task))
    return Oracle(
        kind.lookup(task),
        kind.truths,
        waits=kind.waits,
        teacher=lambda row: model_answer(lessons(), row),
    )


def nominal_mix(order: Drawing | None, rows: Sequence[Row]) -> dict[str, float]:
    """Domain -> the share of a run's draws that it is meant to have; {} where rows have no domain,
    and where only a look at every row of a task that is not in memory would tell.

    Args:
        order: of the task, which draws by its weights; None draws every row as often.
        rows: to train on.
    """
    if order is not None:
        return nominal(order.mixture.domains)
    shares = realised([row.domain for row in rows]) if isinstance(rows, list | tuple) else {}
    return shares if any(shares) else {}


def order_of(config: Study) -> Drawing | None:
    """The order in which a cell draws its rows; None where its task has no order of its own.
    Raises UserError: the rows come to an end before the run does."""
    order = kind_of(config.task).order(config.task, config.seed)
    if order is not None:
        order.check(config.trainer.steps * config.trainer.prompts_per_step)
    return order


__all__ = ["SAMPLE", "TASKS", "checked", "kind_of", "nominal_mix", "oracle", "order_of", "sample"]


def __dir__() -> list[str]:
    return [*__all__]
