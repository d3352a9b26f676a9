"""How far runs lie about their forecasts, and intervals that hold their share of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats
from scipy.optimize import minimize

from analysis.statistics.estimate import NAN

LEAST = 0.02
"""Least SD of a run about its forecast, in SDs of the behaviour."""


@dataclass(frozen=True)
class Spread:
    """How far a run of a judge that was not seen lies about its forecast, in SDs.

    Attributes:
        sd: where little moves, shape (K1,); NaN where it was not told.
        relative, beside: what a run's SD has beside it, as shares of what its judge teaches of the
            behaviour, and of the root mean square of all that its judge teaches.
        widths: SDs that hold the level's share of the runs of judges left out, shape (K1,).
        judges: that were left out, one after the other.
        level: share of the runs that an interval is to hold.
    """

    sd: np.ndarray
    relative: float
    beside: float
    widths: np.ndarray
    judges: int
    level: float

    def halves(self, taught_A_K1: np.ndarray) -> np.ndarray:
        """Half of the prediction interval of one more run, in SDs, shape (A, K1)."""
        return self.widths * self._sds(taught_A_K1)

    def _sds(self, taught_A_K1: np.ndarray) -> np.ndarray:
        size, overall = _sizes(taught_A_K1)
        variance = self.sd**2 + self.relative**2 * size + self.beside**2 * overall[:, None]
        return np.sqrt(variance)


def spread_of(
    residual_R_K1: np.ndarray, taught_R_K1: np.ndarray, judges: int, level: float
) -> Spread:
    """The spread of R runs about forecasts of judges that were left out; NaN is unknown.

    A residual's variance is sd_k^2 + (relative taught_k)^2 + beside^2 mean_k taught_k^2, fitted by
    the Gaussian likelihood. ``widths`` are the conformal quantiles of residuals over that SD (Vovk,
    Gammerman and Shafer 2005), by behaviour; of too few runs for one, the largest and at least
    Student's. They hold for judges that are exchangeable with those that were left out.
    """
    known = np.isfinite(residual_R_K1) & np.isfinite(taught_R_K1)
    squares = np.where(known, residual_R_K1, 0.0) ** 2
    size, overall = _sizes(np.where(known, taught_R_K1, 0.0))
    has_spread = known.any(axis=0)
    start = 0.25 * squares.sum(axis=0) / np.maximum(known.sum(axis=0), 1) + LEAST**2

    def surprise(x: np.ndarray) -> float:
        values = np.exp(x[2:]) + np.exp(x[0]) * size + np.exp(x[1]) * overall[:, None]
        return float(((np.log(values) + squares / values) * known).sum())

    begin = np.concatenate([[-2.0, -3.0], np.log(start)])
    ends = [(-12.0, 4.0)] * 2 + [(2 * np.log(LEAST), 8.0)] * len(start)
    best = minimize(surprise, begin, method="L-BFGS-B", bounds=ends).x
    relative, beside = (float(value) for value in np.exp(best[:2] / 2))
    sd = np.where(has_spread, np.exp(best[2:] / 2), NAN)
    free = max(1, judges - 1)
    spread = Spread(sd, relative, beside, np.ones(len(sd)), judges, level)
    apart = np.abs(residual_R_K1) / spread._sds(np.where(known, taught_R_K1, 0.0))
    widths = [_width(column[np.isfinite(column)], level, free) for column in apart.T]
    return replace(spread, widths=np.array(widths))


def _width(apart_N: np.ndarray, level: float, free: int) -> float:
    place = int(np.ceil(level * (len(apart_N) + 1)))
    if place <= len(apart_N):
        return float(np.sort(apart_N)[place - 1])
    return float(max([*apart_N, stats.t.ppf((1 + level) / 2, free)])) if len(apart_N) else NAN


def _sizes(taught_R_K1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squares of what was taught, (R, K1), and their mean over behaviours, (R,)."""
    squares = taught_R_K1**2
    return squares, squares.mean(axis=-1)
