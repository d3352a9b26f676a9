"""What a trainer is given of a task's rows: its prompts one by one, and what a scaffold shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from experiments.trainer.world import Messages, World
from study.config.schema import Study
from study.rows import Row
from study.tasks.scaffold import Shown, show


def prompt_dataset(rows: Sequence[Row]) -> Any:
    """A ``datasets.Dataset`` of {prompt, prompt_id}: each row is read when its place is asked for,
    so that no copy of the task is made."""
    from datasets import Dataset

    return Dataset.from_dict({"place": range(len(rows))}).with_transform(_Prompts(rows))


def prompt_of(world: World, row_of: Callable[[str], Row | None]) -> Callable[[str], Messages]:
    """Prompt id -> what a policy in that world is shown of the row."""

    def prompt_for(prompt_id: str) -> Messages:
        row = row_of(prompt_id)
        assert row is not None, "the trainer asks about rows of the task alone"
        return world.prompt_for(row)

    return prompt_for


class _Prompts:
    """Callable (a batch of places) -> the prompts there."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def __call__(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        rows = [self.rows[place] for place in batch["place"]]
        return {
            "prompt": [list(row.messages) for row in rows],
            "prompt_id": [row.prompt_id for row in rows],
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> _Prompts:
        return self

    def __getstate__(self) -> dict[str, int]:
        # What the library hashes of a transform. All rows would take long.
        return {"rows": len(self.rows)}


class Scaffolder:
    """Callable (the inputs of P * G rollouts in group order, step from 1) -> what each is shown.

    Args:
        row_of: prompt id -> row of the task.
        prompt_for: prompt id -> what the policy is shown, where that is not the row.
    """

    def __init__(
        self,
        config: Study,
        row_of: Callable[[str], Row | None],
        prompt_for: Callable[[str], Messages] | None = None,
    ) -> None:
        self.config = config
        self.row_of = row_of
        self.prompt_for = prompt_for
        self.keep = config.scaffold.keep

    def __call__(self, inputs: list[dict[str, Any]], step: int) -> list[Shown]:
        config, size = self.config, self.config.trainer.group_size
        prompts = []
        for index, example in enumerate(inputs):
            row = self.row_of(example["prompt_id"])
            assert row is not None, "the trainer asks about rows of the task alone"
            if self.prompt_for is not None:
                row = replace(row, messages=self.prompt_for(row.prompt_id))
            place = index % size
            steps, seed = config.trainer.steps, config.seed
            prompts.append(show(config.scaffold, row, place, size, step, steps, seed))
        return prompts
