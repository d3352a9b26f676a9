"""What a correction leaves to chance: seed, step and prompt decide, so a resumed run repeats it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from study.rows import Criterion


def kept(
    criteria: Sequence[Criterion], dropped: float, seed: int, step: int, prompt: str
) -> list[int]:
    """Places of the criteria that count in a group, in order: round(dropped x K) of K do not.

    One with positive points is always among them, where the rubric has any: without, there would be
    no score.
    """
    order = list(range(len(criteria)))
    random.Random(f"rubric {seed} {step} {prompt}").shuffle(order)
    left = order[round(dropped * len(order)) :]
    positive = [place for place in order if criteria[place].points > 0]
    if positive and not set(left) & set(positive):
        left = [*left[1:], positive[-1]]
    return sorted(left)


def rechecked(share: float, seed: int, step: int, prompt: str, member: int) -> bool:
    """Whether the rule is asked about one rollout; true of ``share`` of all."""
    return random.Random(f"recheck {seed} {step} {prompt} {member}").random() < share
