"""How far runs lie about their forecasts, and intervals that hold their share of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats
from scipy.optimize import minimize

from analysis.statistics.estimate import NAN

LEAST = 0.02
"""Least SD of a run about its forecast, in SDs of the behaviour."""
FREE = 4.0
"""Degrees of freedom: some judges lead where no replay does, and are not to decide how far the
others scatter."""


@dataclass(frozen=True)
class Spread:
    """How far a run of a judge that was not seen lies about its forecast, in SDs.

    Attributes:
        sd: where little moves, shape (K1,); NaN where it was not told.
        relative, beside: what a run's SD has beside it, as shares of what its judge teaches of the
            behaviour, and of the root mean square of all that its judge teaches.
        widths: SDs that hold the level's share of the runs of judges left out, shape (K1,).
        shared: of a run's variance about its forecast, what other runs of its judge share, shape
            (K1,).
        judges: that were left out, one after the other.
        level: share of the runs that an interval is to hold.
    """

    sd: np.ndarray
    relative: float
    beside: float
    widths: np.ndarray
    shared: np.ndarray
    judges: int
    level: float

    def halves(self, taught_A_K1: np.ndarray, sampling_A_K1: np.ndarray) -> np.ndarray:
        """Half of the prediction interval of one more run, in SDs, shape (A, K1).

        Args:
            taught_A_K1: what each judge teaches by its forecast, without the drift.
            sampling_A_K1: variance of the run's shift by the draw of prompts and answers.
        """
        return self.widths * self.sds(taught_A_K1, sampling_A_K1)

    def sds(self, taught_A_K1: np.ndarray, sampling_A_K1: np.ndarray) -> np.ndarray:
        """SD of one more run about its forecast, shape (A, K1)."""
        size, overall = _sizes(taught_A_K1)
        grown = self.relative**2 * size + self.beside**2 * overall[:, None]
        return np.sqrt(sampling_A_K1 + self.sd**2 + grown)


def spread_of(
    residual_R_K1: np.ndarray,
    taught_R_K1: np.ndarray,
    sampling_R_K1: np.ndarray,
    judge_R: np.ndarray,
    level: float,
) -> Spread:
    """The spread of R runs about forecasts of judges that were left out; NaN is unknown.

    A residual's variance is sampling_k + sd_k^2 + (relative taught_k)^2 + beside^2 mean_k
    taught_k^2, fitted by Student's likelihood with `FREE` degrees of freedom. ``widths`` are the
    conformal quantiles of residuals over that SD (Vovk, Gammerman and Shafer 2005), by behaviour;
    of too few runs for one, the largest and at least Student's. They hold for judges that are
    exchangeable with those that were left out; ``judge_R`` says which run is of which.
    """
    known = np.isfinite(residual_R_K1) & np.isfinite(taught_R_K1)
    squares = np.where(known, residual_R_K1, 0.0) ** 2
    size, overall = _sizes(np.where(known, taught_R_K1, 0.0))
    has_spread = known.any(axis=0)
    start = 0.25 * squares.sum(axis=0) / np.maximum(known.sum(axis=0), 1) + LEAST**2

    def surprise(x: np.ndarray) -> float:
        grown = np.exp(x[0]) * size + np.exp(x[1]) * overall[:, None]
        values = sampling_R_K1 + np.exp(x[2:]) + grown
        tails = (FREE + 1) * np.log1p(squares / (FREE * values))
        return float(((np.log(values) + tails) * known).sum())

    begin = np.concatenate([[-2.0, -3.0], np.log(start)])
    ends = [(-12.0, 4.0)] * 2 + [(2 * np.log(LEAST), 8.0)] * len(start)
    best = minimize(surprise, begin, method="L-BFGS-B", bounds=ends).x
    relative, beside = (float(value) for value in np.exp(best[:2] / 2))
    sd = np.where(has_spread, np.exp(best[2:] / 2), NAN)
    judges = len(np.unique(judge_R))
    flat = np.ones(len(sd))
    spread = Spread(sd, relative, beside, flat, 0 * flat, judges, level)
    apart = residual_R_K1 / spread.sds(np.where(known, taught_R_K1, 0.0), sampling_R_K1)
    free = max(1, judges - 1)
    widths = [_width(np.abs(column[np.isfinite(column)]), level, free) for column in apart.T]
    shared = [_shared(column, judge_R) for column in apart.T]
    return replace(spread, widths=np.array(widths), shared=np.array(shared))


def _shared(apart_R: np.ndarray, judge_R: np.ndarray) -> float:
    """Mean product of two runs of one judge over the mean square of a run, in [0, 1]."""
    products, squares = [], []
    for judge in np.unique(judge_R):
        of_judge = apart_R[(judge_R == judge) & np.isfinite(apart_R)]
        runs = len(of_judge)
        if runs > 1:
            square = (of_judge**2).mean()
            products.append((runs * of_judge.mean() ** 2 - square) / (runs - 1))
            squares.append(square)
    total = float(np.sum(squares))
    return float(np.clip(np.sum(products) / total, 0, 1)) if total else 0.0


def _width(apart_N: np.ndarray, level: float, free: int) -> float:
    place = int(np.ceil(level * (len(apart_N) + 1)))
    if place <= len(apart_N):
        return float(np.sort(apart_N)[place - 1])
    return float(max([*apart_N, stats.t.ppf((1 + level) / 2, free)])) if len(apart_N) else NAN


def _sizes(taught_R_K1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squares of what was taught, (R, K1), and their mean over behaviours, (R,)."""
    squares = taught_R_K1**2
    return squares, squares.mean(axis=-1)
