"""The formulas of rewards: from the parts of a group's rollouts to one number each, or None.

TRL leaves a row out of its group only where *every* reward function returned None, so the parts
are composed here, inside one function, and a part that is missing but needed makes the whole
missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from study.config.schema import Overlong, Repetition, Reward
from study.programs.rewards import FORMULAS, OK, ExecutedProgram, by_source, total

HYBRID_PARTS = ("judge", "rule", "truth")
"""What ``reward.weights`` may weigh."""


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
        domain: that of the row; empty where it has none.
        played: how the program ran, where the completion is one.
    """

    judge: float | None = None
    truth: float | None = None
    rules: tuple[bool | None, ...] = ()
    rule_points: tuple[float, ...] = ()
    judge_points: float = 0.0
    domain: str = ""
    played: ExecutedProgram | None = None


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


def judged(reward: Reward, parts: Parts) -> float | None:
    """(1 - w) * judge + w * truth, w = ``reward.truth_weight``; see `mix` for missing parts."""
    return mix((1.0 - reward.truth_weight, reward.truth_weight), (parts.judge, parts.truth))


def rubric(reward: Reward, parts: Parts) -> float | None:
    """(points of the met criteria + points of the passed rules) / positive points of both.

    The judge's part comes as its grading made it: ``judge.grading.options.clip`` is what cuts off
    negative scores. None where the judge gave no score, or a rule that was run no verdict: an item
    of the rubric that is unknown leaves the sum unknown.
    """
    if parts.judge is None or None in parts.rules:
        return None
    items = list(zip(parts.rules, parts.rule_points, strict=True))
    possible = parts.judge_points + math.fsum(points for _, points in items if points > 0)
    met = parts.judge * parts.judge_points + math.fsum(points for passed, points in items if passed)
    return met / possible if possible > 0 else None


def verif(reward: Reward, parts: Parts) -> float | None:
    """Rule part x judge part; a row without rules that are run has the rule part 1.

    None where either part is missing, even where the other one is 0 and the product would be known:
    to keep such rollouts only would leave a group with its failures and without its successes.

    Source: VerIF, arXiv 2506.09942; its code takes the mean of the rules, its text all or nothing
    (``reward.rule_part``).
    """
    rules = rule_part(parts.rules, reward.rule_part) if parts.rules else 1.0
    return None if rules is None or parts.judge is None else rules * parts.judge


def rule(reward: Reward, parts: Parts) -> float | None:
    """The rule part; the task's rule truth where the row has no rules; None without either."""
    if parts.rules:
        return rule_part(parts.rules, reward.rule_part)
    return parts.truth


def binary(reward: Reward, parts: Parts) -> float | None:
    """1 where the judge's score is above ``reward.threshold``, else 0; None without a score."""
    return None if parts.judge is None else float(parts.judge > reward.threshold)


def hybrid(reward: Reward, parts: Parts) -> float | None:
    """Sum of ``reward.weights`` x part over judge, rule and truth; see `mix` for missing parts.

    A row without rules has no rule part: where that has weight, its reward is missing.
    """
    rules = rule_part(parts.rules, reward.rule_part) if parts.rules else None
    weights = tuple(reward.weights.get(name, 0.0) for name in HYBRID_PARTS)
    return mix(weights, (parts.judge, rules, parts.truth))


def by_domain(reward: Reward, parts: Parts) -> float | None:
    """The judge's score or what `rule` gives, by ``reward.domains``; None for any other domain."""
    paid_by = reward.domains.get(parts.domain)
    if paid_by is None:
        return None
    return rule(reward, parts) if paid_by == "rule" else parts.judge


REWARDS: dict[str, Callable[[Reward, Parts], float | None]] = {
    "judge": judged,
    "rubric": rubric,
    "verif": verif,
    "rule": rule,
    "binary": binary,
    "hybrid": hybrid,
    "by-domain": by_domain,
}
"""Name -> compose(reward, the parts of one rollout) -> its reward, None where it has none."""


Paid = tuple[float | None, dict[str, float | None]]
"""A reward, None where there is none, and the terms of its own that its formula has."""


def pay(reward: Reward, group: Sequence[Parts], dropped: bool = False) -> list[Paid]:
    """The rewards of one group of rollouts; ``dropped`` where executed programs have none."""
    if reward.name not in FORMULAS:
        return [(REWARDS[reward.name](reward, parts), {}) for parts in group]
    played = [_by_source(reward, parts) for parts in group]
    terms = [None] * len(group) if dropped else FORMULAS[reward.name](played)
    names = dict.fromkeys(name for parts in terms if parts is not None for name in parts)
    return [
        (total(parts), {f"workflow_{name}": (parts or {}).get(name) for name in names})
        for parts in terms
    ]


def _by_source(reward: Reward, parts: Parts) -> ExecutedProgram:
    """How a program ran, with what judge and rule say of its answer."""
    ran = parts.played or ExecutedProgram(OK)
    correct = by_source(reward.source, parts.judge, parts.truth)
    return replace(ran, correct=correct, judge=parts.judge, rule=parts.truth)


def _sources(reward: Reward) -> tuple[str, ...]:
    """Whose verdict an executed program's reward is made of; of two, the first."""
    both = {"judge-binary": ("judge",), "rule-binary": ("rule",), "agreement": ("judge", "rule")}
    return both.get(reward.name, (reward.source.removesuffix("-first"),))


def needs_judge(reward: Reward, domain: str) -> bool:
    """Whether a missing verdict on a row of this domain goes the failure policy's way: not where
    ``reward=by-domain`` pays by rule, for there the judge only looks on."""
    if reward.name in FORMULAS:
        return "judge" in _sources(reward)
    return reward.name != "by-domain" or reward.domains.get(domain) == "judge"


def needs_truth(reward: Reward, rules: tuple[bool | None, ...], domain: str = "") -> bool:
    """Whether the reward of a rollout with these rules is made of its truth."""
    if reward.name in FORMULAS:
        return "rule" in _sources(reward)
    if reward.name == "rule" or (
        reward.name == "by-domain" and reward.domains.get(domain) == "rule"
    ):
        return not rules
    weights = {"judge": reward.truth_weight, "hybrid": reward.weights.get("truth", 0.0)}
    return weights.get(reward.name, 0.0) != 0.0


def overlong(settings: Overlong, tokens: int, max_tokens: int) -> float:
    """factor * min(0, (max - buffer - tokens) / buffer), at least -factor; 0 without a buffer.

    Args:
        tokens: length of the completion, thinking included.
        max_tokens: ``trainer.max_completion_length``.

    Source: DAPO's soft overlong punishment, arXiv 2503.14476.
    """
    if settings.buffer == 0:
        return 0.0
    over = min(0.0, (max_tokens - settings.buffer - tokens) / settings.buffer)
    return settings.factor * max(over, -1.0)


def repetition(settings: Repetition, answer: str) -> float:
    """-weight * share of the answer's word n-grams that had come before in it."""
    if settings.weight == 0.0:
        return 0.0
    return -settings.weight * repeated_share(answer.lower().split(), settings.ngram)


def repeated_share(words: Sequence[str], size: int) -> float:
    """The share of the n-grams of ``size`` words that had come before; 0 where there is none."""
    grams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
