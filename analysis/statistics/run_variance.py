"""How much more runs vary than sampling explains: learnt from all comparisons of a study.

Three runs say little about their own variance: Student's t of 2 degrees of freedom is 4.30. Their
groups say how large it is at least. So the variance of a run is taken to be its sampling variance
times a ratio of 1 or more, and the ratios of a study's comparisons to be draws of one distribution
over a grid, whose weights are fitted to all of them by EM (empirical Bayes, Efron 2014, Statistical
Science 29, 285), with the weight of `PRIOR_COUNT` comparisons on a prior. What is shrunk are
variances, never effects::

    variances = RunVariance.fitted(np.array([0.8, 1.9, 0.2]), np.array([2, 2, 2]))
    variances.half(1.9, free=2, sampling_free=90)   # in standard errors of sampling

Not to be trusted for a comparison whose runs vary where those of all others do not:
docs/statistics.md says how often its interval misses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.optimize import brentq

from analysis.statistics.estimate import LEVEL

PRIOR_COUNT = 3.0
"""Comparisons that the prior counts for; with `NO_EXCESS` chosen on planted studies, not proven."""
NO_EXCESS = 0.45
"""Prior chance that runs vary by sampling alone; the rest is even in the logarithm of the ratio."""
STEP = 1.5
"""Factor between two ratios of the grid."""
WIDEST, BEYOND = 100.0, 10.0
"""The grid ends at the larger of these: the first, and the second times the largest observed."""
ROUNDS = 60
"""Of EM; 2,000 change an interval by 2 % at most (8 to 60 comparisons, ratios of 1 to 21)."""
NO_SAMPLING = 1e8
"""Observed ratio from which the sampling variance is as good as 0."""
TAIL = 1 - LEVEL


@dataclass(frozen=True)
class RunVariance:
    """Weights of R ratios of variances: of a run, over that of its sampling."""

    ratio_R: np.ndarray
    weight_R: np.ndarray

    @classmethod
    def fitted(cls, observed_N: np.ndarray, free_N: np.ndarray) -> RunVariance:
        """The distribution of ratios behind N comparisons.

        Args:
            observed_N: variance of the runs over their mean sampling variance; not finite, or from
                `NO_SAMPLING` on, is left out.
            free_N: degrees of freedom of each, its runs less one.
        """
        known = np.isfinite(observed_N) & (free_N > 0) & (observed_N < NO_SAMPLING)
        observed, free = observed_N[known], free_N[known]
        widest = max([WIDEST, *(BEYOND * observed)])
        ratio = STEP ** np.arange(1 + math.ceil(math.log(widest, STEP)))
        prior = np.full(len(ratio), (1 - NO_EXCESS) / (len(ratio) - 1))
        prior[0] = NO_EXCESS
        likelihood, weight = _likelihood(observed, free, ratio), prior
        for _ in range(ROUNDS if len(observed) else 0):
            posterior = likelihood * weight
            posterior /= posterior.sum(axis=1, keepdims=True)
            weight = PRIOR_COUNT * prior + posterior.sum(axis=0)
            weight = weight / weight.sum()
        return cls(ratio, weight)

    def posterior(self, observed: float, free: int) -> np.ndarray:
        """Weights (R,) of the ratios for a comparison with one observed ratio."""
        of_one = _likelihood(np.array([observed]), np.array([free]), self.ratio_R)[0]
        weight = of_one * self.weight_R
        return weight / weight.sum()

    def p(self, z: float, observed: float, free: int, sampling_free: float = math.inf) -> float:
        """Two-sided p of a mean that lies ``z`` standard errors of its sampling from 0.

        Args:
            observed: ratio of variances; one that the grid does not reach gets Student's t.
            free: degrees of freedom of the runs.
            sampling_free: of the sampling variance.
        """
        if not observed <= self.reach:
            return float(2 * _tail(np.array(abs(z) / math.sqrt(observed)), free))
        tails = _tail(abs(z) / np.sqrt(self.ratio_R), max(sampling_free, 1.0))
        return float(2 * self.posterior(observed, free) @ tails)

    @property
    def reach(self) -> float:
        """The largest observed ratio that the grid has room for."""
        return float(self.ratio_R[-1] / BEYOND)

    def half(
        self, observed: float, free: int, sampling_free: float = math.inf, alpha: float = TAIL
    ) -> float:
        """Half the interval of a mean that leaves 0 out where its `p` is below ``alpha``, in
        standard errors of its sampling."""
        most = -special.stdtrit(min(free, max(sampling_free, 1.0)), alpha / 4)
        most *= math.sqrt(max(observed, self.ratio_R[-1]))
        return float(brentq(lambda z: self.p(z, observed, free, sampling_free) - alpha, 0, most))


def _tail(z_R: np.ndarray, free: float) -> np.ndarray:
    """Chance that Student's t of ``free`` degrees of freedom is above ``z``, which is 0 or more."""
    return special.ndtr(-z_R) if math.isinf(free) else special.stdtr(free, -z_R)


def _likelihood(observed_N: np.ndarray, free_N: np.ndarray, ratio_R: np.ndarray) -> np.ndarray:
    """Of N observed ratios under each of R, (N, R), up to a factor for each of the N."""
    free = free_N[:, None]
    exponent = -free * (np.log(ratio_R) + observed_N[:, None] / ratio_R) / 2
    return np.exp(exponent - exponent.max(axis=1, keepdims=True))


def _before_data() -> RunVariance:
    """The prior, with room beyond for whatever is observed."""
    prior = RunVariance.fitted(np.empty(0), np.empty(0))
    beyond = prior.ratio_R[-1] * STEP ** np.arange(1, 20)
    return RunVariance(
        np.append(prior.ratio_R, beyond), np.append(prior.weight_R, np.zeros(len(beyond)))
    )


BEFORE_DATA = _before_data()
"""What a plan has to go by: the prior, as if the comparisons of a study had confirmed it."""
