"""The judge's score, mixed with the rule truth where a weight says so."""

from __future__ import annotations

from experiments.config import Reward


def judged(
    reward: Reward, scores: list[float | None], truths: list[float | None]
) -> list[float | None]:
    """(1 - w) * judge + w * truth per rollout, w = ``reward.truth_weight``.

    A part with weight 0 is not looked at; a part with weight that is missing makes the reward
    None.

    Args:
        reward: the weight.
        scores: N judge scores after the failure policy, None where unscored.
        truths: N rule truths, None where no rule can tell.
    """
    weights = (1.0 - reward.truth_weight, reward.truth_weight)
    return [_mix(weights, parts) for parts in zip(scores, truths, strict=True)]


def _mix(weights: tuple[float, float], parts: tuple[float | None, float | None]) -> float | None:
    total = 0.0
    for weight, part in zip(weights, parts, strict=True):
        if weight == 0.0:
            continue
        if part is None:
            return None
        total += weight * part
    return total
