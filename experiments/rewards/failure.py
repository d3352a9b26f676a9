"""What becomes of a verdict that could not be had: ``judge.on_failure``, a factor of the study."""

from __future__ import annotations

from experiments.bounds import words_of
from experiments.config import Judge

POLICIES = words_of(Judge, "on_failure")


class Starved(Exception):
    """Too few verdicts to train on; the run stops here and can be resumed."""


def apply_failure_policy(
    scores: list[float | None], group_size: int, policy: str, max_unscored_frac: float
) -> list[float | None]:
    """Scores as the reward may see them.

    Args:
        scores: P * G judge scores in group order, None where unscored.
        group_size: G.
        policy: ``unscored`` keeps None; ``zero`` writes 0.0, which reproduces the field's most
            common bug as a treatment; ``drop_group`` makes the whole group None; ``abort`` stops.
        max_unscored_frac: the run stops where more than this share is missing.

    Raises:
        Starved: by ``abort`` with anything missing, or by the share of missing verdicts.
    """
    missing = sum(score is None for score in scores)
    if missing and policy == "abort":
        raise Starved(f"{missing} of {len(scores)} verdicts are missing and on_failure=abort")
    if missing > max_unscored_frac * len(scores):
        raise Starved(
            f"{missing} of {len(scores)} verdicts of this step are missing, more than "
            f"judge.max_unscored_frac={max_unscored_frac}; the policy would train on noise"
        )
    if policy == "zero":
        return [0.0 if score is None else score for score in scores]
    if policy == "drop_group":
        out: list[float | None] = []
        for start in range(0, len(scores), group_size):
            group = scores[start : start + group_size]
            out += [None] * len(group) if None in group else group
        return out
    return list(scores)
