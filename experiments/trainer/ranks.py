"""What the processes of a cell tell each other; with one process nothing is sent.

Process r has rows r * n to (r + 1) * n of the N rollouts of a step, n = N / processes. The first
process alone has a scorer.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from experiments.trainer.scorer import Scorer

PATIENCE = timedelta(days=1)
"""How long the others wait for the first process, which waits for judges; one that ends is noticed
at once, by the launcher."""


def shared(value: Any) -> Any:
    """What the first process has as ``value``, in every process."""
    PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
    box = [value]
    broadcast_object_list(box)
    return box[0]


def wait() -> None:
    """Go on when every process has come here."""
    PartialState().wait_for_everyone()


def leave() -> None:
    """End what the processes were connected by."""
    PartialState().destroy_process_group()


class Gathered:
    """Callable reward for TRL in every process: the first one scores the rollouts of all."""

    __name__ = "reward"

    def __init__(self, scorer: Scorer | None) -> None:
        self.scorer = scorer

    def __call__(
        self,
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        prompt_id: list[str],
        trainer_state: Any,
        **_: Any,
    ) -> list[float | None]:
        """Rewards of this process's rollouts; see `Scorer.__call__` for what is raised."""
        mine = list(zip(prompts, completions, completion_ids, prompt_id, strict=True))
        all_prompts, all_completions, all_ids, names = zip(*gather_object(mine), strict=True)
        rewards: list[float | None] = []
        if self.scorer is not None:
            rewards = self.scorer(
                prompts=list(all_prompts),
                completions=list(all_completions),
                completion_ids=list(all_ids),
                prompt_id=list(names),
                trainer_state=trainer_state,
            )
        first = PartialState().process_index * len(mine)
        return shared(rewards)[first : first + len(mine)]
