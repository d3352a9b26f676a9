"""How predictions hold over runs: the step size with its error, R2, slope and interval coverage.

The run is the unit: one predicted and one observed shift per run, and no step is counted as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from analysis.propagation import Predicted

FEWEST = 3
"""Runs that a scale is fitted on, at least."""


@dataclass(frozen=True)
class Scale:
    """Movement per unit of cumulative push, over ``runs`` runs.

    ``sd`` is that of a run's shift about the line, ``squares`` the sum of the squared pushes.
    """

    factor: float
    sd: float
    squares: float
    runs: int

    def half(self, push: float, level: float = 0.95) -> float:
        """Half the prediction interval of one more run with this push; NaN below three runs, and
        where nothing was pushed."""
        from scipy import stats

        if self.runs < FEWEST or self.squares == 0:
            return float("nan")
        spread = self.sd * (1 + push**2 / self.squares) ** 0.5
        return float(stats.t.ppf((1 + level) / 2, self.runs - 1)) * spread


def fit_scale(push: np.ndarray, shift: np.ndarray) -> Scale:
    """Least squares through the origin of shift on cumulative push, both of shape (R,).

    Without push nothing moves, hence no intercept. Runs that lack either number are left out; the
    factor is NaN where nothing was pushed.
    """
    import numpy as np

    known = np.isfinite(push) & np.isfinite(shift)
    x, y = push[known], shift[known]
    squares = float(x @ x)
    if squares == 0:
        return Scale(float("nan"), float("nan"), 0.0, len(x))
    factor = float(x @ y) / squares
    rest = y - factor * x
    sd = float(rest @ rest / (len(x) - 1)) ** 0.5 if len(x) > 1 else float("nan")
    return Scale(factor, sd, squares, len(x))


@dataclass(frozen=True)
class Calibration:
    """How predictions of one feature hold over runs; the run is the unit.

    ``r2`` is 1 - SS(observed - predicted) / SS(observed - mean), which a bad prediction makes
    negative. ``slope`` is of observed on predicted with its t interval: 1 is calibrated.
    ``inside`` is the share of runs whose 95 % prediction interval holds the observed shift.
    """

    feature: str
    runs: int
    r2: float
    correlation: float
    slope: float
    low: float
    high: float
    inside: float
    note: str = ""


def calibrate(rows: Sequence[Predicted], level: float = 0.95) -> list[Calibration]:
    """One line per feature: R2, correlation, and the slope of observed on predicted over runs."""
    import numpy as np
    from scipy import stats

    lines = []
    for feature in dict.fromkeys(row.feature for row in rows):
        own = [row for row in rows if row.feature == feature]
        pairs = np.array([(row.predicted, row.observed, row.low, row.high) for row in own])
        x, y, low, high = pairs[np.isfinite(pairs[:, :2]).all(axis=1)].T
        nan = float("nan")
        if len(x) < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
            why = f"{len(x)} runs with both numbers" if len(x) < FEWEST else "nothing varies"
            lines.append(Calibration(feature, len(x), nan, nan, nan, nan, nan, nan, why))
            continue
        r2 = 1 - float(((y - x) ** 2).sum() / ((y - y.mean()) ** 2).sum())
        fit = stats.linregress(x, y)
        half = float(stats.t.ppf((1 + level) / 2, len(x) - 2) * fit.stderr)
        slope = float(fit.slope)
        inside = float(((low <= y) & (y <= high)).mean()) if np.isfinite(low).all() else nan
        ends = (slope - half, slope + half)
        lines.append(Calibration(feature, len(x), r2, float(fit.rvalue), slope, *ends, inside))
    return lines
