"""The reward of rules alone: the judge's verdict is recorded and never reaches the gradient."""

from __future__ import annotations

from study.rewards.parts import Parts, rule_part
from study.schema import Reward


def rule(reward: Reward, parts: Parts) -> float | None:
    """The rule part; the task's rule truth where the row has no rules; None without either."""
    if parts.rules:
        return rule_part(parts.rules, reward.rule_part)
    return parts.truth
