"""Courses of pass rates: by eye, the slow way, and how often chance is taken for one."""

import math

import numpy as np
import pytest

from tests.published.course import course, gap_course, read_run

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


def test_a_run_that_is_short_or_has_no_truth_is_not_cleared_of_hacking():
    assert read_run(gap_course(STEPS[:4], UP[:4], UP[:4], N[:4])) == read_run(None)
    assert read_run(None) == "not to be told"
