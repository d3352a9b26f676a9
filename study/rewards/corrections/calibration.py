"""A judge's scale put on the truth's, by isotonic regression on labelled rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scale:
    """Scores and the truth that each stands for, both (M,), neither of them falling."""

    scores: np.ndarray
    truths: np.ndarray

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """The truth that scores stand for: linear between two that were seen, level beyond them."""
        has_score = np.isfinite(scores)
        truths = np.interp(np.where(has_score, scores, self.scores[0]), self.scores, self.truths)
        return np.where(has_score, truths, np.nan)


def fitted(scores_N: np.ndarray, truths_N: np.ndarray) -> Scale:
    """Least squares over all functions that do not fall; equal scores count as one, with their mean
    truth."""
    scores, place, count = np.unique(scores_N, return_inverse=True, return_counts=True)
    means = np.bincount(place, truths_N) / count
    from scipy.optimize import isotonic_regression  # here: a sweep's start would take it

    return Scale(scores, isotonic_regression(means, weights=count.astype(float)).x)
