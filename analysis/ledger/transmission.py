"""The transmission ledger: how a judge's bias becomes advantages, per run and step.

Advantages are differences inside a group of rollouts of one prompt, so only what varies inside a
group can reach the policy: everything here is measured within groups. `analysis.ledger` applies it
to a study; docs/planted-truth.md says what each column is and how it was checked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from analysis.statistics.estimate import FLAT, known_mean
from analysis.statistics.fixed_effects import Within, fixed_effects
from study.rewards.advantages import (
    EPS,
    advantages,
    alignment,
    divisor,
    group_sd,
    sign_flips,
    silenced,
)
from study.verdict import THRESHOLD

SCALES = ("group", "batch", "none")


def within_regression(values_P_G: np.ndarray, features_P_G_K: np.ndarray) -> Within:
    """Least squares of values on features, both centred in their group.

    A rollout without a value or without features is left out before centring. With judge - truth
    as values the coefficients are the judge's bias in score units per unit of the feature.
    """
    y, x = np.asarray(values_P_G, dtype=float), np.asarray(features_P_G_K, dtype=float)
    # a feature that nobody measured is constant: it is dropped, and loses no rollout
    x = np.where(np.isfinite(x).any(axis=(0, 1)), x, 0.0)
    complete = np.isfinite(y) & np.isfinite(x).all(axis=-1)
    group = np.broadcast_to(np.arange(len(y))[:, None], y.shape)
    return fixed_effects(y[complete], x[complete], group[complete], flat=FLAT)


def group_cov(advantages_P_G: np.ndarray, features_P_G_K: np.ndarray) -> np.ndarray:
    """Covariance of advantage and each feature inside each group, shape (P, K), divisor n - 1.

    Over the rollouts that have both; NaN advantages are rollouts without a reward. NaN for a group
    with fewer than two. Its mean over groups is E Cov(A, z), the first-order push on the feature.
    """
    a = np.asarray(advantages_P_G, dtype=float)[..., None]
    z = np.asarray(features_P_G_K, dtype=float)
    complete = np.isfinite(a) & np.isfinite(z)
    count = complete.sum(axis=1)
    products = (centred(np.where(complete, a, 0.0), complete) * centred(z, complete)).sum(axis=1)
    return np.divide(products, count - 1, out=np.full(count.shape, np.nan), where=count > 1)


def scored_advantages(rewards_P_G: np.ndarray, scale: str) -> np.ndarray:
    """`study.rewards.advantages.advantages`, (P, G), with NaN for a rollout without a reward."""
    return np.where(np.isfinite(rewards_P_G), advantages(rewards_P_G, scale), np.nan)


def split(
    rewards_P_G: np.ndarray, truth_P_G: np.ndarray, scale: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Advantages and their additive parts: (total, of truth, of reward - truth), each (P, G).

    Both parts are divided by what divides the total (the group's or the batch's sd of the reward),
    so they add up exactly. Where that sd is 0 nothing reaches the policy, and neither part does:
    `EPS` divides only a reward that varies. Rollouts without a reward are NaN in all three; a group
    in which a rewarded rollout has no truth is NaN in both parts.
    """
    total, passes = passing(rewards_P_G, truth_P_G, scale)
    of_truth = passes(truth_P_G)
    # what rounding left of a flat group's total is the judge's, so that the parts still add up
    return total, of_truth, total - of_truth


