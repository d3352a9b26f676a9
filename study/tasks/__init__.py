"""The tasks by name. Each is a module with these functions:

``rows(options, split)``
    a sequence of rows. One that is no list or tuple is read row by row, when a row is wanted.
``truths(rows, answers)``
    what the rules say of each answer, in one batch: a ``Truth``, ``Missing`` where something failed
    that should have told it, None where no rule can tell. An answer of None was cut off while it
    was thinking.
``truth(row, answer)``
    where a truth needs no other process: that of one answer.
``lookup(options)``
    where the rows are not in memory: prompt id -> the row of either split, None for no such row.
``Order(options, seed)``
    where the rows are drawn in an order of the task's own; see ``study.tasks.drawing.Drawing``.
``runs_code(options)`` and ``grading(unsafe)``
    where answers may be programs: whether some are, and a context in which they are run.
``lessons(options)``
    where the tiny policy can learn the task before RL: see `study.tasks.lessons`.
``scores(rows, answers)``
    where the rules say more of an answer than its truth: a ``study.truth.Score`` of each.
``truths_of(rows, scores)``
    beside it: the truths that ``truths`` makes of these scores.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import ModuleType

from study.config import bounds
from study.config.schema import Study, Task, freeze
from study.rows import Row
from study.tasks import instruct_mini, mixed, mixed_mini, prompts, workflow_mini
from study.tasks.drawing import Drawing
from study.tasks.lessons import Lessons
from study.tasks.mix import nominal, realised
from study.truth.oracle import Oracle

FILE_TASKS = ("prompts", "verinstruct", "verinstruct-verif", "healthbench", "researchqa")
TASKS: dict[str, ModuleType] = {
    "instruct-mini": instruct_mini,
    "mixed": mixed,
    "mixed-mini": mixed_mini,
    "workflow-mini": workflow_mini,
    **dict.fromkeys(FILE_TASKS, prompts),
}
SAMPLE = 1024
"""Rows that are looked at where a task does not have them in memory."""


def task_module(name: str) -> ModuleType:
    """The task called ``name``. Raises UserError: no such task."""
    return bounds.pick("task", name, TASKS, "instruct-mini")


def lookup(task: Task) -> Callable[[str], Row | None]:
    """Prompt id -> the row of either split; None for a prompt that is not in the task."""
    module = task_module(task.name)
    if hasattr(module, "lookup"):
        return module.lookup(task)
    return _index(module, json.dumps(asdict(task), sort_keys=True)).get


def oracle(task: Task) -> Oracle:
    """The one oracle of ``task`` in this process."""
    return _oracle(task_module(task.name), json.dumps(asdict(task), sort_keys=True))


def sample(rows: Sequence[Row], count: int) -> list[Row]:
    """Evenly spaced rows, the first among them: ``count`` or more, and fewer than twice as many."""
    return [rows[place] for place in range(0, len(rows), max(1, len(rows) // count))]


def checked(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows that stand for a task where it is checked: all that are in memory, else `SAMPLE`."""
    return rows if isinstance(rows, list | tuple) else sample(rows, SAMPLE)


@functools.lru_cache(maxsize=8)
def _oracle(module: ModuleType, task_json: str) -> Oracle:
    task = freeze(Task, json.loads(task_json))
    return Oracle(lookup(task), module.truths, waits=not hasattr(module, "truth"))


@functools.lru_cache(maxsize=8)
def _index(module: ModuleType, task_json: str) -> dict[str, Row]:
    task = freeze(Task, json.loads(task_json))
    return {row.prompt_id: row for split in ("train", "eval") for row in module.rows(task, split)}


def runs_code(task: Task) -> bool:
    """Whether a task runs what a policy writes, to score it."""
    return getattr(task_module(task.name), "runs_code", lambda options: False)(task)


def tells_truth(task: Task, rows: Sequence[Row]) -> bool:
    """Whether a rule knows the truth of answers to any of these rows of a task."""
    return task.name not in FILE_TASKS or any(map(prompts.has_reference, rows))


def lessons_of(task: Task) -> Lessons | None:
    """What the tiny policy learns ``task`` from; None for a task that brings nothing."""
    return getattr(task_module(task.name), "lessons", lambda options: None)(task)


def nominal_mix(order: object, rows: Sequence[Row]) -> dict[str, float]:
    """Domain -> the share of a run's draws that it is meant to have; {} where rows have no domain,
    and where only a look at every row of a task that is not in memory would tell.

    Args:
        order: of the task; one with a ``mixture`` draws by its weights, any other and None draw
            every row as often.
        rows: to train on.
    """
    if (mixture := getattr(order, "mixture", None)) is not None:
        return nominal(mixture.domains)
    shares = realised([row.domain for row in rows]) if isinstance(rows, list | tuple) else {}
    return shares if any(shares) else {}


def order_of(config: Study) -> Drawing | None:
    """The order in which a cell draws its rows; None where its task has no order of its own.
    Raises UserError: the rows come to an end before the run does."""
    kind = getattr(task_module(config.task.name), "Order", None)
    if kind is None:
        return None
    order = kind(config.task, config.seed)
    order.check(config.trainer.steps * config.trainer.prompts_per_step)
    return order
