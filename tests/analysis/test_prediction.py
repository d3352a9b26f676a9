"""Predictions beside what was observed, and their scores, by hand and against other formulas."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate
from analysis.statistics.prediction import Prediction, crps, mean_crps, score


def of(*pairs, arm="a"):
    """Predictions of pairs (predicted, observed)."""
    return [Prediction("", arm, "x", Estimate(seen), Estimate(value)) for value, seen in pairs]


def test_scores_by_hand():
    """Observed 2, 4, 6 for predicted 1, 2, 3: slope 2, R2 = 1 - (1 + 4 + 9) / 8."""
    ends = [(0.0, 1.0), (3.0, 5.0), (6.0, 9.0)]  # hold the second and, at its end, the third
    made = score(
        [
            Prediction("", "ab"[n % 2], "x", Estimate(2.0 * n), Estimate(n, *ends[n - 1]))
            for n in (1, 2, 3)
        ]
    )
    assert (made.count, made.arms, made.inside) == (3, 2, pytest.approx(2 / 3))
    assert (made.slope.value, made.r2) == (pytest.approx(2.0), pytest.approx(1 - 14 / 8))
    assert (made.correlation, made.rank) == (pytest.approx(1.0), pytest.approx(1.0))


def test_scores_take_predictions_with_both_numbers():
    made = score(of((0, 0), (1, 2), (2, 4), (NAN, 1), (3, NAN)))
    assert (made.count, made.slope.value) == (3, pytest.approx(2))
    assert made.rank == pytest.approx(1)
    assert np.isnan(score(of((1, 1), (2, 2))).slope.value)
    nothing = score([])
    assert nothing.count == nothing.arms == 0
    assert np.isnan((nothing.rank, nothing.r2, nothing.correlation, nothing.inside)).all()


def test_a_constant_prediction_has_an_r2_and_no_line():
    made = score(of((2, 1), (2, 2), (2, 3)))
    assert made.r2 == 0 and made.slope is NO_ESTIMATE
    assert np.isnan((made.correlation, made.rank)).all()
    assert np.isnan(score(of((1, 2), (2, 2), (3, 2))).r2)


def test_the_crps_of_a_normal_is_the_integral():
    """Of (F(x) - 1{x >= y})^2, numerically."""
    for value, sd, observed in ((0.0, 1.0, 0.3), (2.0, 0.5, -1.0)):

        def squared(x, value=value, sd=sd, observed=observed):
            return (stats.norm.cdf(x, value, sd) - (x >= observed)) ** 2

        ends = (value - 12 * sd - 3, observed, value + 12 * sd)
        whole = sum(integrate.quad(squared, a, b)[0] for a, b in pairwise(ends))
        scores = crps(np.array([value]), np.array([sd]), np.array([observed]))
        assert scores[0] == pytest.approx(whole, abs=1e-6)
        half = sd * stats.t.ppf(0.975, 4)
        predicted = Estimate(value, value - half, value + half, 5)
        row = Prediction("", "a", "x", Estimate(observed), predicted)
        assert mean_crps([row, *of((1.0, 2.0))]) == pytest.approx(whole, abs=1e-6)