def passing(
    rewards_P_G: np.ndarray, truth_P_G: np.ndarray, scale: str
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Advantages (P, G), and what gives the share in them of a part of the rewards: see `split`."""
    rewards = np.asarray(rewards_P_G, dtype=float)
    scored = np.isfinite(rewards)
    scored &= scored.sum(axis=1, keepdims=True) > 1
    total = np.where(scored, advantages(rewards, scale), np.nan)
    complete = (np.isfinite(truth_P_G) | ~scored).all(axis=1, keepdims=True) & scored
    divided_by = divisor(rewards, scale)
    flat = np.zeros((len(rewards), 1), dtype=bool)
    if scale == "group":
        flat = _range(rewards, scored)[:, None] <= FLAT
    elif scale == "batch":
        flat |= _range(rewards.reshape(1, -1), np.isfinite(rewards).reshape(1, -1)) <= FLAT

    def passes(part_P_G: np.ndarray) -> np.ndarray:
        passed = np.where(flat, 0.0, centred(part_P_G, complete) / divided_by)
        return np.where(complete, passed, np.nan)

    return total, passes


def tied_groups(truth_P_G: np.ndarray, rewards_P_G: np.ndarray) -> np.ndarray:
    """Per group: 1.0 where the truth is tied while the reward varies, 0.0 else, NaN unknown."""
    both = np.isfinite(truth_P_G) & np.isfinite(rewards_P_G)
    tied = (_range(truth_P_G, both) <= FLAT) & (_range(rewards_P_G, both) > FLAT)
    return np.where(both.sum(axis=1) > 1, tied.astype(float), np.nan)


def dead_groups(rewards_P_G: np.ndarray) -> np.ndarray:
    """Per group: 1.0 where all rewards are equal, 0.0 else, NaN with fewer than two rewards."""
    scored = np.isfinite(rewards_P_G)
    dead = (_range(rewards_P_G, scored) <= FLAT).astype(float)
    return np.where(scored.sum(axis=1) > 1, dead, np.nan)


def yes_no(judge_P_G: np.ndarray, truth_P_G: np.ndarray) -> dict[str, float]:
    """tpr, fpr, j (Youden) and phi (Matthews) of judge and truth, each a yes from `THRESHOLD` on.

    Over all rollouts that have both; NaN where a rate has nothing to be a rate of, and phi also
    where the judge says the same to all.
    """
    both = np.isfinite(judge_P_G) & np.isfinite(truth_P_G)
    says, is_so = judge_P_G[both] >= THRESHOLD, truth_P_G[both] >= THRESHOLD
    tpr, fpr = known_mean(says[is_so]), known_mean(says[~is_so])
    varies = len(says) > 0 and 0 < says.mean() < 1 and 0 < is_so.mean() < 1
    phi = float(np.corrcoef(says, is_so)[0, 1]) if varies else float("nan")
    return {"tpr": tpr, "fpr": fpr, "j": tpr - fpr, "phi": phi}


def gains(rewards_P_G: np.ndarray, truth_P_G: np.ndarray) -> dict[str, float]:
    """What division by the group's sd does to one point of reward, against no division (= 1).

    ``gain`` is the mean of 1 / (sd + `EPS`) over live groups, ``gain_tied`` that over groups with a
    tied truth, and ``amplification`` gain_tied over the gain of the others: how many times more a
    point of bias weighs where the truth has nothing to say.
    """
    live = dead_groups(rewards_P_G) == 0
    gain = 1 / (group_sd(np.asarray(rewards_P_G, dtype=float))[live, 0] + EPS)
    tied = tied_groups(truth_P_G, rewards_P_G)[live]
    gain_tied, gain_else = known_mean(gain[tied == 1]), known_mean(gain[tied == 0])
    amplification = gain_tied / gain_else
    return {"gain": known_mean(gain), "gain_tied": gain_tied, "amplification": amplification}


def comparing(before_P_G: np.ndarray, scale: str) -> Callable[[np.ndarray], dict[str, float]]:
    """Compares other reward matrices with one, as advantages.

    Returns (P, G) -> correlation, cosine, flips and silenced (shares). Correlation is over the
    rollouts that both reward; see `study.rewards.advantages` for the others.
    """
    before, rewarded = advantages(before_P_G, scale), np.isfinite(before_P_G)

    def compare(after_P_G: np.ndarray) -> dict[str, float]:
        after = advantages(after_P_G, scale)
        both = rewarded & np.isfinite(after_P_G)
        a, b = before[both], after[both]
        correlation = float("nan")
        if len(a) > 1:
            a, b = a - a.mean(), b - b.mean()
            lengths = float(a @ a) ** 0.5, float(b @ b) ** 0.5
            if min(lengths) > FLAT * len(a) ** 0.5:
                correlation = float(a @ b) / (lengths[0] * lengths[1])
        return {
            "correlation": correlation,
            "cosine": alignment(before, after),
            "flips": sign_flips(before, after),
            "silenced": silenced(before, after),
        }

    return compare


def centred(values: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Values less their group's mean over ``present``, 0 elsewhere; groups are the rows.

    ``values`` is (P, G) or (P, G, K) and ``present`` broadcasts over K.
    """
    if present.ndim < values.ndim:
        present = present[..., None]
    inside = np.where(present, values, 0.0)
    count = np.maximum(present.sum(axis=1, keepdims=True), 1)
    return np.where(present, inside - inside.sum(axis=1, keepdims=True) / count, 0.0)


def _range(values: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Largest minus smallest known value of each group, shape (P,); -inf for a group without."""
    high = np.where(present, values, -np.inf).max(axis=1, initial=-np.inf)
    low = np.where(present, values, np.inf).min(axis=1, initial=np.inf)
    return high - low
