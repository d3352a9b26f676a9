"""Rewards: from verdicts and rule truth to one number per rollout, or None.

TRL leaves a row out of its group only where *every* reward function returned None, so the parts
are composed here, inside one function, and a part that is missing but needed makes the whole
missing.
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.config import Reward
from experiments.rewards.judged import judged

REWARDS: dict[str, Callable[[Reward, list[float | None], list[float | None]], list[float | None]]]
REWARDS = {"judge": judged}
"""Name -> compose(reward, judge scores of N rollouts, truths of N rollouts) -> N rewards."""
