"""From a judge's scores to rewards: failure policy, then the formula by name, then penalties.

The trainer goes this way with `composed`, and whoever scores recorded rollouts again (a replay, a
forecast, another failure policy) with `recorded` and `recompose`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from study.cell.records import FEATURE
from study.config.schema import Reward, Study
from study.programs.rewards import OK, SHARES, ExecutedProgram
from study.rewards.checks import for_judge
from study.rewards.failure import TooManyMissing, apply_failure_policy
from study.rewards.formulas import (
    Paid,
    Parts,
    needs_judge,
    needs_truth,
    overlong,
    pay,
    repetition,
    rule_part,
)
from study.rows import Row
from study.tasks.rules import verdict

Composed = tuple[float | None, dict[str, float | None]]
"""A reward, None where there is none, and the terms that are logged beside it."""
ScoreAndTruth = tuple[float | None, float | None]


@dataclass(frozen=True)
class RewardInputs:
    """What the reward of one rollout is made of, but for its judge's score."""

    row: Row
    judged_row: Row
    """The row as the judge is asked about it."""
    answer: str
    """Without thinking; empty where there is none."""
    tokens: int
    """Length of the completion."""
    truth: float | None
    rules: tuple[bool | None, ...]
    """What each rule of ``row`` said; empty where none was run."""
    truth_missing: str | None = None
    """Why the truth is missing; None if there is one, or if no rule can tell."""
    played: ExecutedProgram | None = None
    """How the program ran, where the completion is one; None where it is the answer itself."""

    @property
    def has_answer(self) -> bool:
        """Whether there was an answer to ask judge and rule about."""
        return self.played is None or self.played.outcome == OK

    @property
    def item(self) -> tuple[Row, str] | None:
        """What a judge is asked about; None where there is no answer."""
        return (self.judged_row, self.answer) if self.has_answer else None


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
        _played(record),
    )


def _played(record: Mapping[str, Any]) -> ExecutedProgram | None:
    """How a recorded program ran; None for a rollout that is no program."""
    if record.get("outcome") is None:
        return None
    shares = {name: record.get(f"{FEATURE}{name}") for name in SHARES}
    measured = {name: float(value) for name, value in shares.items() if value is not None}
    return ExecutedProgram(record["outcome"], **measured)


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
    pairs = observable_pairs(
        config.reward, inputs, scores, group_size, on_failure, max_unscored_frac
    )
    starts = range(0, len(inputs), group_size)
    groups = [slice(start, start + group_size) for start in starts]
    return [
        rollout
        for group in groups
        for rollout in _compose(config, inputs[group], pairs[group], on_failure == "drop_group")
    ]


def observable_pairs(
    reward: Reward,
    inputs: Sequence[RewardInputs],
    scores: Sequence[float | None],
    group_size: int,
    on_failure: str,
    max_unscored_frac: float = 1.0,
) -> list[ScoreAndTruth]:
    """(judge's score, truth) of each rollout as the reward may see them.

    A missing truth that the reward is made of is treated by the failure policy as a missing score
    is. Where no rule can tell, there is nothing to treat. A score that the reward is not made of
    stays as it is. ``max_unscored_frac`` is of the rollouts whose reward is made of a score, of
    those whose reward is made of a truth, and of all, where one counts as missing that lacks
    either.
    Raises TooManyMissing: see `composed`.
    """
    is_judged, is_ruled = _needs(reward, inputs)
    is_missing = [
        needed and rollout.truth_missing is not None
        for needed, rollout in zip(is_ruled, inputs, strict=True)
    ]
    marks = [None if missing else 1.0 for missing in is_missing]
    limit = partial(
        apply_failure_policy,
        group_size=group_size,
        policy=on_failure,
        max_unscored_frac=max_unscored_frac,
    )
    limited = limit(list(scores), what="verdicts", needed=is_judged)
    try:
        kept = limit(marks, what="rule truths", needed=is_ruled)
    except TooManyMissing as error:
        why = inputs[is_missing.index(True)].truth_missing
        raise TooManyMissing(f"{error}. The first is missing because {why}") from error
    either = [
        None if missing or (needed and score is None) else 1.0
        for missing, needed, score in zip(is_missing, is_judged, scores, strict=True)
    ]
    what = "verdicts or rule truths"
    has_answer = [rollout.has_answer for rollout in inputs]
    apply_failure_policy(either, group_size, "unscored", max_unscored_frac, what, has_answer)
    truths = [rollout.truth if mark else mark for rollout, mark in zip(inputs, kept, strict=True)]
    return list(zip(limited, truths, strict=True))


def _needs(reward: Reward, inputs: Sequence[RewardInputs]) -> tuple[list[bool], list[bool]]:
    """Whether the reward of each rollout is made of its score, and of its truth."""
    judged = [item.has_answer and needs_judge(reward, item.row.domain) for item in inputs]
    ruled = [
        item.has_answer and needs_truth(reward, item.rules, item.row.domain) for item in inputs
    ]
    return judged, ruled


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


def _compose(
    config: Study, inputs: Sequence[RewardInputs], pairs: Sequence[ScoreAndTruth], drop: bool
) -> list[Composed]:
    """The rewards of one group. A penalty is a term of its own: added to a reward that is there, it
    never makes one. With ``drop`` a group that lacks what its rewards are made of has none."""
    reward = config.reward
    parts = [_parts(rollout, pair) for rollout, pair in zip(inputs, pairs, strict=True)]
    lost = any(
        (judged and score is None) or (ruled and truth is None)
        for judged, ruled, (score, truth) in zip(*_needs(reward, inputs), pairs, strict=True)
    )
    paid = pay(reward, parts, dropped=drop and lost)
    return [
        _with_penalties(config, rollout, part, each)
        for rollout, part, each in zip(inputs, parts, paid, strict=True)
    ]


def _parts(rollout: RewardInputs, pair: ScoreAndTruth) -> Parts:
    judge, truth = pair
    return Parts(
        judge=judge,
        truth=truth,
        rules=rollout.rules,
        rule_points=tuple(rule.points for rule in rollout.row.rules) if rollout.rules else (),
        judge_points=sum(max(0.0, item.points) for item in rollout.judged_row.criteria),
        domain=rollout.row.domain,
        played=rollout.played,
    )


def _with_penalties(config: Study, rollout: RewardInputs, parts: Parts, paid: Paid) -> Composed:
    reward = config.reward
    value, own = paid
    terms: dict[str, float | None] = {"judge": parts.judge, "truth": parts.truth}
    if reward.rules == "run":
        terms["rule"] = rule_part(parts.rules, reward.rule_part) if parts.rules else None
    penalties = {}
    if reward.overlong.buffer:
        most = config.trainer.max_completion_length
        penalties["overlong"] = overlong(reward.overlong, rollout.tokens, most)
    if reward.repetition.weight:
        penalties["repetition"] = repetition(reward.repetition, rollout.answer)
    whole = None if value is None else value + sum(penalties.values())
    return whole, terms | own | penalties
