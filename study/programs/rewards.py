"""Rewards of executed programs, one group of rollouts at a time: ranks compare within a group.

A reward has three states. A program that did not run to its answer has the floor, a number; a
rollout whose verdict is missing, or whose run an infrastructure failure ended, has None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from study.programs.endings import INFRASTRUCTURE, Ending

OK = Ending.OK
OUTCOMES = tuple(Ending)
"""What a rollout's program came to; each has exactly one."""
SOURCES = ("judge", "rule", "judge-first", "rule-first")
"""Whose verdict says that an answer is right; of two, the second where the first has none."""
RIGHT = 0.5
"""A verdict above this says that the answer is right."""
WELL_FORMED = 0.025
"""Of workflow-gated: what a wrong answer has for a program that ran, and again times its format."""
RANKED = {"efficiency": 0.10, "simplicity": 0.067, "repetition": 0.033}
"""Of workflow-gated: what the last of a group's right answers loses."""
SEED = {"efficiency": 0.15, "simplicity": 0.10, "format": 0.05, "repetition": -0.05}
"""Weights of seed-additive beside that of correctness."""
SEED_CORRECT, SEED_RIGHT, SEED_WRONG = 0.65, 10.0, -5.0

TERMS = ("correct", "format", "efficiency", "simplicity", "repetition")
"""Components that a reward may be the sum of."""
SHARES = ("efficiency", "simplicity", "format", "repetition")
"""What is measured of a program that ran, each from 0 to 1."""

Terms = dict[str, float]
"""The weighted components of one reward, which is their sum."""


@dataclass(frozen=True)
class ExecutedProgram:
    """One rollout after its program was executed.

    Attributes:
        outcome: one of `OUTCOMES`; of `INFRASTRUCTURE` it is masked.
        correct: how right the answer is by the source in use, from 0 to 1; None without a verdict.
        efficiency, simplicity, format: from 0 to 1, 1 is best.
        repetition: from 0 to 1, 0 is best.
        judge, rule: the verdicts of both sources, as ``correct``.
    """

    outcome: str
    correct: float | None = None
    efficiency: float = 0.0
    simplicity: float = 0.0
    format: float = 0.0
    repetition: float = 0.0
    judge: float | None = None
    rule: float | None = None


def by_source(source: str, judge: float | None, rule: float | None) -> float | None:
    """The verdict of one of `SOURCES`. Raises KeyError: another source."""
    first, second = {
        "judge": (judge, None),
        "rule": (rule, None),
        "judge-first": (judge, rule),
        "rule-first": (rule, judge),
    }[source]
    return second if first is None else first


def gated(group: Sequence[ExecutedProgram]) -> list[Terms | None]:
    """Any right answer above any wrong one above any invalid program.

    Invalid 0, wrong .025 + .025 format, right 1 - .10 e - .067 s - .033 r. There e, s and r are
    (average rank - 1)/(m - 1) among the m right answers of the group, the best 0, by efficiency,
    simplicity and repetition. Where every reward of the group is of a right answer, all are 1.
    """
    right = [rollout for rollout in group if _is_right(rollout)]
    flat = len(right) == sum(_has_reward(rollout) for rollout in group)
    ranks = {
        name: places([getattr(rollout, name) for rollout in right], name == "repetition")
        / max(len(right) - 1, 1)
        for name in RANKED
    }
    place = iter(range(len(right)))
    terms: list[Terms | None] = []
    for rollout in group:
        penalties = dict.fromkeys(RANKED, 0.0)
        if not _has_reward(rollout):
            terms.append(None)
            continue
        formed = 0.0
        if _is_right(rollout):
            nth = next(place)
            if not flat:
                penalties = {name: -weight * ranks[name][nth] for name, weight in RANKED.items()}
        elif rollout.outcome == OK:
            formed = WELL_FORMED + WELL_FORMED * rollout.format
        terms.append({"correct": float(_is_right(rollout)), "format": formed, **penalties})
    return terms


