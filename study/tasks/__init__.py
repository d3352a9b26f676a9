"""The tasks by name: each is a module with ``rows(options, split)`` and ``truth(row, answer)``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import Any

from study import bounds
from study.rows import Row, Truth, prompt_id
from study.schema import Study, Task, freeze
from study.tasks import instruct_mini, prompts

FILE_TASKS = ("prompts", "verinstruct", "verinstruct-verif", "healthbench", "researchqa")
TASKS: dict[str, ModuleType] = {
    "instruct-mini": instruct_mini,
    **dict.fromkeys(FILE_TASKS, prompts),
}


def task_module(name: str) -> ModuleType:
    """The task called ``name``. Raises UserError: no such task."""
    return bounds.pick("task", name, TASKS, "instruct-mini")


def oracle(task: Task) -> Callable[[str, str], Truth | None]:
    """(prompt text, answer) -> what the rules say; None for a prompt that is not in the task."""
    module = task_module(task.name)
    index = _index(json.dumps(asdict(task), sort_keys=True))

    def lookup(prompt_text: str, answer: str) -> Truth | None:
        row = index.get(prompt_id(prompt_text))
        return None if row is None else module.truth(row, answer)

    return lookup


@functools.lru_cache(maxsize=8)
def _index(task_json: str) -> dict[str, Row]:
    task = freeze(Task, json.loads(task_json))
    module = task_module(task.name)
    return {row.prompt_id: row for split in ("train", "eval") for row in module.rows(task, split)}


def order_of(config: Study) -> Any:
    """The order in which a cell draws its rows; None where its task has no order of its own.
    Raises UserError: the rows come to an end before the run does."""
    kind = getattr(task_module(config.task.name), "Order", None)
    if kind is None:
        return None
    order = kind(config.task, config.seed)
    order.check(config.trainer.steps * config.trainer.prompts_per_step)
    return order
