"""The parts that one rollout's reward is made of, and how a weighted sum treats missing ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """The parts of one rollout's reward; None is a part that is missing.

    Attributes:
        judge: score of the acting judge after the failure policy.
        truth: rule truth of the task.
        rules: the verdict of each of the row's rules: passed, failed, or None if it gave none.
            Empty where the row has no rules or they are not run.
        rule_points: points of each rule.
        judge_points: positive points of the criteria that the judge was asked about.
    """

    judge: float | None = None
    truth: float | None = None
    rules: tuple[bool | None, ...] = ()
    rule_points: tuple[float, ...] = ()
    judge_points: float = 0.0


def rule_part(rules: tuple[bool | None, ...], kind: str) -> float | None:
    """The rules of one rollout as one number in [0, 1].

    Args:
        rules: R verdicts, R >= 1.
        kind: ``mean`` of the rules that gave a verdict, None where none did; ``all`` is 0 where any
            rule failed, else None where any gave no verdict, else 1.
    """
    verdicts = [passed for passed in rules if passed is not None]
    if kind == "all":
        if not all(verdicts):
            return 0.0
        return 1.0 if len(verdicts) == len(rules) else None
    return sum(verdicts) / len(verdicts) if verdicts else None


def mix(weights: tuple[float, ...], parts: tuple[float | None, ...]) -> float | None:
    """Weighted sum. A part of weight 0 is not looked at; one with weight that is missing makes the
    sum missing."""
    total = 0.0
    for weight, part in zip(weights, parts, strict=True):
        if weight == 0.0:
            continue
        if part is None:
            return None
        total += weight * part
    return total
