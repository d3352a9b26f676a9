"""How predictions hold over runs: the step size with its error, R2, slope and interval coverage.

The run is the unit: one predicted and one observed shift per run, and no step is counted as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate, around
from analysis.statistics.intervals import line, student

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

    def at(self, push: float) -> Estimate:
        """Shift of one more run with this push, with its prediction interval.

        NaN below three runs and where nothing was pushed.
        """
        if self.runs < FEWEST or self.squares == 0:
            return Estimate(NAN, n=self.runs, unit="run")
        spread = self.sd * (1 + push**2 / self.squares) ** 0.5
        return around(self.factor * push, student(self.runs - 1) * spread, self.runs, "run")


@dataclass(frozen=True)
class Predicted:
    """One run and feature: shifts in the feature's own unit.

    Attributes:
        predicted: with a scale fitted on the other runs and its 95 % prediction interval.
        of_truth, of_bias: its two parts.
        scale: movement per unit of cumulative push, over ``fitted_on`` other runs.
        unseen: predicted with a scale of the other *arms*: nothing of this judge was seen.
        repeated: what needs no theory, the mean shift of the arm's other runs.
        sd: of the feature in the first rollouts.
        note: why there is no prediction.
    """

    cell: str
    arm: str
    feature: str
    observed: float
    predicted: Estimate
    of_truth: float
    of_bias: float
    scale: float
    fitted_on: int
    unseen: Estimate = NO_ESTIMATE
    repeated: float = NAN
    sd: float = NAN
    note: str = ""


def fit_scale(push: np.ndarray, shift: np.ndarray) -> Scale:
    """Least squares through the origin of shift on cumulative push, both of shape (R,).

    Without push nothing moves, hence no intercept. Runs that lack either number are left out; the
    factor is NaN where nothing was pushed.
    """
    both = np.isfinite(push) & np.isfinite(shift)
    x, y = push[both], shift[both]
    squares = float(x @ x)
    if squares == 0:
        return Scale(NAN, NAN, 0.0, len(x))
    factor = float(x @ y) / squares
    rest = y - factor * x
    sd = float(rest @ rest / (len(x) - 1)) ** 0.5 if len(x) > 1 else NAN
    return Scale(factor, sd, squares, len(x))


@dataclass(frozen=True)
class Calibration:
    """How predictions of one feature hold over runs; the run is the unit.

    Attributes:
        r2: 1 - SS(observed - predicted) / SS(observed - mean), which a bad prediction makes
            negative.
        slope: of observed on predicted with its t interval: 1 is calibrated.
        inside: share of runs whose 95 % prediction interval holds the observed shift.
        r2_unseen, inside_unseen: of predictions with a scale from other arms only.
        r2_repeated: of the mean of the arm's other runs in place of a prediction: what a prediction
            is worth beyond repetition is seen against it.
    """

    feature: str
    runs: int
    r2: float
    correlation: float
    slope: Estimate
    inside: float
    arms: int = 0
    r2_unseen: float = NAN
    inside_unseen: float = NAN
    r2_repeated: float = NAN
    note: str = ""


def calibrate(rows: Sequence[Predicted]) -> list[Calibration]:
    """One line per feature: R2, correlation, and the slope of observed on predicted over runs."""
    lines = []
    for feature in dict.fromkeys(row.feature for row in rows):
        of_feature = [row for row in rows if row.feature == feature]
        observed = np.array([row.observed for row in of_feature])
        predicted = _ends([row.predicted for row in of_feature])
        unseen = _ends([row.unseen for row in of_feature])
        both = np.isfinite(observed) & np.isfinite(predicted[0])
        x, y = predicted[0][both], observed[both]
        others = (
            len({row.arm for row, compared in zip(of_feature, both, strict=True) if compared}),
            _r2(observed, unseen[0]),
            _inside(observed, unseen),
            _r2(observed, np.array([row.repeated for row in of_feature])),
        )
        if len(x) < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
            why = f"{len(x)} runs with both numbers" if len(x) < FEWEST else "nothing varies"
            blank = (NAN, NAN, NO_ESTIMATE, NAN)
            lines.append(Calibration(feature, len(x), *blank, *others, why))
            continue
        correlation = float(np.corrcoef(x, y)[0, 1])
        fitted = (_r2(observed, predicted[0]), correlation, line(x, y).slope)
        lines.append(Calibration(feature, len(x), *fitted, _inside(observed, predicted), *others))
    return lines


def _ends(estimates: Sequence[Estimate]) -> np.ndarray:
    """Values, lows and highs of R estimates, shape (3, R)."""
    return np.array([(each.value, each.low, each.high) for each in estimates]).T


def _r2(observed: np.ndarray, predicted: np.ndarray) -> float:
    """1 - SS(observed - predicted) / SS(observed - mean) over the runs that have both; NaN below
    three runs, and where nothing varies."""
    both = np.isfinite(observed) & np.isfinite(predicted)
    y = observed[both]
    if len(y) < FEWEST or np.ptp(y) == 0:
        return NAN
    return 1 - float(((y - predicted[both]) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def _inside(observed: np.ndarray, ends_3_R: np.ndarray) -> float:
    """Share of the intervals that hold what was observed, NaN for none."""
    _, low, high = ends_3_R
    finite = np.isfinite([observed, low, high]).all(axis=0)
    covers = (low <= observed) & (observed <= high)
    return float(covers[finite].mean()) if finite.any() else NAN
