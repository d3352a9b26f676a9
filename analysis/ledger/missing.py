"""How much of the truth's push on a behaviour is gone with the verdicts that are missing.

The truth is known of answers that no verdict came for. So it is known what the advantages would
push on a behaviour if the truth were the reward of all rollouts, and what they would where the
verdicts that are missing are, and the failure policy makes of them what it makes. The difference is
`lost`. It says what of the truth's push is gone, not what the judge would have paid for the answers
that it did not score. docs/planted-truth.md has the columns and how they were checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.ledger.chance import Measured, by_prompt
from analysis.ledger.transmission import group_cov, passing
from analysis.records.runs import Run
from study.rewards.advantages import divisor
from study.rewards.failure import apply_failure_policy

WORST = (0.0, 0.5, 1.0)
"""Truths that an unknown one is taken for, in search of the worst cases."""
SWEEPS = 2
"""Times that each unknown truth is chosen anew, given the others."""


@dataclass(frozen=True)
class TruthPush:
    """Cov(advantage, feature) in each group where the truth is the reward, (P, K) each.

    NaN for a group of fewer than two such rollouts, or with one whose truth is unknown.
    """

    every: np.ndarray
    """Of all rollouts."""
    scored: np.ndarray
    """Of what the failure policy leaves of them."""

    @property
    def lost(self) -> np.ndarray:
        """Mean over groups of the one minus that of the other, shape (K,)."""
        return _mean(self.every) - _mean(self.scored)

    def measured(self, run: Run) -> Measured:
        """`lost` of a run, with what each of its prompts adds to the error."""
        pulls = _pulls(self.every) - _pulls(self.scored)
        return by_prompt(run, self.lost, pulls)


def unscored(run: Run) -> np.ndarray:
    """Rollouts whose reward is made of a score that is missing, (P, G).

    That is of the score as a correction left it. A missing score that the reward does without, such
    as in a domain that a rule rewards, is not among them.
    """
    scores = run.judge if run.corrected is None else run.corrected
    kept = run.under.get("unscored", run.reward if run.on_failure != "zero" else scores)
    return _recorded(run) & ~np.isfinite(scores) & ~np.isfinite(kept)


def truth_push(run: Run) -> TruthPush:
    """The truth's push in each group of a run, under its scaling and its failure policy."""
    truth = np.where(_unknown(run).any(axis=1, keepdims=True), np.nan, run.truth)
    missing, steps = unscored(run), run.step_P
    if run.scale != "batch" or len(np.unique(steps)) < 2:
        return TruthPush(*_pushes(truth, run.features, _kept(run, missing), run.scale))
    every, scored = (np.full((len(truth), run.features.shape[-1]), np.nan) for _ in range(2))
    kept = _kept(run, missing)
    for step in np.unique(steps):
        here = steps == step
        every[here], scored[here] = _pushes(truth[here], run.features[here], kept[here], "batch")
    return TruthPush(every, scored)


