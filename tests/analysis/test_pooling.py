"""Partial pooling over arms: its limits, and what its intervals hold."""

import numpy as np
import pytest

from analysis.statistics.intervals import mean_interval
from analysis.statistics.pooling import pooled_differences


def study(rng, effects, seeds=3, between=0.5, noise=0.3):
    """Shifts of arms under seeds whose prompts all share, and the variance of their sampling."""
    shape = (len(effects), seeds)
    shared = rng.normal(0, 2.0, seeds)
    shifts = np.asarray(effects)[:, None] + shared + rng.normal(0, between, shape)
    return shifts + rng.normal(0, noise, shape), np.full(shape, noise**2)


def test_runs_that_agree_are_not_drawn_anywhere():
    shifts = np.array([[0.0, 0.001], [1.0, 1.001], [5.0, 4.999], [-3.0, -3.001]])
    told = pooled_differences(shifts, np.full(shifts.shape, 1e-8))
    assert [each.value for each in told] == pytest.approx([1.0, 5.0, -3.0], abs=0.02)


def test_runs_that_agree_to_the_last_digit_have_a_difference_and_an_interval():
    """As of an arm whose every answer came to have one mark more."""
    shifts = np.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
    for variance in (0.0, np.nan):
        told = pooled_differences(shifts, np.full(shifts.shape, variance))
        assert [each.value for each in told] == pytest.approx([1.0, 5.0], abs=0.02)
        assert all(each.low < each.value < each.high for each in told)


def test_arms_that_differ_by_noise_alone_are_drawn_together():
    shifts, variance = study(np.random.default_rng(0), np.zeros(10))
    raw = (shifts - shifts[0]).mean(axis=1)[1:]
    told = np.array([each.value for each in pooled_differences(shifts, variance)])
    assert abs(told).mean() < 0.6 * abs(raw).mean()


def test_what_all_arms_of_a_seed_share_changes_nothing():
    shifts, variance = study(np.random.default_rng(1), [0.0, 1.0, 2.0, 0.5])
    moved = shifts + np.array([10.0, -7.0, 3.0])
    both = pooled_differences(shifts, variance), pooled_differences(moved, variance)
    for one, other in zip(*both, strict=True):
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high))


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_intervals_hold_the_truth_also_of_the_largest(spread):
    rng = np.random.default_rng(2)
    inside, largest, plain, squares = [], [], [], []
    for _ in range(150):
        effects = rng.normal(0, spread, 8)
        shifts, variance = study(rng, effects)
        told = pooled_differences(shifts, variance)
        raw = [mean_interval(row) for row in (shifts - shifts[0])[1:]]
        true = effects[1:] - effects[0]
        held = [each.low <= value <= each.high for each, value in zip(told, true, strict=True)]
        inside += held
        largest.append(held[int(np.argmax([abs(each.value) for each in told]))])
        for each, apart, value in zip(told, raw, true, strict=True):
            squares.append((each.value - value) ** 2)
            plain.append((apart.value - value) ** 2)
    assert np.mean(inside) > 0.92 and np.mean(largest) > 0.9
    assert np.mean(squares) < np.mean(plain)


def test_too_few_arms_or_unknown_shifts_are_not_pooled():
    for shifts in (
        np.zeros((2, 3)),
        np.zeros((4, 1)),
        np.array([[0.0, 1.0], [1.0, np.nan], [2, 2]]),
    ):
        told = pooled_differences(shifts, np.zeros(shifts.shape))
        assert all(np.isnan(each.value) and "pooling needs" in each.note for each in told)
    still = pooled_differences(np.ones((4, 3)), np.zeros((4, 3)))
    assert [(each.value, each.low, each.high) for each in still] == [(0.0, 0.0, 0.0)] * 3
