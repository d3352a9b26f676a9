"""What is taken off a score for the behaviour of its answer; arrays are (P, G) and (P, G, K)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from study.config.correction import Part
from study.rewards.advantages import group_mean

FLAT = 1e-12
"""A difference from the mean up to this share of it is rounding: equal fractions have one."""


def without(
    scores_P_G: np.ndarray, features_P_G_K: np.ndarray, parts: Sequence[Part]
) -> np.ndarray:
    """score - sum of b (x - mean) / sd over K features: not cut at 0 and 1, for what was cut off
    before is not known."""
    shares_P_G = [
        part.b * (features_P_G_K[..., k] - part.mean) / part.sd for k, part in enumerate(parts)
    ]
    return scores_P_G - np.sum(shares_P_G, axis=0)


def penalised(
    scores_P_G: np.ndarray, features_P_G_K: np.ndarray, weights: Sequence[float]
) -> np.ndarray:
    """score - sum of weight x (x - mean of the group) / SD within the groups of the step. The mean
    score of a group stays; a feature that varies in no group takes nothing off."""
    deviations = _within(scores_P_G, features_P_G_K)
    free = max(1, int((np.isfinite(scores_P_G).sum(axis=1) - 1).clip(min=0).sum()))
    sd = np.sqrt((deviations**2).sum(axis=(0, 1)) / free)
    z = np.divide(deviations, sd, out=np.zeros_like(deviations), where=sd > 0)
    return scores_P_G - z @ np.asarray(weights, dtype=float)


def debiased(scores_P_G: np.ndarray, features_P_G_K: np.ndarray) -> np.ndarray:
    """score - sum of c_k (x_k - mean of the group): within groups, no score goes with a feature.

    c are the coefficients of the regression of scores on features within groups, one set for all
    groups. With fewer scores than groups and coefficients the scores stay as they are.
    """
    present = np.isfinite(scores_P_G)
    deviations = _within(scores_P_G, features_P_G_K)
    lengths = np.sqrt((deviations**2).sum(axis=(0, 1)))
    unit = np.divide(deviations, lengths, out=np.zeros_like(deviations), where=lengths > 0)
    groups = int((present.sum(axis=1) > 1).sum())
    rank = int(np.linalg.matrix_rank(unit[present])) if present.any() else 0
    if int(present[present.sum(axis=1) > 1].sum()) - groups <= rank:
        return scores_P_G
    centred = (scores_P_G - group_mean(scores_P_G))[present]
    coefficients, *_ = np.linalg.lstsq(unit[present], centred, rcond=1e-10)
    return scores_P_G - unit @ coefficients


def _within(scores_P_G: np.ndarray, features_P_G_K: np.ndarray) -> np.ndarray:
    """Features less their mean over the scored rollouts of the group; 0 for the others, and where
    the difference is no more than rounding."""
    present = np.isfinite(scores_P_G)[..., None]
    columns = np.moveaxis(np.where(present, features_P_G_K, np.nan), -1, 0)
    means = np.stack([group_mean(column) for column in columns], axis=-1)
    deviations = features_P_G_K - means
    rounded = np.abs(deviations) <= FLAT * np.maximum(1.0, np.abs(means))
    return np.where(present & ~rounded, deviations, 0.0)