def worst_cases(run: Run, push: TruthPush) -> tuple[np.ndarray, np.ndarray]:
    """Least and most that `TruthPush.lost` of these groups could be, (K,) each, whatever the truth
    of the rollouts is that have none; the value itself where every rollout has one.

    Each unknown truth is the one of `WORST` that moves its group furthest, given the others: exact
    without division. Under ``batch`` the truths that are known divide.
    """
    unknown, missing = _unknown(run), unscored(run)
    at = unknown.any(axis=1)
    if not at.any() or not missing.any() or not np.isfinite(run.truth).any():
        ends = np.where(at.any() and missing.any(), np.nan, push.lost)
        return ends, ends
    kept, scale, divided_by = _kept(run, missing), run.scale, (1.0, 1.0)
    if scale == "batch":
        scale = "none"
        known = (run.truth, _left(run.truth, kept))
        divided_by = tuple(float(divisor(values, "batch")[0, 0]) for values in known)
    filled = np.where(unknown, 0.5, run.truth)
    parts = _pushes(filled, run.features, kept, scale)
    weights = [
        1 / (by * np.maximum(np.isfinite(part).sum(axis=0), 1))
        for part, by in zip(parts, divided_by, strict=True)
    ]
    count, size, features = int(at.sum()), filled.shape[1], run.features.shape[-1]
    z = np.moveaxis(run.features[at], -1, 0).reshape(features * count, size, 1)
    free, kept_here = (np.tile(part[at], (features, 1)) for part in (unknown, kept))

    def adds(truth: np.ndarray) -> np.ndarray:
        """What each group and feature adds to the loss, shape (K * P,)."""
        every, scored = (np.nan_to_num(part[:, 0]) for part in _pushes(truth, z, kept_here, scale))
        return np.repeat(weights[0], count) * every - np.repeat(weights[1], count) * scored

    every, scored = (np.nan_to_num(part[~at]).sum(axis=0) for part in parts)
    rest = weights[0] * every - weights[1] * scored
    ends = []
    for sign in (-1.0, 1.0):
        truth = np.tile(filled[at], (features, 1))
        best = sign * adds(truth)
        for _ in range(SWEEPS):
            for member in range(size):
                for value in WORST:
                    other = truth.copy()
                    other[:, member] = np.where(free[:, member], value, other[:, member])
                    gain = sign * adds(other)
                    better = gain > best + 1e-12
                    truth[better], best = other[better], np.where(better, gain, best)
        ends.append(rest + sign * best.reshape(features, count).sum(axis=1))
    return ends[0], ends[1]


def _recorded(run: Run) -> np.ndarray:
    """Places that a rollout fills, (P, G): the arrays have one for every member of every group."""
    known = np.stack([run.truth, run.judge, run.reward, run.advantage], axis=-1)
    return np.asarray(np.isfinite(np.concatenate([known, run.features], axis=-1)).any(axis=-1))


def _unknown(run: Run) -> np.ndarray:
    """Rollouts whose truth could not be had. Of an audited run these are of groups that the
    reference was asked about: the others were left out at random."""
    unknown = _recorded(run) & ~np.isfinite(run.truth)
    if run.reference is None or run.told_P is None:
        return unknown
    left_out_P = ~run.reference.asked_P & ~np.isfinite(run.truth).any(axis=1)
    return unknown & ~left_out_P[:, None]


def _kept(run: Run, missing_P_G: np.ndarray) -> np.ndarray:
    """What the failure policy makes of each score, (P, G): 1 keeps it, 0 is a 0 in its place, and
    NaN no reward."""
    if not missing_P_G.any():
        return np.ones(missing_P_G.shape)
    policy = "unscored" if run.on_failure == "abort" else run.on_failure
    marks = [None if gone else 1.0 for gone in missing_P_G.ravel().tolist()]
    left = apply_failure_policy(marks, missing_P_G.shape[1], policy)
    return np.array(left, dtype=float).reshape(missing_P_G.shape)


def _left(truth_P_G: np.ndarray, kept_P_G: np.ndarray) -> np.ndarray:
    """Truths as rewards after the failure policy."""
    return np.where(kept_P_G == 0, 0.0, truth_P_G * kept_P_G)


def _pushes(
    truth_P_G: np.ndarray, features_P_G_K: np.ndarray, kept_P_G: np.ndarray, scale: str
) -> tuple[np.ndarray, np.ndarray]:
    """`TruthPush` of some truths."""
    unknown = np.isnan(truth_P_G)
    left = np.where(unknown, np.nan, _left(truth_P_G, kept_P_G))
    every = group_cov(passing(truth_P_G, truth_P_G, scale)[1](truth_P_G), features_P_G_K)
    if (kept_P_G == 1).all():
        return every, every
    return every, group_cov(passing(left, left, scale)[1](left), features_P_G_K)


def _mean(values_P_K: np.ndarray) -> np.ndarray:
    """Mean over the groups that have a value, shape (K,)."""
    has_value = np.isfinite(values_P_K)
    count = has_value.sum(axis=0)
    total = np.where(has_value, values_P_K, 0.0).sum(axis=0)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


def _pulls(values_P_K: np.ndarray) -> np.ndarray:
    """What each group adds to the error of the mean over groups, (P, K)."""
    away = np.nan_to_num(values_P_K - _mean(values_P_K))
    return away / np.maximum(np.isfinite(values_P_K).sum(axis=0), 1)
