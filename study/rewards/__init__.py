"""Rewards: from verdict, rules and truth to one number per rollout, or None.

TRL leaves a row out of its group only where *every* reward function returned None, so the parts
are composed here, inside one function, and a part that is missing but needed makes the whole
missing.
"""

from __future__ import annotations

from collections.abc import Callable

from study.rewards.binary import binary
from study.rewards.hybrid import hybrid
from study.rewards.judged import judged
from study.rewards.parts import Parts
from study.rewards.rubric import rubric
from study.rewards.rule import rule
from study.rewards.verif import verif
from study.schema import Reward

REWARDS: dict[str, Callable[[Reward, Parts], float | None]] = {
    "judge": judged,
    "rubric": rubric,
    "verif": verif,
    "rule": rule,
    "binary": binary,
    "hybrid": hybrid,
}
"""Name -> compose(reward, the parts of one rollout) -> its reward, None where it has none."""
