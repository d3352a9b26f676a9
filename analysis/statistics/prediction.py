"""A number that was predicted beside what was observed, and how such predictions came out.

Where training ends is predicted from pushes, from a judge's bias on first rollouts or probes, and
from a mixture's first steps. Each way keeps a `Prediction`, and `score` says how they held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.statistics.agreement import correlation
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate, known_mean
from analysis.statistics.intervals import line

FEWEST = 3
"""Pairs of numbers that a line, an R2 or a step size takes, at least."""


@dataclass(frozen=True)
class Prediction:
    """One number of a run, or of the runs of an arm, in the number's own unit.

    Attributes:
        cell: the run; empty for a prediction of all runs of the arm.
        arm: the judge or arm that is predicted.
        feature: the behaviour; of a mixture the domain.
        observed: what came, `NO_ESTIMATE` where it is not known.
        predicted: with its 95 % prediction interval where it has one.
    """

    cell: str
    arm: str
    feature: str
    observed: Estimate
    predicted: Estimate


@dataclass(frozen=True)
class Scores:
    """How predictions came out, over those that have both numbers; NaN where it cannot be told.

    Attributes:
        count, arms: predictions with both numbers, and arms that they are of.
        r2: 1 - SS(observed - predicted) / SS(observed - mean), which a bad prediction makes
            negative.
        correlation, rank: Pearson's and Spearman's.
        slope: of observed on predicted with its t interval: 1 is calibrated.
        inside: share of the prediction intervals that hold what was observed.
    """

    count: int
    arms: int
    r2: float = NAN
    correlation: float = NAN
    rank: float = NAN
    slope: Estimate = NO_ESTIMATE
    inside: float = NAN


def score(predictions: Sequence[Prediction]) -> Scores:
    """How the predictions came out. R2, correlation and slope take `FEWEST` of them that vary."""
    observed, value, low, high = _numbers(predictions)
    both = np.isfinite(observed) & np.isfinite(value)
    x, y = value[both], observed[both]
    can_fit = len(x) >= FEWEST and np.ptp(x) > 0
    bounded = np.isfinite([observed, low, high]).all(axis=0)
    return Scores(
        count=len(x),
        arms=len({each.arm for each, known in zip(predictions, both, strict=True) if known}),
        r2=r2(observed, value),
        correlation=pearson(x, y),
        rank=correlation(x, y, "spearman").value,
        slope=line(x, y).slope if can_fit else NO_ESTIMATE,
        inside=known_mean(np.where(bounded, (low <= observed) & (observed <= high), NAN)),
    )


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of N pairs of numbers, NaN below `FEWEST`, and where a side has no spread."""
    can_tell = len(x) >= FEWEST and np.ptp(x) > 0 and np.ptp(y) > 0
    return float(np.corrcoef(x, y)[0, 1]) if can_tell else NAN


def r2(observed: np.ndarray, predicted: np.ndarray) -> float:
    """`Scores.r2` of N numbers, shapes (N,), over those that have both; NaN below `FEWEST`, and
    where nothing varies."""
    both = np.isfinite(observed) & np.isfinite(predicted)
    y = observed[both]
    if len(y) < FEWEST or np.ptp(y) == 0:
        return NAN
    return 1 - float(((y - predicted[both]) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def _numbers(predictions: Sequence[Prediction]) -> np.ndarray:
    """Observed and predicted values and the ends of the intervals, shape (4, N)."""
    rows = [
        (each.observed.value, each.predicted.value, each.predicted.low, each.predicted.high)
        for each in predictions
    ]
    return np.array(rows, dtype=float).reshape(-1, 4).T
