"""Checks of `analysis.selfcheck` for the tables of the field: aggregates over runs and metrics."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from analysis.planted.trials import replicated
from analysis.statistics.aggregates import (
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)
from analysis.statistics.estimate import Estimate

SEEDS = 5
METRICS = np.array([-0.3, -0.1, 0.0, 0.1, 0.3])
"""What each metric's scores lie around; symmetric, so that their interquartile mean is 0."""
RUN_SD, NOISE_SD = 0.1, 0.1
"""Scores of a run have a part in common: it is one training."""
BETTER = 0.1
THRESHOLD = 0.1


def _scores(rng: np.random.Generator) -> np.ndarray:
    """Scores of five runs on the metrics, (S, M)."""
    by_run = rng.normal(0, RUN_SD, (SEEDS, 1))
    return METRICS + by_run + rng.normal(0, NOISE_SD, (SEEDS, len(METRICS)))


_SD = float(np.hypot(RUN_SD, NOISE_SD))


@replicated({"interquartile mean, t over runs": 0.0})
def middle(rng: np.random.Generator, number: int) -> list[Estimate]:
    """What the scores of one arm come to; a run's scores go together."""
    return [interquartile_mean(_scores(rng))]


@replicated(
    {
        "performance profile, t over runs": float(norm.sf((THRESHOLD - METRICS) / _SD).mean()),
        "probability of improvement": float(norm.cdf(BETTER / (2**0.5 * _SD))),
    },
    at_least=True,
)
def shares(rng: np.random.Generator, number: int) -> list[Estimate]:
    """Shares over five runs are coarse, so more than .95 may be covered."""
    scores, better = _scores(rng), _scores(rng) + BETTER
    profile = performance_profile(scores, np.array([THRESHOLD]))
    return [*profile, probability_of_improvement(better, scores)]


@replicated({"interquartile mean, rliable's bootstrap": 0.0})
def by_metric(rng: np.random.Generator, number: int) -> list[Estimate]:
    """The same scores, each metric resampled alone: too narrow where a run gives them all."""
    return [stratified_bootstrap(_scores(rng), replicates=400, seed=number)]


CHECKS = (middle, shares)
FAILING = (by_metric,)
