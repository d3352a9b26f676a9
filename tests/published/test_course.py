"""Courses of pass rates: by eye, the slow way, and how often chance is taken for one."""

import math

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from tests.published.course import _fall, _prefix_squares, course, gap_course, read_run

STEPS = np.arange(12)
UP = np.array([20, 30, 50, 60, 80, 90, 120, 130, 150, 160, 180, 190])
HILL = np.array([20, 50, 80, 120, 150, 190, 180, 150, 130, 100, 80, 60])


@pytest.mark.parametrize(
    ("passed", "shape", "peak_step"),
    [
        (UP, "rises", 11),
        (UP[::-1], "falls", 0),
        (HILL, "rises and falls", 5),
        (np.array([100, 90, 110, 105, 95, 100, 92, 108, 99, 103, 97, 101]), "flat", None),
    ],
)
def test_the_course_of_a_pass_rate_by_eye(passed, shape, peak_step):
    found = course(STEPS, passed, np.full(12, 200))
    assert found.shape == shape
    if peak_step is not None:
        assert found.peak_step == peak_step
        assert found.peak == pytest.approx(passed[peak_step] / 200)
    short = course(STEPS[:4], passed[:4], np.full(4, 200))
    assert short.shape == "too short" and math.isnan(short.fall_p)


def test_a_fall_is_the_squares_that_a_rising_fit_leaves_beyond_the_best_hill():
    """The p compares what is computed here the slow way, split by split."""
    rng = np.random.default_rng(4)
    value, weight = rng.normal(size=9), rng.uniform(1, 5, 9)

    def squares(y, w, increasing):
        fit = isotonic_regression(y, weights=w, increasing=increasing).x
        return float((w * (y - fit) ** 2).sum())

    rising = [squares(value[: k + 1], weight[: k + 1], True) for k in range(9)]
    assert _prefix_squares(value, weight) == pytest.approx(rising)
    hills = [rising[k] + squares(value[k + 1 :], weight[k + 1 :], False) for k in range(8)]
    assert _fall(value, weight) == pytest.approx(rising[-1] - min(rising[-1], *hills))


@pytest.mark.parametrize(("runs", "most"), [(20, 4), pytest.param(40, 7, marks=pytest.mark.long)])
def test_a_rising_or_constant_rate_is_seldom_said_to_fall(runs, most):
    """At 5 % more than 4 of 20 have p < .003, and more than 7 of 40 p < .002."""
    rng = np.random.default_rng(8)
    n = np.full(20, 100)
    said = {"constant": 0, "rising": 0}
    for _ in range(runs):
        said["constant"] += course(np.arange(20), rng.binomial(n, 0.5), n).fall_p < 0.05
        rate = np.linspace(0.2, 0.8, 20)
        said["rising"] += course(np.arange(20), rng.binomial(n, rate), n).fall_p < 0.05
    assert max(said.values()) <= most, said


def test_wandering_rates_and_short_runs_clear_nobody():
    """Steps of their own difficulty: the same hill is weaker evidence when neighbours differ."""
    n = np.full(12, 200)
    jumps = np.array([1, -1] * 6) * 50
    smooth, rough = HILL[2:8].repeat(2), np.clip(HILL[2:8].repeat(2) + jumps, 0, 200)
    assert course(STEPS, smooth, n).fall_p < 0.05 < course(STEPS, rough, n).fall_p
    assert read_run(gap_course(STEPS[:4], UP[:4], UP[:4], N[:4])) == read_run(None)
    assert read_run(None) == "not to be told"


N = np.full(12, 200)


@pytest.mark.parametrize(
    ("true", "verdict"),
    [
        (UP, "no judge hacking"),
        (UP - 15, "no judge hacking"),  # lenient throughout, not more and more
        (np.full(12, 20), "judge hacking"),
    ],
)
def test_hacking_is_a_reward_that_parts_from_the_truth_of_the_same_rollouts(true, verdict):
    assert read_run(gap_course(STEPS, UP, true, N)) == verdict
