"""Scales fitted through the origin, their intervals, and how predictions came out."""

import math

import numpy as np
import pytest

from analysis.propagation.calibration import PushPrediction, calibrate, fit_scale
from analysis.statistics.estimate import Estimate


def test_a_scale_is_least_squares_through_the_origin():
    """Points (1, 2), (3, 7), (0, 1): slope 23 / 10, residuals -.3, .1 and 1, two degrees left."""
    push, shift = np.array([[1.0, 3.0, np.nan, 0.0], [2.0, 7.0, 1.0, 1.0]])[..., None]
    fit = fit_scale(push, shift, np.full((4, 1), 5.0))  # one behaviour's SD has no weight
    assert (fit.factor, fit.runs) == (pytest.approx(2.3), 3)
    assert fit.sd_K == pytest.approx([0.55**0.5])
    assert fit.free_K == pytest.approx([2.0])
    # without each run in turn: 21 / 9, 2 / 1, 23 / 10
    assert fit.error == pytest.approx((2 / 3 * ((7 / 3 - 2.3) ** 2 + 0.3**2)) ** 0.5)
    # t(.975, 2) = 4.3027; at push 0 the line itself adds nothing
    assert fit.at(0.0).high == pytest.approx(4.302653 * 0.55**0.5)
    further = fit.at(2.0)
    spread = (0.55 + 4 * fit.error**2) ** 0.5
    assert further.high - further.value == pytest.approx(4.302653 * spread)
    assert math.isnan(fit_scale(np.zeros((3, 1)), np.ones((3, 1)), np.ones((3, 1))).factor)
    few = fit_scale(push[:2], shift[:2], np.ones((2, 1)))
    assert few.factor > 0 and math.isnan(few.at(1.0).value)


def test_one_factor_over_behaviours_by_hand():
    """Pushes 1, 2, 0 of SD 1 and 10, 0, 20 of SD 10 for shifts 3, 4, 1 and 10, 5, 30: in SDs
    1, 2, 0, 1, 0, 2 for 3, 4, 1, 1, .5, 3, hence (3 + 8 + 1 + 6) / 10. A third, without an SD, is
    predicted and not fitted on."""
    push = np.array([[1.0, 10.0, 0.1], [2.0, 0.0, 0.2], [0.0, 20.0, -0.3]])
    shift = np.array([[3.0, 10.0, -7.0], [4.0, 5.0, -8.0], [1.0, 30.0, 9.0]])
    sd = np.array([[1.0, 10.0, 0.0], [1.0, 10.0, np.nan], [1.0, np.nan, 0.0]])
    fit = fit_scale(push, shift, sd)
    assert fit.factor == pytest.approx(1.8)
    assert fit.free_K == pytest.approx([2.5, 2.5, 3.0])
    assert fit.sd_K[0] == pytest.approx(((1.2**2 + 0.4**2 + 1) / 2.5) ** 0.5)
    assert fit.sd_K[1] == pytest.approx(((8**2 + 5**2 + 6**2) / 2.5) ** 0.5)
    assert [fit.at(2.0, k).value for k in (0, 1, 2)] == pytest.approx([3.6] * 3)
    # counted in other units nothing changes
    unit = np.array([1.0, 1000.0, 1.0])
    same = fit_scale(push * unit, shift * unit, sd * unit)
    assert (same.factor, same.error) == (pytest.approx(fit.factor), pytest.approx(fit.error))
    assert same.sd_K == pytest.approx(fit.sd_K * unit)


@pytest.mark.parametrize("factor", [-4.0, 0.0])
def test_a_scale_that_is_not_above_zero_predicts_nothing(factor):
    push = np.array([[1.0], [2.0], [3.0], [-1.0]])
    fit = fit_scale(push, factor * push, np.ones((4, 1)))
    assert fit.factor == factor and not fit.usable
    assert math.isnan(fit.at(1.0).value) and fit.estimate.value == factor


def test_calibration_by_hand():
    """Observed 2, 4, 6 for predicted 1, 2, 3: slope 2, R2 = 1 - (1 + 4 + 9) / 8."""
    ends = [(0.0, 1.0), (3.0, 5.0), (6.0, 9.0)]  # hold the second and, at its end, the third
    rows = [
        PushPrediction(
            *(str(n), "a", "x", Estimate(2.0 * n), Estimate(n, *ends[n - 1])),
            *(0.0, 0.0, 1.0, 3),
        )
        for n in (1, 2, 3)
    ]
    (line,) = calibrate(rows)
    scores = line.scores
    assert scores.inside == pytest.approx(2 / 3)
    assert (scores.slope.value, scores.correlation) == (pytest.approx(2.0), pytest.approx(1.0))
    assert scores.r2 == pytest.approx(1 - 14 / 8)
