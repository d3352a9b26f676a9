"""How predictions hold over runs: the step size with its error, R2, slope and interval coverage.

The run is the unit: one predicted and one observed shift per run, and no step is counted as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate, around, known_mean
from analysis.statistics.intervals import student
from analysis.statistics.prediction import FEWEST, Prediction, Scores, r2, score

PLACEBOS = ("permuted", "variance", "constant")
"""What predicts without what was rewarded: `analysis.propagation.estimate.placebos`."""
AGAINST = "the other runs moved against the reward, so no step size above 0 fits them"
"""Why a run has no prediction where the step size would not be positive."""


@dataclass(frozen=True)
class Scale:
    """Movement per unit of cumulative push over ``runs`` runs: one factor for all K behaviours.

    It is a step size, so it is above 0 or predicts nothing.

    Attributes:
        factor: in SDs of movement per SD of push, the same as in a behaviour's own unit.
        error: its standard error, by the jackknife over runs.
        sd_K: of a run's shift about the line, in each behaviour's own unit.
        free_K: degrees of freedom of ``sd_K``: runs minus a behaviour's part of the one parameter.
    """

    factor: float
    error: float
    sd_K: np.ndarray
    free_K: np.ndarray
    runs: int

    @property
    def usable(self) -> bool:
        """Whether it is a step size that predicts."""
        return self.runs >= FEWEST and self.factor > 0

    @property
    def estimate(self) -> Estimate:
        """The factor with its 95 % t interval over runs, whatever its sign."""
        if not self.runs >= FEWEST:
            return Estimate(NAN, n=self.runs, unit="run")
        return around(self.factor, student(self.runs - 1) * self.error, self.runs, "run")

    def at(self, push: float, behaviour: int = 0) -> Estimate:
        """Shift of one more run with this push on a behaviour, with its prediction interval.

        NaN below three runs, where nothing was pushed, and where the factor is not above 0; without
        ends where the behaviour is known of fewer than two runs.
        """
        if not self.usable:
            return Estimate(NAN, n=self.runs, unit="run")
        spread = (self.sd_K[behaviour] ** 2 + (push * self.error) ** 2) ** 0.5
        half = student(self.free_K[behaviour]) * spread
        return around(self.factor * push, half, self.runs, "run")


@dataclass(frozen=True)
class PushPrediction(Prediction):
    """One run and feature: shifts in the feature's own unit, the predicted one with the scale that
    was fitted on the other runs.

    Attributes:
        of_truth, of_bias: two parts of what is predicted.
        scale: movement per unit of cumulative push, of all behaviours over ``fitted_on`` other
            runs; not above 0 where nothing is predicted for that.
        unseen: predicted with the scale of the other *arms*: nothing of this judge was seen.
        repeated: what needs no theory, the mean shift of the arm's other runs.
        sd: of the feature in the first rollouts.
        note: why there is no prediction.
    """

    of_truth: float
    of_bias: float
    scale: float
    fitted_on: int
    unseen: Estimate = NO_ESTIMATE
    repeated: float = NAN
    sd: float = NAN
    note: str = ""


def fit_scale(push_R_K: np.ndarray, shift_R_K: np.ndarray, sd_R_K: np.ndarray) -> Scale:
    """One least-squares line through the origin, of all shifts on their cumulative pushes.

    Every behaviour is in its own SDs, the root mean square of ``sd_R_K`` over runs: so the unit
    that it is counted in has no weight. Without push nothing moves, hence no intercept. A run that
    lacks push or shift of a behaviour is left out there, and a behaviour without a known SD above 0
    is not fitted on. The factor is NaN where nothing was pushed.
    """
    both = np.isfinite(push_R_K) & np.isfinite(shift_R_K)
    used = both.any(axis=1)
    both, runs, runs_K = both[used], int(used.sum()), both.sum(axis=0)
    variance_K = root_mean_square(np.where(both, sd_R_K[used], NAN)) ** 2
    weight_K = np.divide(1.0, variance_K, out=np.zeros_like(variance_K), where=variance_K > 0)
    x, y = np.where(both, push_R_K[used], 0.0), np.where(both, shift_R_K[used], 0.0)
    squares_R, products_R = (x * x) @ weight_K, (x * y) @ weight_K
    squares, product = float(squares_R.sum()), float(products_R.sum())
    if squares == 0:
        return Scale(NAN, NAN, np.full(len(runs_K), NAN), np.zeros(len(runs_K)), runs)
    factor = product / squares
    without_R = squares - squares_R
    error = NAN
    if runs > 1 and (without_R > 0).all():
        apart_R = (product - products_R) / without_R - factor
        error = (float(apart_R @ apart_R) * (runs - 1) / runs) ** 0.5
    rest = np.where(both, y - factor * x, 0.0)
    free_K = runs_K - (x * x).sum(axis=0) * weight_K / squares
    variance_K = np.full(len(runs_K), NAN)
    np.divide((rest * rest).sum(axis=0), free_K, out=variance_K, where=runs_K > 1)
    return Scale(factor, error, np.sqrt(variance_K), free_K, runs)


def root_mean_square(sd_R_K: np.ndarray) -> np.ndarray:
    """SD of each behaviour, from those of R runs; 0 where none is known."""
    is_finite = np.isfinite(sd_R_K)
    squares_K = (np.where(is_finite, sd_R_K, 0.0) ** 2).sum(axis=0)
    return np.sqrt(squares_K / np.maximum(is_finite.sum(axis=0), 1))


@dataclass(frozen=True)
class Calibration:
    """How predictions of one feature hold over runs; the run is the unit.

    Attributes:
        scores: of the predictions with a scale from the other runs.
        unseen: of those with a scale from other arms only.
        r2_repeated: of the mean of the arm's other runs in place of a prediction: what a prediction
            is worth beyond repetition is seen against it.
        placebos: name -> R2 of a placebo (`analysis.propagation.estimate.placebos`) over the same
            runs, the mean over its draws: what of R2 is not the advantages'.
        note: why there are no scores.
    """

    feature: str
    scores: Scores
    unseen: Scores
    r2_repeated: float
    placebos: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def row(self) -> dict[str, str | float]:
        """As a row of a table."""
        scores, slope = self.scores, self.scores.slope
        return {
            "feature": self.feature,
            "runs": scores.count,
            "r2": scores.r2,
            "correlation": scores.correlation,
            "slope": slope.value,
            "low": slope.low,
            "high": slope.high,
            "inside": scores.inside,
            "arms": scores.arms,
            "r2_unseen": self.unseen.r2,
            "inside_unseen": self.unseen.inside,
            "r2_repeated": self.r2_repeated,
            **{f"r2_{name}": self.placebos.get(name, NAN) for name in PLACEBOS},
            "note": self.note,
        }


def calibrate(
    rows: Sequence[PushPrediction], placebos: Mapping[str, np.ndarray] | None = None
) -> list[Calibration]:
    """One line per feature: R2, correlation, and the slope of observed on predicted over runs.

    ``placebos``: name -> the shifts that it predicts for the N rows in each of D draws, (D, N).
    """
    lines = []
    for feature in dict.fromkeys(row.feature for row in rows):
        places = [place for place, row in enumerate(rows) if row.feature == feature]
        of_feature = [rows[place] for place in places]
        observed = np.array([row.observed.value for row in of_feature])
        known = np.isfinite([row.predicted.value for row in of_feature])
        scores = score(of_feature)
        placebo = {
            name: known_mean(np.array([r2(observed[known], draw[places][known]) for draw in draws]))
            for name, draws in (placebos or {}).items()
        }
        why = ""
        if np.isnan(scores.correlation):
            few = scores.count < FEWEST
            why = f"{scores.count} runs with both numbers" if few else "nothing varies"
            scores = Scores(scores.count, scores.arms)
        lines.append(
            Calibration(
                feature=feature,
                scores=scores,
                unseen=score([replace(row, predicted=row.unseen) for row in of_feature]),
                r2_repeated=score(
                    [replace(row, predicted=Estimate(row.repeated)) for row in of_feature]
                ).r2,
                placebos=placebo,
                note=why,
            )
        )
    return lines
