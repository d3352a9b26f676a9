"""The judge's score, mixed with the rule truth where a weight says so."""

from __future__ import annotations

from study.rewards.parts import Parts, mix
from study.schema import Reward


def judged(reward: Reward, parts: Parts) -> float | None:
    """(1 - w) * judge + w * truth, w = ``reward.truth_weight``; see `mix` for missing parts."""
    return mix((1.0 - reward.truth_weight, reward.truth_weight), (parts.judge, parts.truth))
