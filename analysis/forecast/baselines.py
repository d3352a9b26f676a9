"""Simple forecasts that could win, fitted on the same runs as the forecast.

``one line``           exposure x (drift + one factor above 0 times the covariance)
``line by behaviour``  the same with a factor of each behaviour, shrunk to the common one
``covariance``         one factor above 0 times E Cov(advantage, z) before training
``bias``               one factor above 0 times the judge's bias on the behaviour itself
``drift``              the same for every judge: the mean shift of the other arms
``no change``          0

Two more know what no forecast can, and are shown as such: ``planted dose``, a line on the dose that
a simulated judge was given, and ``another seed``, a judge's first run, of the mean of its others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.statistics.estimate import NAN

ONE_LINE, BY_BEHAVIOUR, DOSE = "one line", "line by behaviour", "planted dose"
SIMPLER = (ONE_LINE, BY_BEHAVIOUR, "covariance", "bias", "drift", "no change")
SEED = "another seed"
ORACLES = (DOSE, SEED)
BY_EXPOSURE = (ONE_LINE, BY_BEHAVIOUR, DOSE)
DRIFTING = (*BY_EXPOSURE, "drift")


@dataclass(frozen=True)
class Simple:
    """A forecast without theory: level + factor x, in SDs, shapes (K1,).

    With an ``exposure``, the mean of the runs that it was fitted on, level and x are multiplied by
    how many times it a run has.
    """

    level: np.ndarray
    factor: np.ndarray
    exposure: float = 0.0

    def shifts(self, x_A_K1: np.ndarray, exposure_A: np.ndarray) -> np.ndarray:
        """Forecast shifts, shape (A, K1)."""
        taught = np.where(self.factor > 0, self.factor * x_A_K1, 0.0)
        moved = self.level + taught
        return moved * (exposure_A / self.exposure)[:, None] if self.exposure else moved


def simple(
    method: str, x_R_K1: np.ndarray, exposure_R: np.ndarray, shift_R_K1: np.ndarray
) -> Simple:
    """One of them, fitted by least squares to R runs; NaN is unknown."""
    mean = float(exposure_R.mean()) if method in BY_EXPOSURE else 0.0
    share = (exposure_R / mean if mean else np.ones(len(exposure_R)))[:, None]
    known = np.isfinite(shift_R_K1) & np.isfinite(x_R_K1)
    shifts, paid = np.where(known, shift_R_K1, 0.0), np.where(known, share * x_R_K1, 0.0)
    drifts = method in DRIFTING
    times = np.where(known, share, 0.0) if drifts else np.zeros(x_R_K1.shape)
    runs_squared = (times**2).sum(axis=0)

    def level_of(values_R_K1: np.ndarray) -> np.ndarray:
        total = (times * values_R_K1).sum(axis=0)
        return np.divide(total, runs_squared, out=np.zeros(len(total)), where=runs_squared > 0)

    beside = paid - times * level_of(paid)
    squares, products = (beside**2).sum(axis=0), (beside * shifts).sum(axis=0)
    common = products.sum() / squares.sum() if squares.any() else 0.0
    weight = squares.mean() if method == BY_BEHAVIOUR else np.inf
    own = np.divide(products, squares, out=np.zeros(len(squares)), where=squares > 0)
    trust = squares / (squares + weight) if squares.any() else squares
    factor = np.maximum(0.0, common + trust * (own - common))
    level = np.where(drifts & (runs_squared == 0), NAN, level_of(shifts - factor * paid))
    return Simple(level, factor, mean)
