"""Group advantages as TRL computes them, from recorded rewards, without torch.

Turns other verdicts on stored rollouts into the advantages that GRPO would have used.
"""

from __future__ import annotations

import numpy as np

EPS = 1e-4
"""TRL's, added to the standard deviation."""
TIED = 1e-6
"""Advantages closer to 0 than this carry no sign."""
IN_FLOAT32 = 2e-3
"""How far off an advantage may be that was computed in single precision, relative to 1 + itself."""


def advantages(rewards_P_G: np.ndarray, scale: str = "group", eps: float = EPS) -> np.ndarray:
    """Advantages of P groups of G rollouts; NaN is a missing reward.

    A = (r - mean of its group) / (sd + eps), mean and unbiased sd over the rewards that are there;
    ``scale`` says whose sd: ``group``, ``batch`` (all P * G) or ``none`` (no division). A missing
    reward gets advantage 0 and leaves the others as if it were not there; so does, under
    ``group``, a group with fewer than two rewards. As in TRL 1.16 (a test compares).

    Args:
        rewards_P_G: shape (P, G).
        scale: group, batch or none.
        eps: added to the sd.

    Raises:
        ValueError: another ``scale``, or rewards that are not two-dimensional.
    """
    rewards = np.asarray(rewards_P_G, dtype=float)
    if rewards.ndim != 2:
        raise ValueError(f"rewards have shape (P, G), not {rewards.shape}")
    centred = rewards - group_mean(rewards)
    return np.nan_to_num(centred / divisor(rewards, scale, eps), nan=0.0)


def misfits(rewards_P_G: np.ndarray, recorded_P_G: np.ndarray, scale: str) -> np.ndarray:
    """Which recorded advantages, (P, G), are not those of their rewards, but for single precision.
    See `advantages`."""
    expected = advantages(rewards_P_G, scale)
    return np.abs(recorded_P_G - expected) > IN_FLOAT32 * (1 + np.abs(expected))


def divisor(rewards_P_G: np.ndarray, scale: str, eps: float = EPS) -> np.ndarray:
    """What `advantages` divides by: (P, 1) for ``group``, (1, 1) for ``batch`` and ``none``.
    Raises ValueError: another ``scale``."""
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale is group, batch or none, not {scale!r}")
    if scale == "none":
        return np.ones((1, 1))
    return group_sd(rewards_P_G if scale == "group" else rewards_P_G.reshape(1, -1)) + eps


def group_mean(values_P_G: np.ndarray, lost: int = 0) -> np.ndarray:
    """Sum of each group's values that are there over their number - ``lost``, shape (P, 1)."""
    present = np.isfinite(values_P_G)
    count = present.sum(axis=1, keepdims=True) - lost
    total = np.where(present, values_P_G, 0.0).sum(axis=1, keepdims=True)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def group_sd(values_P_G: np.ndarray) -> np.ndarray:
    """Unbiased sd of each group's values that are there, shape (P, 1); NaN for fewer than two."""
    return np.sqrt(group_mean((values_P_G - group_mean(values_P_G)) ** 2, lost=1))


def sign_flips(before: np.ndarray, after: np.ndarray) -> float:
    """Share of rollouts that are pushed the other way: of those with a sign in both, NaN for none.

    A rollout whose advantage is 0 (missing, or its group tied) in either is left out: it was not
    pushed at all, which `silenced` counts.
    """
    a, b = _flat(before), _flat(after)
    both = (abs(a) > TIED) & (abs(b) > TIED)
    return float((a[both] * b[both] < 0).mean()) if both.any() else float("nan")


def silenced(before: np.ndarray, after: np.ndarray) -> float:
    """Share of the rollouts with an advantage before that have none after; NaN for none before."""
    a, b = _flat(before), _flat(after)
    had = abs(a) > TIED
    return float((abs(b[had]) <= TIED).mean()) if had.any() else float("nan")


def alignment(before: np.ndarray, after: np.ndarray) -> float:
    """Cosine of two advantage vectors: 1 the same direction, 0 unrelated, NaN where one is all 0.

    With equal log-probability gradients this is how far two judges pull one policy the same way.
    """
    a, b = _flat(before), _flat(after)
    length = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / length) if length > TIED else float("nan")


def rank_change(before_P_G: np.ndarray, after_P_G: np.ndarray) -> float:
    """Mean absolute change of a rollout's rank in its group (ties share ranks), in places."""
    if not np.size(before_P_G):
        return float("nan")
    from scipy.stats import rankdata  # here: a sweep's start would take it

    before, after = rankdata(before_P_G, axis=1), rankdata(after_P_G, axis=1)
    return float(abs(before - after).mean())


def _flat(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, dtype=float).ravel()
