"""The order in which a task gives its rows, where it has one of its own: sampler and checkpoint.

TRL draws one permutation of all rows per epoch. A task whose module has ``Order``, as
`study.tasks.mixed` has, says instead which row stands at which position, as a pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

from torch.utils.data import Sampler
from transformers import TrainerCallback
from trl import GRPOTrainer

from study.errors import UserError
from study.system.files import read_json, write_json

POSITION = "order.json"
"""Where a checkpoint stands in the order."""


class Order(Protocol):
    """What a trainer asks of an order."""

    def rows(self, start: int, count: int) -> list[int]:
        """Indexes of the rows at ``count`` positions from ``start`` on."""
        ...

    def notes(self, steps: int, prompts_per_step: int) -> list[str]:
        """What such a run should know of it, in sentences."""
        ...

    def state(self, position: int, ahead: int) -> dict[str, Any]:
        """What is drawn from, and which rows stand at the next positions, as JSON."""
        ...


class Ordered(Sampler[int]):
    """Indexes in an order, in the shape that TRL's ``RepeatSampler`` gives them.

    Args:
        steps: of the whole run, which is one epoch.
        prompts: different rows of a step.
        group_size: how often each of them comes in a row.
        repeats: how often a step's batch comes in all.
    """

    def __init__(
        self, order: Order, steps: int, prompts: int, group_size: int, repeats: int
    ) -> None:
        self.order, self.steps, self.prompts = order, steps, prompts
        self.group_size, self.repeats = group_size, repeats

    def __iter__(self) -> Iterator[int]:
        for step in range(self.steps):
            rows = self.order.rows(step * self.prompts, self.prompts)
            for _ in range(self.repeats):
                for row in rows:
                    yield from repeat(row, self.group_size)

    def __len__(self) -> int:
        return self.steps * self.prompts * self.group_size * self.repeats


class InOrder(GRPOTrainer):
    """GRPOTrainer that draws its prompts in an order, once it is told to follow one."""

    args: Any
    order: Order | None = None

    def follow(self, order: Order) -> None:
        """Take the place of TRL's sampler, and note in each checkpoint where it stands; to be
        called before the callback is added that seals checkpoints."""
        self.order = order
        for sentence in order.notes(self.args.max_steps, self.prompts_per_step):
            print(sentence, flush=True)
        self.add_callback(_NotePosition(self.state_at))

    @property
    def prompts_per_step(self) -> int:
        """P, the prompts of one step."""
        return self.args.generation_batch_size // self.args.num_generations

    def state_at(self, step: int) -> dict[str, Any]:
        """What the checkpoint of ``step`` notes of the order."""
        assert self.order is not None
        return self.order.state(step * self.prompts_per_step, self.prompts_per_step)

    def check_order(self, checkpoint: Path) -> None:
        """Raises UserError: a run that goes on from ``checkpoint`` would draw other rows."""
        if self.order is None:
            return
        noted = read_json(checkpoint / POSITION)
        now = self.state_at(int(checkpoint.name.rpartition("-")[2]))
        if different := [key for key, value in now.items() if noted.get(key) != value]:
            key = different[0]
            raise UserError(
                f"{checkpoint} has a different order of prompts from this run: its {key} is"
                f" {noted.get(key)!s:.80}, and now {now[key]!s:.80}. If the folder in task.path"
                f" was prepared again, restore the old one, or delete {checkpoint.parent} to start"
                " this cell again."
            )

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        if self.order is None:
            return super()._get_train_sampler(dataset)
        repeats = self.num_iterations * self.args.steps_per_generation
        return Ordered(
            self.order,
            self.args.max_steps,
            self.prompts_per_step,
            self.args.num_generations,
            repeats,
        )


class _NotePosition(TrainerCallback):
    """Writes where in the order a checkpoint stands, before that is sealed."""

    def __init__(self, state_at: Callable[[int], dict[str, Any]]) -> None:
        self.state_at = state_at

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"  # TRL names it so
        write_json(checkpoint / POSITION, self.state_at(state.global_step))
