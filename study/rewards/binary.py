"""The judge's score cut at a threshold: the reward is 1 above it, else 0."""

from __future__ import annotations

from study.rewards.parts import Parts
from study.schema import Reward


def binary(reward: Reward, parts: Parts) -> float | None:
    """1 where the judge's score is above ``reward.threshold``, else 0; None without a score."""
    return None if parts.judge is None else float(parts.judge > reward.threshold)
