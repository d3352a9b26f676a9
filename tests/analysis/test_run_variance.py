"""Variances between runs, shrunk over a study: against Bayes by hand, limits, and planted runs."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.statistics.intervals import mean_interval, paired_difference
from analysis.statistics.run_variance import NO_EXCESS, RunVariance

PRIOR = RunVariance.fitted(np.empty(0), np.empty(0))
RATIOS = st.floats(0, 1e6)


def test_without_comparisons_the_posterior_is_bayes_on_the_prior():
    likelihood = stats.chi2.pdf(2 * 3.0 / PRIOR.ratio_R, 2) * 2 / PRIOR.ratio_R
    prior = np.array([NO_EXCESS, *[(1 - NO_EXCESS) / (len(PRIOR.ratio_R) - 1)] * 12])
    expected = likelihood * prior / (likelihood @ prior)
    assert PRIOR.posterior(3.0, 2) == pytest.approx(expected)
    assert PRIOR.ratio_R[:3] == pytest.approx([1, 1.5, 2.25]) and PRIOR.ratio_R[-1] > 100


def test_runs_that_vary_by_sampling_alone_have_the_normal_interval():
    even = RunVariance.fitted(np.full(2000, 1.0), np.full(2000, 50))
    assert even.half(1.0, 2) == pytest.approx(1.96, abs=0.02)
    assert even.half(1.0, 2, sampling_free=5) == pytest.approx(stats.t.isf(0.025, 5), abs=0.03)


@pytest.mark.parametrize("free", [1, 2, 5])
def test_far_beyond_sampling_it_is_student_s_t(free):
    assert PRIOR.half(1e9, free) == pytest.approx(1e9**0.5 * stats.t.isf(0.025, free))
    values = [3.0, 9.0, 6.0]
    alone = mean_interval(values)
    assert mean_interval(values, within=[1e-12] * 3, ratios=PRIOR) == alone


@given(RATIOS, RATIOS, st.integers(1, 6))
def test_more_spread_never_narrows(one, other, free):
    low, high = sorted((one, other))
    fitted = RunVariance.fitted(np.array([low, high, 1.0]), np.array([free] * 3))
    assert fitted.half(low, free) <= fitted.half(high, free) * (1 + 1e-6)
    assert fitted.p(fitted.half(low, free), low, free) == pytest.approx(0.05, abs=1e-6)


def test_unknown_variances_are_left_out_of_the_fit():
    observed = np.array([0.5, np.nan, 2.0, np.inf])
    one = RunVariance.fitted(observed, np.full(4, 2))
    other = RunVariance.fitted(observed[[0, 2]], np.full(2, 2))
    assert one.weight_R == pytest.approx(other.weight_R)


def test_a_paired_difference_has_the_p_of_its_interval():
    seeds = [0, 1, 2]
    treated, base = pd.Series([2.0, 2.5, 1.9], seeds), pd.Series([0.0, 0.4, 0.2], seeds)
    within = pd.Series([0.09] * 3, seeds)
    pair = paired_difference(treated, base, within=within, ratios=PRIOR, within_free=60)
    spread = np.var([2.0, 2.1, 1.7], ddof=1) / 0.09
    error = (0.09 / 3) ** 0.5
    assert pair.high - pair.value == pytest.approx(PRIOR.half(spread, 2, 60) * error)
    assert pair.p_t == pytest.approx(PRIOR.p(pair.value / error, spread, 2, 60))
    floor = paired_difference(treated, base, within=within)
    assert pair.value == floor.value and pair.high < floor.high


@pytest.mark.parametrize("seeds", [3, 6])
@pytest.mark.parametrize("excess", [0.0, 0.25, 1.0, 4.0])
def test_null_comparisons_leave_0_out_in_3_to_7_percent(seeds, excess):
    """250 studies of 24 comparisons; the standard error of the rate, by study, is .003 to .005."""
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(250):
        differences = (1 + excess) ** 0.5 * rng.standard_normal((24, seeds))
        observed = differences.var(axis=1, ddof=1)
        fitted = RunVariance.fitted(observed, np.full(24, seeds - 1))
        z = differences.mean(axis=1) * seeds**0.5
        rates.append(
            np.mean([fitted.p(*each, seeds - 1) < 0.05 for each in zip(z, observed, strict=True)])
        )
    assert 0.025 < np.mean(rates) < 0.075
