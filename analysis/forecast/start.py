"""Behaviours and truth of a policy's rollouts before training, and what a judge pays for in them.

All is in standard deviations of these rollouts, within the groups that advantages are made in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.ledger.transmission import centred, group_cov, scored_advantages
from analysis.statistics.estimate import FLAT, NAN, known_means

TRUTH = "truth"
RIDGE = 3e-3
"""Of the regression of a judge's error on standardised behaviours: two that go together share."""


@dataclass(frozen=True)
class Start:
    """Behaviours and truth of M rollouts of each of P prompts, drawn before training.

    Attributes:
        names: the K behaviours and, last, the truth: K1 = K + 1.
        mean, sd: of each over rollouts, in its own unit, shape (K1,); sd 0 where it never varied.
        correlation: within prompts, covariance over the two sds, shape (K1, K1).
        z: distance of each rollout from the mean in SDs, shape (P, M, K1); NaN where it is unknown.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    sd: np.ndarray
    correlation: np.ndarray
    z: np.ndarray

    @property
    def varies(self) -> np.ndarray:
        """Which of them vary, shape (K1,)."""
        return self.sd > FLAT

    @property
    def unit(self) -> np.ndarray:
        """``sd``, and 1 where nothing varied, shape (K1,)."""
        return np.where(self.varies, self.sd, 1.0)

    def sampling(self, prompts: int, group_size: int) -> np.ndarray:
        """Variance of the mean of ``z`` over one step's rollouts, by the draw of prompts and
        answers alone, shape (K1,)."""
        within = np.diag(self.correlation)
        return (np.maximum(0.0, self.varies - within) + within / group_size) / prompts

    @property
    def floor(self) -> np.ndarray:
        """The lowest shift in SDs that leaves nothing below 0, shape (K1,)."""
        return -self.mean / self.unit


def start_of(features_P_M_K: np.ndarray, truth_P_M: np.ndarray, names: Sequence[str]) -> Start:
    """`Start` of M rollouts of each of P prompts; mean, sd and correlation are of those with truth
    and all behaviours."""
    values = _complete(features_P_M_K, truth_P_M)
    present = np.asarray(np.isfinite(values).all(axis=-1))
    rows = values[present]
    sd = rows.std(axis=0) if len(rows) else np.zeros(values.shape[-1])
    unit = np.where(sd > FLAT, sd, 1.0)
    inside = centred(values / unit, present)
    flat = inside.reshape(-1, inside.shape[-1])
    free = max(1, int(np.maximum(present.sum(axis=1) - 1, 0).sum()))
    mean = rows.mean(axis=0) if len(rows) else np.full(values.shape[-1], NAN)
    return Start((*names, TRUTH), mean, sd, flat.T @ flat / free, (values - mean) / unit)


def bias_of(start: Start, score_P_M: np.ndarray, truth_P_M: np.ndarray) -> np.ndarray:
    """A judge's bias, shape (K,): what an SD of each behaviour adds to its advantages.

    The within-prompt regression of score - truth on behaviours and truth, over the SD of the score
    within prompts. NaN where no prompt has two scores that differ.
    """
    score = np.asarray(score_P_M, dtype=float)
    present = np.isfinite(start.z).all(axis=-1) & np.isfinite(score)
    x = centred(start.z, present).reshape(-1, start.z.shape[-1])
    error = centred(score - np.asarray(truth_P_M, dtype=float), present).ravel()
    free = np.maximum(present.sum(axis=1) - 1, 0).sum()
    spread = float((centred(score, present) ** 2).sum() / max(1, free)) ** 0.5
    if not spread > FLAT:
        return np.full(x.shape[1] - 1, NAN)
    ridge = RIDGE * present.sum() * np.eye(x.shape[1])
    return np.linalg.solve(x.T @ x + ridge, x.T @ error)[:-1] / spread


def advantage_push(
    z_P_G_K1: np.ndarray, rewards_P_G: np.ndarray, scale: str, penalty_P_G: np.ndarray | float = 0.0
) -> tuple[np.ndarray, float]:
    """E Cov(A, z) within groups, shape (K1,), in the unit of ``z``, 0 where it is unknown; and
    E A^2. ``scale`` is ``scale_rewards`` of the training; a penalty is taken from advantages."""
    advantage = scored_advantages(rewards_P_G, scale) - penalty_P_G
    pushed = np.nan_to_num(known_means(group_cov(advantage, z_P_G_K1)))
    known = np.isfinite(advantage)
    within = centred(advantage, known)
    return pushed, float((within**2).sum() / max(1, known.sum()))


def _complete(features_P_M_K: np.ndarray, truth_P_M: np.ndarray) -> np.ndarray:
    truth = np.asarray(truth_P_M, dtype=float)[..., None]
    return np.concatenate([np.asarray(features_P_M_K, dtype=float), truth], axis=-1)
