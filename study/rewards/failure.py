"""What is done with a missing verdict: ``judge.on_failure``, which a study can vary.

>>> apply_failure_policy([0.5, None, 1.0, 0.0], group_size=2, policy="drop_group")
[None, None, 1.0, 0.0]
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from study.config.bounds import words_of
from study.config.schema import Judge
from study.errors import UserError
from study.system.secrets import redact
from study.system.tables import table
from study.verdict import Verdict

POLICIES = words_of(Judge, "on_failure")
REPLAY_POLICIES = tuple(policy for policy in POLICIES if policy != "abort")
"""Those that recorded rollouts can be scored by again: they have no run to abort."""
REASON = 240
"""Characters of a reason that are shown."""
REMEDIES = table(__file__)
"""Outcome -> what to type against it, as `remedy` fills it in."""


class TooManyMissing(UserError):
    """Too few verdicts to train on; the run stops here and can be resumed."""


def remedy(outcome: str, judge: Judge) -> str:
    """What to type against an outcome of `REMEDIES`, with values for ``judge``."""
    return REMEDIES[outcome].format(
        judge=judge,
        url=judge.endpoint.url or "the judge",
        half_concurrency=max(1, judge.endpoint.max_concurrency // 2),
        double_deadline=2 * judge.endpoint.deadline_s,
        double_tokens=2 * judge.sampling.max_tokens,
        new="a setting of the judge's identity: it makes new cells",
    )


def too_many_missing(rule: str, verdicts: Sequence[Verdict], judge: Judge) -> TooManyMissing:
    """The error of a run without verdicts: what is missing, the commonest reason, what to type.
    ``rule`` is what stopped the run, ``verdicts`` are all of the step's, the scored ones too."""
    missing = [verdict for verdict in verdicts if verdict.score is None]
    outcomes = Counter(verdict.outcome.value for verdict in missing).most_common()
    counts = ", ".join(f"{count} {name}" for name, count in outcomes)
    key = os.environ.get(judge.endpoint.api_key_env or "", "")
    # whole before it is cut: half a key is no longer found, and is still half a key
    messages = (redact(verdict.reason, [key]) for verdict in missing if verdict.reason)
    reasons = Counter(" ".join(reason.split()) for reason in messages)
    parts = [rule, f"Of {len(verdicts)} verdicts of judge={judge.name}: {counts or 'none missing'}"]
    for reason, count in reasons.most_common(1):
        excerpt = reason if len(reason) <= REASON else f"{reason[:REASON]}..."
        parts.append(f"The commonest reason, {count} times: {excerpt}")
    for name, _ in outcomes:
        if name in REMEDIES:
            parts.append(f"Against {name}: {remedy(name, judge)}")
    parts.append(
        "The rollouts and verdicts of this step are kept under missing/, and the policy did not"
        " learn from them. Rerun the command to resume from the last checkpoint and to ask again"
        " for the missing verdicts only. To accept more missing verdicts, type"
        " judge.max_unscored_frac=SHARE"
    )
    return TooManyMissing(". ".join(part.rstrip(".") for part in parts) + ".")


def apply_failure_policy(
    scores: list[float | None],
    group_size: int,
    policy: str,
    max_unscored_frac: float = 1.0,
    what: str = "verdicts",
    needed: Sequence[bool] | None = None,
) -> list[float | None]:
    """Scores as the reward may see them.

    Args:
        scores: P * G judge scores in group order, None where unscored.
        group_size: G.
        policy: ``unscored`` keeps None; ``zero`` writes 0.0, which reproduces the field's most
            common bug as a treatment; ``drop_group`` makes the whole group None; ``abort`` stops.
        max_unscored_frac: stops the run where more than this share is missing.
        what: what is missing, for messages.
        needed: which of the scores were to be had at all; None for all. The others are never
            missing and never made a number, but a group that is dropped is dropped whole.

    Raises:
        TooManyMissing: by ``abort`` with anything missing, or by the share of missing verdicts.
    """
    wanted = [True] * len(scores) if needed is None else list(needed)
    is_missing = [score is None and want for score, want in zip(scores, wanted, strict=True)]
    if any(is_missing) and policy == "abort":
        raise TooManyMissing(
            f"{sum(is_missing)} of {sum(wanted)} {what} are missing and on_failure=abort"
        )
    if sum(is_missing) > max_unscored_frac * sum(wanted):
        raise TooManyMissing(
            f"{sum(is_missing)} of {sum(wanted)} {what} of this step are missing, more than "
            f"judge.max_unscored_frac={max_unscored_frac}; the policy would train on noise"
        )
    if policy == "zero":
        return [
            0.0 if missing else score for score, missing in zip(scores, is_missing, strict=True)
        ]
    if policy == "drop_group":
        kept_scores: list[float | None] = []
        for start in range(0, len(scores), group_size):
            group = scores[start : start + group_size]
            kept_scores += (
                [None] * len(group) if any(is_missing[start : start + group_size]) else group
            )
        return kept_scores
    return list(scores)