def seed_additive(group: Sequence[ExecutedProgram]) -> list[Terms | None]:
    """.65 C + .15 efficiency + .10 simplicity + .05 format - .05 repetition; C is 10 for a right
    answer, else -5. An invalid program has -3.25, the part of C alone."""
    terms: list[Terms | None] = []
    for rollout in group:
        if not _has_reward(rollout):
            terms.append(None)
            continue
        sign = SEED_RIGHT if _is_right(rollout) else SEED_WRONG
        ran = rollout.outcome == OK
        shaped = {name: weight * getattr(rollout, name) * ran for name, weight in SEED.items()}
        terms.append({"correct": SEED_CORRECT * sign, **shaped})
    return terms


def judge_binary(group: Sequence[ExecutedProgram]) -> list[Terms | None]:
    """1 where the judge says right, 0 where wrong or where the program is invalid."""
    return [_binary(rollout, rollout.judge) for rollout in group]


def rule_binary(group: Sequence[ExecutedProgram]) -> list[Terms | None]:
    """1 where the rule says right, 0 where wrong or where the program is invalid."""
    return [_binary(rollout, rollout.rule) for rollout in group]


def agreement(group: Sequence[ExecutedProgram]) -> list[Terms | None]:
    """1 where judge and rule say right, 0 where both say wrong or the program is invalid; where
    they differ, or either is missing, the verdict is missing."""
    return [_binary(rollout, _agreed(rollout.judge, rollout.rule)) for rollout in group]


FORMULAS: dict[str, Callable[[Sequence[ExecutedProgram]], list[Terms | None]]] = {
    "workflow-gated": gated,
    "seed-additive": seed_additive,
    "judge-binary": judge_binary,
    "rule-binary": rule_binary,
    "agreement": agreement,
}
"""Name -> formula(the G rollouts of a group) -> their terms, None where there is no reward."""

SHAPED = ("workflow-gated", "seed-additive")
"""Those made of more than a verdict."""


def total(terms: Terms | None) -> float | None:
    """The reward that the terms add up to."""
    return None if terms is None else math.fsum(terms.values())


def effective_share(groups: Sequence[Sequence[Terms | None]]) -> dict[str, float]:
    """Within-group cov(w x, R) / var(R) of each component, over all groups; NaN without variance.

    The components of a reward add up to it, so that their shares add up to 1.
    """
    scored = [[terms for terms in group if terms is not None] for group in groups]
    names = list(dict.fromkeys(name for group in scored for terms in group for name in terms))
    pushes = dict.fromkeys(names, 0.0)
    spread = 0.0
    for group in filter(None, scored):
        rewards = np.array([total(terms) for terms in group])
        rewards -= rewards.mean()
        spread += float(rewards @ rewards)
        for name in names:
            values = np.array([terms.get(name, 0.0) for terms in group])
            pushes[name] += float((values - values.mean()) @ rewards)
    varied = spread > 1e-12
    return {name: part / spread if varied else math.nan for name, part in pushes.items()}


def _has_reward(rollout: ExecutedProgram) -> bool:
    if rollout.outcome == OK:
        return rollout.correct is not None
    return rollout.outcome not in INFRASTRUCTURE


def _is_right(rollout: ExecutedProgram) -> bool:
    return rollout.outcome == OK and rollout.correct is not None and rollout.correct > RIGHT


def places(values: Sequence[float], low_is_best: bool = False) -> np.ndarray:
    """How many of m values stand before each, of ties half: average rank - 1, the best 0."""
    signed = np.asarray(values, dtype=float) * (1.0 if low_is_best else -1.0)
    _, value, ties = np.unique(signed, return_inverse=True, return_counts=True)
    return (np.cumsum(ties) - ties + (ties - 1) / 2)[value]


def _binary(rollout: ExecutedProgram, verdict: float | None) -> Terms | None:
    if rollout.outcome in INFRASTRUCTURE or (rollout.outcome == OK and verdict is None):
        return None
    return {"correct": float(rollout.outcome == OK and verdict is not None and verdict > RIGHT)}


def _agreed(judge: float | None, rule: float | None) -> float | None:
    if judge is None or rule is None or (judge > RIGHT) != (rule > RIGHT):
        return None
    return judge
