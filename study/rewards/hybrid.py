"""A reward that is a weighted sum of judge, rules and truth."""

from __future__ import annotations

from study.rewards.parts import Parts, mix, rule_part
from study.schema import Reward

PARTS = ("judge", "rule", "truth")


def hybrid(reward: Reward, parts: Parts) -> float | None:
    """Sum of ``reward.weights`` x part over judge, rule and truth; see `mix` for missing parts.

    A row without rules has no rule part: where that has weight, its reward is missing.
    """
    rules = rule_part(parts.rules, reward.rule_part) if parts.rules else None
    weights = tuple(reward.weights.get(name, 0.0) for name in PARTS)
    return mix(weights, (parts.judge, rules, parts.truth))
