"""From a judge's scores to rewards: failure policy, then the formula by name, then penalties.

The trainer goes this way with `composed`, and whoever scores recorded rollouts again (a replay, a
forecast, another failure policy) with `recorded` and `recompose`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.rewards.checks import for_judge
from study.rewards.failure import TooManyMissing, apply_failure_policy
from study.rewards.formulas import (
    REWARDS,
    Parts,
    needs_judge,
    needs_truth,
    overlong,
    repetition,
    rule_part,
)
from study.rows import Row
from study.rules import verdict
from study.schema import Reward, Study

Composed = tuple[float | None, dict[str, float | None]]
"""A reward, None where there is none, and the terms that are logged beside it."""
Seen = tuple[float | None, float | None]


@dataclass(frozen=True)
class RewardInputs:
    """What the reward of one rollout is made of, but for its judge's score."""

    row: Row
    asked: Row
    """The row as the judge is asked about it."""
    answer: str
    """Without thinking; empty where there is none."""
    tokens: int
    """Length of the completion."""
    truth: float | None
    rules: tuple[bool | None, ...]
    """What each rule of ``row`` said; empty where none was run."""
    truth_missing: str | None = None
    """Why the truth could not be had; None where there is one, or where no rule can tell."""

    @property
    def item(self) -> tuple[Row, str]:
        """What a judge is asked about."""
        return self.asked, self.answer


def recorded(config: Study, row: Row, record: Mapping[str, Any]) -> RewardInputs:
    """A rollout as it stands in the records of a cell with that config."""
    return RewardInputs(
        row,
        for_judge(row, config.reward.rules),
        record["answer"] or "",
        record["tokens"],
        record["truth"],
        tuple(verdict(text) for text in record.get("rules") or ()),
        record.get("truth_missing"),
    )


def composed(
    config: Study,
    inputs: Sequence[RewardInputs],
    scores: Sequence[float | None],
    group_size: int,
    on_failure: str,
    max_unscored_frac: float = 1.0,
) -> list[Composed]:
    """Rewards of P * G rollouts in groups of G, from the judge's scores, None where unscored.
    Raises TooManyMissing: by the failure policy, or more than ``max_unscored_frac`` are missing."""
    pairs = seen(config.reward, inputs, scores, group_size, on_failure, max_unscored_frac)
    return [_compose(config, *rollout) for rollout in zip(inputs, pairs, strict=True)]


def seen(
    reward: Reward,
    inputs: Sequence[RewardInputs],
    scores: Sequence[float | None],
    group_size: int,
    on_failure: str,
    max_unscored_frac: float = 1.0,
) -> list[Seen]:
    """(judge's score, truth) of each rollout as the reward may see them.

    A truth that the reward is made of, and that could not be had, is treated by the failure policy
    as a missing score is. Where no rule can tell, there is nothing to treat. A score that the
    reward is not made of stays as it is. ``max_unscored_frac`` is of the rollouts whose reward is
    made of a score, of those whose reward is made of a truth, and of all, where one counts as
    missing that lacks either.
    Raises TooManyMissing: see `composed`.
    """
    judged = [needs_judge(reward, rollout.row.domain) for rollout in inputs]
    ruled = [needs_truth(reward, rollout.rules, rollout.row.domain) for rollout in inputs]
    lost = [
        needed and rollout.truth_missing is not None
        for needed, rollout in zip(ruled, inputs, strict=True)
    ]
    marks = [None if missing else 1.0 for missing in lost]
    limits = (group_size, on_failure, max_unscored_frac)
    limited = _treated(scores, judged, *limits, "verdicts")
    try:
        kept = _treated(marks, ruled, *limits, "rule truths")
    except TooManyMissing as error:
        why = inputs[lost.index(True)].truth_missing
        raise TooManyMissing(f"{error}. The first could not be had because {why}") from error
    either = [
        None if missing or (needed and score is None) else 1.0
        for missing, needed, score in zip(lost, judged, scores, strict=True)
    ]
    what = "verdicts or rule truths"
    apply_failure_policy(either, group_size, "unscored", max_unscored_frac, what)
    truths = [rollout.truth if mark else mark for rollout, mark in zip(inputs, kept, strict=True)]
    return list(zip(limited, truths, strict=True))


def _treated(
    values: Sequence[float | None],
    needed: Sequence[bool],
    group_size: int,
    on_failure: str,
    max_unscored_frac: float,
    what: str,
) -> list[float | None]:
    """The values after the failure policy; those of groups that do not need theirs are not looked
    at. Raises TooManyMissing: see `composed`."""
    chosen = [value for value, need in zip(values, needed, strict=True) if need]
    kept = iter(apply_failure_policy(chosen, group_size, on_failure, max_unscored_frac, what))
    return [next(kept) if need else value for value, need in zip(values, needed, strict=True)]


def recompose(
    config: Study,
    inputs: Sequence[RewardInputs],
    scores: Sequence[float | None],
    group_size: int,
    on_failure: str,
) -> list[float | None]:
    """Rewards that new scores would have made of recorded rollouts.

    There is no run to stop: ``abort`` leaves a missing score missing, and any share of missing
    scores is accepted.
    """
    policy = "unscored" if on_failure == "abort" else on_failure
    return [reward for reward, _ in composed(config, inputs, scores, group_size, policy)]


def _compose(config: Study, rollout: RewardInputs, pair: Seen) -> Composed:
    """A penalty is a term of its own: added to a reward that is there, it never makes one."""
    reward = config.reward
    parts = Parts(
        *pair,
        rollout.rules,
        tuple(rule.points for rule in rollout.row.rules) if rollout.rules else (),
        sum(max(0.0, criterion.points) for criterion in rollout.asked.criteria),
        rollout.row.domain,
    )
    terms: dict[str, float | None] = {"judge": parts.judge, "truth": parts.truth}
    if reward.rules == "run":
        terms["rule"] = rule_part(parts.rules, reward.rule_part) if parts.rules else None
    penalties = {}
    if reward.overlong.buffer:
        most = config.trainer.max_completion_length
        penalties["overlong"] = overlong(reward.overlong, rollout.tokens, most)
    if reward.repetition.weight:
        penalties["repetition"] = repetition(reward.repetition, rollout.answer)
    value = REWARDS[reward.name](reward, parts)
    return None if value is None else value + sum(penalties.values()), terms | penalties
