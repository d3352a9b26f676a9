"""Interquartile mean, profile and probability of improvement against other people's formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from analysis.statistics.aggregates import (
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)

SCORES = arrays(
    float,
    st.tuples(st.integers(1, 7), st.integers(1, 5)),
    elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5001, 0.9, 1.0]),
)


@given(SCORES)
def test_the_middle_half_is_scipys(scores):
    expected = stats.trim_mean(scores, 0.25, axis=None)
    for estimator in (interquartile_mean, stratified_bootstrap):
        assert estimator(scores).value == pytest.approx(expected)


def test_one_metric_gives_the_interval_of_a_trimmed_mean():
    """Tukey and McLaughlin's interval of 12 independent values, worked out from scipy's parts."""
    values = np.random.default_rng(0).normal(0, 1, 12)
    winsorised = stats.mstats.winsorize(values, limits=(0.25, 0.25))
    error = np.std(winsorised, ddof=1) / (0.5 * 12**0.5)
    half = stats.t.ppf(0.975, 6 - 1) * error
    mean = interquartile_mean(values[:, None])
    assert (mean.low, mean.high) == pytest.approx((mean.value - half, mean.value + half))
    assert (mean.n, mean.unit) == (12, "run")


def test_a_missing_score_is_left_out_and_nothing_to_average_says_why():
    scores = np.array([[0.1, 0.2], [0.4, np.nan], [np.nan, np.nan], [0.9, 0.7]])
    mean = interquartile_mean(scores)
    assert mean.value == pytest.approx(stats.trim_mean([0.1, 0.2, 0.4, 0.9, 0.7], 0.25))
    assert mean.n == 3 and mean.low < mean.value < mean.high
    assert performance_profile(scores, np.array([0.5]))[0].value == pytest.approx(2 / 5)
    for empty in (np.empty((0, 2)), np.full((2, 2), np.nan)):
        for estimator in (interquartile_mean, stratified_bootstrap):
            mean = estimator(empty)
            assert math.isnan(mean.value) and mean.note
        assert math.isnan(performance_profile(empty, np.array([0.5]))[0].value)
        assert "one run" in estimator(np.array([[0.5, 0.7]])).note
    assert "no spread" in interquartile_mean(np.full((4, 2), 0.5)).note


def test_runs_that_copy_their_score_to_every_metric_are_no_more_sure():
    one = np.random.default_rng(1).normal(0.5, 0.1, (6, 1))
    copied = interquartile_mean(np.repeat(one, 8, axis=1))
    t = stats.t.ppf(0.975, 5)
    alone = stats.t.ppf(0.975, 6 - 2 * 1 - 1)
    narrow = interquartile_mean(one)
    width = (narrow.high - narrow.low) * t / alone
    assert copied.high - copied.low == pytest.approx(width, rel=0.35)
    loose = stratified_bootstrap(np.repeat(one, 8, axis=1))
    assert loose.high - loose.low < 0.6 * (copied.high - copied.low)


@given(SCORES, st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=3))
def test_a_profile_is_the_share_above_and_its_interval_holds_it(scores, thresholds):
    shares = performance_profile(scores, np.array(thresholds))
    for share, threshold in zip(shares, thresholds, strict=True):
        assert share.value == pytest.approx((scores > threshold).mean())
        if len(scores) > 1:
            assert 0 <= share.low <= share.value <= share.high <= 1
            assert share.high > share.low


@given(SCORES, st.integers(1, 6), st.randoms(use_true_random=False))
def test_improvement_is_mann_and_whitneys_count_of_pairs(better, runs, random):
    worse = np.array([[random.random() for _ in range(better.shape[1])] for _ in range(runs)])
    worse = np.where(worse < 0.3, 0.5, worse)  # ties
    by_hand = [
        sum((a > b) + 0.5 * (a == b) for a in x for b in y) / (len(x) * len(y))
        for x, y in zip(better.T, worse.T, strict=True)
    ]
    by_scipy = [
        stats.mannwhitneyu(x, y, alternative="greater").statistic / (len(x) * len(y))
        for x, y in zip(better.T, worse.T, strict=True)
    ]
    share = probability_of_improvement(better, worse)
    assert share.value == pytest.approx(np.mean(by_hand)) == pytest.approx(np.mean(by_scipy))
    other = probability_of_improvement(worse, better)
    assert other.value == pytest.approx(1 - share.value)
    if share.n > 1:
        assert share.low <= share.value <= share.high
        assert (other.low, other.high) == pytest.approx((1 - share.high, 1 - share.low))


def test_a_pair_without_a_score_narrows_nothing_and_a_win_of_three_is_no_certainty():
    share = probability_of_improvement(np.full((3, 4), 0.9), np.full((3, 4), 0.1))
    assert share.value == 1 and share.low == pytest.approx(0.4385, abs=1e-3) and share.note
    x = np.array([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]])
    y = np.array([[2.0, np.nan], [0.0, np.nan], [1.0, np.nan]])
    assert probability_of_improvement(x, y) == probability_of_improvement(x[:, :1], y[:, :1])
    nothing = probability_of_improvement(x[:, 1:], y[:, 1:])
    assert math.isnan(nothing.value) and "in common" in nothing.note
    x, y = np.array([[0.5], [0.7]]), np.array([[0.5], [0.6], [0.4]])
    holed = np.array([[0.5], [math.nan], [0.7], [math.nan]])
    assert probability_of_improvement(holed, y) == probability_of_improvement(x, y)
    assert probability_of_improvement(y, holed) == probability_of_improvement(y, x)
    paired = probability_of_improvement(holed[:3], y, paired=True)
    assert paired == probability_of_improvement(x, y[[0, 2]], paired=True) and paired.n == 2


def test_pairing_counts_what_the_runs_of_a_seed_share():
    rng = np.random.default_rng(3)
    seed = rng.normal(0, 1, (8, 1))
    x, y = (seed + rng.normal(shift, 0.3, (8, 3)) for shift in (0.2, 0.0))
    paired, apart = (probability_of_improvement(x, y, paired=each) for each in (True, False))
    assert paired.value == apart.value
    assert paired.high - paired.low < apart.high - apart.low
    with pytest.raises(ValueError, match="cannot be paired"):
        probability_of_improvement(x, y[:5], paired=True)
