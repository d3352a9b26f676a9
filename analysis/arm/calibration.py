"""How predictions hold over runs: the step size with its error, R2, slope and interval coverage.

The run is the unit: one predicted and one observed shift per run, and no step is counted as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.statistics.estimate import Estimate

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

    def at(self, push: float) -> tuple[float, float, float]:
        """Predicted shift under a push, with the ends of its 95 % interval; NaN below three
        runs."""
        if self.runs < FEWEST:
            return float("nan"), float("nan"), float("nan")
        shift, half = self.factor * push, self.half(push)
        return shift, shift - half, shift + half

    def half(self, push: float, level: float = 0.95) -> float:
        """Half the prediction interval of one more run with this push; NaN below three runs, and
        where nothing was pushed."""
        if self.runs < FEWEST or self.squares == 0:
            return float("nan")
        spread = self.sd * (1 + push**2 / self.squares) ** 0.5
        return float(stats.t.ppf((1 + level) / 2, self.runs - 1)) * spread


def fit_scale(push: np.ndarray, shift: np.ndarray) -> Scale:
    """Least squares through the origin of shift on cumulative push, both of shape (R,).

    Without push nothing moves, hence no intercept. Runs that lack either number are left out; the
    factor is NaN where nothing was pushed.
    """
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
    ``r2_unseen`` and ``inside_unseen`` are of predictions with a scale from other arms only.
    ``r2_repeated`` is of the mean of the arm's other runs in place of a prediction: what a
    prediction is worth beyond repetition is seen against it.
    """

    feature: str
    runs: int
    r2: float
    correlation: float
    slope: Estimate
    inside: float
    arms: int = 0
    r2_unseen: float = float("nan")
    inside_unseen: float = float("nan")
    r2_repeated: float = float("nan")
    note: str = ""


def calibrate(rows: Sequence[Predicted], level: float = 0.95) -> list[Calibration]:
    """One line per feature: R2, correlation, and the slope of observed on predicted over runs."""
    names = ("observed", "predicted", "low", "high", "unseen", "unseen_low", "unseen_high")
    lines = []
    for feature in dict.fromkeys(row.feature for row in rows):
        own = [row for row in rows if row.feature == feature]
        columns = {name: np.array([getattr(row, name) for row in own]) for name in names}
        observed, predicted = columns["observed"], columns["predicted"]
        known = np.isfinite(observed) & np.isfinite(predicted)
        x, y = predicted[known], observed[known]
        nan = float("nan")
        others = (
            len({row.arm for row, there in zip(own, known, strict=True) if there}),
            _r2(observed, columns["unseen"]),
            _inside(observed, columns["unseen_low"], columns["unseen_high"]),
            _r2(observed, np.array([row.repeated for row in own])),
        )
        if len(x) < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
            why = f"{len(x)} runs with both numbers" if len(x) < FEWEST else "nothing varies"
            blank = (nan, nan, Estimate(nan), nan)
            lines.append(Calibration(feature, len(x), *blank, *others, why))
            continue
        fit = stats.linregress(x, y)
        half = float(stats.t.ppf((1 + level) / 2, len(x) - 2) * fit.stderr)
        value = float(fit.slope)
        slope = Estimate(value, value - half, value + half, len(x), "run", level)
        inside = _inside(observed, columns["low"], columns["high"])
        found = (_r2(observed, predicted), float(fit.rvalue), slope, inside)
        lines.append(Calibration(feature, len(x), *found, *others))
    return lines


def _r2(observed: np.ndarray, predicted: np.ndarray) -> float:
    """1 - SS(observed - predicted) / SS(observed - mean) over the runs that have both; NaN below
    three runs, and where nothing varies."""
    known = np.isfinite(observed) & np.isfinite(predicted)
    y = observed[known]
    if len(y) < FEWEST or np.ptp(y) == 0:
        return float("nan")
    return 1 - float(((y - predicted[known]) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def _inside(observed: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Share of the intervals that hold what was observed, NaN for none."""
    known = np.isfinite(observed) & np.isfinite(low) & np.isfinite(high)
    held = (low <= observed) & (observed <= high)
    return float(held[known].mean()) if known.any() else float("nan")


@dataclass(frozen=True)
class Predicted:
    """One run and feature: shifts in the feature's own unit.

    ``scale`` is fitted on the other runs: movement per unit of cumulative push. ``low`` and
    ``high`` are the 95 % prediction interval that their scatter gives this run. ``unseen`` with its
    interval is the same with a scale fitted on the other *arms*: nothing of this judge was seen.
    ``repeated`` is what needs no theory, the mean shift of the arm's other runs. ``sd`` is that of
    the feature in the first rollouts, and ``note`` why there is no prediction.
    """

    cell: str
    arm: str
    feature: str
    observed: float
    predicted: float
    of_truth: float
    of_bias: float
    scale: float
    fitted_on: int
    low: float = float("nan")
    high: float = float("nan")
    unseen: float = float("nan")
    unseen_low: float = float("nan")
    unseen_high: float = float("nan")
    repeated: float = float("nan")
    sd: float = float("nan")
    note: str = ""
