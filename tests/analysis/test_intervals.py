"""Intervals over runs, variances between runs learnt from a study, rates of a binary judge, what a
design can see: by hand, against other libraries, and by coverage."""

import itertools
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn.metrics import matthews_corrcoef, roc_auc_score
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from analysis.planted.run_variance import at_the_smallest, rates
from analysis.statistics.intervals import (
    grouped_intervals,
    mean_interval,
    paired_difference,
    sign_flip_p,
)
from analysis.statistics.power import (
    fewest_seeds,
    power,
    power_lines,
    smallest_difference,
    smallest_effect,
    smallest_p,
)
from analysis.statistics.proportions import auc, confusion, rogan_gladen, wilson
from analysis.statistics.run_variance import BEFORE_DATA, NO_EXCESS, RunVariance
from tests.conftest import run_alone
from tests.tiers import some

NUMBERS = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=8)


def test_a_mean_interval_by_hand_and_what_it_says_of_missing_and_of_equal_runs():
    # mean 2, sd 1, t(.975, 2) = 4.302653: half width 4.302653 / sqrt(3) = 2.484138
    found = mean_interval([1.0, 2.0, 3.0])
    assert (found.value, found.n, found.unit, found.note) == (2.0, 3, "run", "")
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-6)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-6)
    found = mean_interval([1.0, float("nan"), 3.0])
    assert (found.value, found.n) == (2.0, 2)
    assert found.note == "1 of 3 runs have no value"
    found = mean_interval([0.1, 0.1, 0.1])
    assert (found.low, found.high) == (found.value, found.value)
    assert "no spread" in found.note


@given(NUMBERS)
def test_agrees_with_scipy(values):
    if np.std(values) < 1e-6:
        return
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("values, n, note", [([], 0, "no runs"), ([5.0], 1, "one run")])
def test_too_few_runs_give_no_interval_and_say_so(values, n, note):
    found = mean_interval(values)
    assert found.n == n and note in found.note
    assert math.isnan(found.low) and math.isnan(found.high)
    assert math.isnan(found.value) == (n == 0)


def test_a_paired_difference_by_hand():
    # by seed: 3 - 1, 5 - 2, 9 - 5 = 2, 3, 4 -> mean 3, all signs agree -> p = 2 / 8
    treated = pd.Series([3.0, 5.0, 9.0, 7.0], index=[0, 1, 2, 3])
    found = paired_difference(treated, pd.Series([5.0, 2.0, 1.0], index=[2, 1, 0]))
    assert (found.value, found.n, found.unit) == (3.0, 3, "seed pair")
    assert found.p == 0.25
    assert "below 0.25" in found.note
    oracle = stats.ttest_rel([3.0, 5.0, 9.0], [1.0, 2.0, 5.0])
    assert found.p_t == pytest.approx(oracle.pvalue)
    interval = oracle.confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_a_pair_with_a_missing_half_is_no_pair():
    treated = pd.Series([3.0, float("nan"), 4.0], index=[0, 1, 2])
    found = paired_difference(treated, pd.Series([1.0, 1.0], index=[0, 1]))
    assert (found.value, found.n) == (2.0, 1)
    assert math.isnan(found.low) and math.isnan(found.p_t)
    none = paired_difference(treated, pd.Series([1.0], index=[9]))
    assert none.n == 0 and math.isnan(none.value) and math.isnan(none.p)


@given(NUMBERS)
def test_sign_flip_counts_all_patterns(values):
    flips = [
        abs(sum(sign * value for sign, value in zip(signs, values, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    seen = abs(sum(values))
    tolerance = 1e-9 * sum(map(abs, values))
    expected = sum(flip >= seen - tolerance for flip in flips) / len(flips)
    assert sign_flip_p(np.array(values)) == expected


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_grouped_intervals_are_mean_intervals(groups):
    rows = [(name, value) for name, values in enumerate(groups) for value in [*values, math.nan]]
    table = grouped_intervals(pd.DataFrame(rows, columns=["arm", "value"]), ["arm"])
    for row, values in zip(table.to_dict("records"), groups, strict=True):
        found = mean_interval(values)
        assert row["n"] == found.n and row["missing"] == 1
        assert row["mean"] == pytest.approx(found.value)
        assert row["low"] == pytest.approx(found.low, abs=1e-6)
        assert row["high"] == pytest.approx(found.high, abs=1e-6)


def test_intervals_of_one_run_and_of_signs_that_are_drawn():
    table = grouped_intervals(pd.DataFrame({"arm": ["a"], "value": [1.0]}), ["arm"])
    assert table["mean"].tolist() == [1.0] and table[["low", "high"]].isna().all().all()
    many = np.random.default_rng(1).normal(0.3, 1.0, 40)
    assert sign_flip_p(many) == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.02)


@pytest.mark.parametrize("units", [3, 5, 10])
@pytest.mark.parametrize("effect", [0.2, 0.9, 2.5])
def test_power_agrees_with_statsmodels(units: int, effect: float) -> None:
    assert power(effect, units) == pytest.approx(TTestPower().power(effect, units, 0.05), abs=1e-9)


@pytest.mark.parametrize("units", [2, 3, 6])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 8])
def test_the_smallest_effect_has_the_power_asked_for(units, alpha) -> None:
    """Integrated over the distribution of the sample variance, so far out too."""
    effect, free = smallest_effect(units, alpha), units - 1
    t = stats.t.ppf(1 - alpha / 2, free)

    def seen(chi2: float) -> float:
        limit, shift = t * (chi2 / free) ** 0.5, effect * units**0.5
        inside = stats.norm.sf(limit - shift) + stats.norm.cdf(-limit - shift)
        return float(stats.chi2.pdf(chi2, free) * inside)

    assert integrate.quad(seen, 0, np.inf, limit=500)[0] == pytest.approx(0.8, abs=1e-6)


def test_fewest_seeds_and_what_one_seed_or_no_effect_can_show() -> None:
    assert power(0.0, 5) == pytest.approx(0.05)
    assert power(0.0, 5, alpha=0.01) == pytest.approx(0.01)
    assert fewest_seeds() == 6
    assert fewest_seeds(0.25) == 4  # 2/2^3 is .25, not below it
    assert np.isnan(smallest_effect(1)) and np.isnan(smallest_difference(1))


@pytest.mark.parametrize("seeds", [3, 6])
def test_the_smallest_difference_of_a_plan_is_seen_in_four_of_five(seeds) -> None:
    """Runs that vary as the prior has it, by the p of a report that has learnt that."""
    rng, count = np.random.default_rng(seeds), 1500
    ratio = rng.choice(BEFORE_DATA.ratio_R, count, p=BEFORE_DATA.weight_R)
    size = smallest_difference(seeds)
    values = (size + rng.standard_normal((count, seeds)).T) * ratio**0.5
    z, observed = values.mean(axis=0) * seeds**0.5, values.var(axis=0, ddof=1)
    seen = [BEFORE_DATA.p(*each, seeds - 1) < 0.05 for each in zip(z, observed, strict=True)]
    assert np.mean(seen) == pytest.approx(0.8, abs=0.035)
    assert smallest_difference(seeds, alpha=0.01) > 1.1 * size


def test_the_smallest_difference_of_runs_that_vary_by_sampling_alone_is_the_normal_one() -> None:
    even = RunVariance(np.array([1.0, 1e3]), np.array([1.0, 0.0]))
    normal = stats.norm.isf(0.025) + stats.norm.isf(0.2)
    assert smallest_difference(4, even) == pytest.approx(normal / 2, rel=1e-3)


@pytest.mark.parametrize("seeds", [3, 6])
def test_a_study_sees_its_plan_s_smallest_difference_as_often_as_said(seeds) -> None:
    """The variances are learnt from 24 comparisons in place of the prior."""
    pairs = at_the_smallest(np.random.default_rng(seeds), seeds, 200)
    assert np.mean([pair.low > 0 for pair in pairs]) == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("seeds", range(1, 8))
def test_floors_are_what_the_exact_tests_give_at_best(seeds: int) -> None:
    assert smallest_p(seeds) == sign_flip_p(np.arange(1.0, seeds + 1))


def test_designs_are_warned_of_and_more_arms_ask_for_more() -> None:
    lines = power_lines(5, 2)
    assert any(line.startswith("Warning: 5 seeds cannot reach p < 0.05") for line in lines)
    assert any("0.0625" in line and "seed=0,1,2,3,4,5" in line for line in lines)
    assert f"is {smallest_difference(5):.2f} SD of the differences by seed." in lines[0]
    assert "a prior's" in lines[0]
    assert not any(line.startswith("Warning") for line in power_lines(6, 2))
    lines = power_lines(6, 4)
    strict = smallest_difference(6, alpha=0.05 / 3)
    assert f"{strict:.2f} SD" in lines[1] and "3 comparisons" in lines[1]
    # 2/64 = .031 is below .05 but not below .05/3; 2/128 = .0156 is
    assert lines[-1].startswith("Warning") and lines[-1].endswith("7 seeds could.")


@pytest.mark.parametrize(
    "seeds, arms, words", [(1, 3, "one seed per arm gives no interval"), (6, 1, "no other arm")]
)
def test_designs_without_a_comparison(seeds: int, arms: int, words: str) -> None:
    assert words in power_lines(seeds, arms)[0]


def test_a_plan_stays_light() -> None:
    code = (
        "import sys; from analysis.statistics.power import power_lines; power_lines(3, 3)\n"
        "print({'torch', 'pandas', 'scipy.stats', 'statsmodels'} & set(sys.modules))"
    )
    assert run_alone(code) == "set()\n"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), min_size=4, max_size=60))
def test_auc_phi_and_rates_are_scikit_learns(rows):
    score, truth = np.array(rows, dtype=float).T
    verdict = (score >= 2).astype(float)
    found = confusion(verdict, truth)
    assert found.tp + found.fp + found.fn + found.tn == len(rows)
    if 0 < truth.mean() < 1:
        assert found.youden_j.low - 1e-12 <= found.youden_j.value <= found.youden_j.high + 1e-12
        assert found.tpr.value == verdict[truth == 1].mean()
        if 0 < verdict.mean() < 1:
            assert found.phi.value == pytest.approx(matthews_corrcoef(truth, verdict))
        else:
            assert math.isnan(found.phi.value)
        if len(set(score)) > 1:
            assert auc(score, truth).value == pytest.approx(roc_auc_score(truth, score))
    else:
        assert math.isnan(auc(score, truth).value) and math.isnan(found.youden_j.value)


@given(st.integers(1, 500), st.data())
def test_wilson_is_that_of_statsmodels(n, data):
    k = data.draw(st.integers(0, n))
    found = wilson(k, n)
    expected = proportion_confint(k, n, method="wilson")
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-12)
    assert math.isnan(wilson(0, 0).value)


def test_intervals_of_delong_and_newcombe_as_elsewhere():
    # beats: 1, .5 -> var .125; beaten: 1, .5 -> var .125; SE = sqrt(.125 / 2 * 2)
    found = auc([4, 2, 1, 3], [1, 1, 0, 0])
    assert found.value == 0.75
    assert found.low == pytest.approx(max(0.75 - 1.959964 * math.sqrt(0.125), 0))
    found = confusion([1] * 50 + [0] * 75, [1] * 40 + [0] * 10 + [1] * 15 + [0] * 60).youden_j
    theirs = confint_proportions_2indep(40, 55, 10, 70, method="newcomb", compare="diff")
    assert (found.low, found.high) == pytest.approx(theirs)


def test_phi_interval_is_the_numeric_delta_method():
    tp, fp, fn, tn = 40, 10, 15, 60
    n = 125
    found = confusion([1] * 50 + [0] * 75, [1] * 40 + [0] * 10 + [1] * 15 + [0] * 60).phi
    p = np.array([tp, fp, fn, tn]) / n

    def phi(q):
        a, b, c, d = q
        return (a * d - b * c) / math.sqrt((a + b) * (c + d) * (a + c) * (b + d))

    step = 1e-6
    slope = np.array([(phi(p + step * e) - phi(p - step * e)) / (2 * step) for e in np.eye(4)])
    variance = (slope**2 @ p - (slope @ p) ** 2) / n
    assert found.high - found.value == pytest.approx(1.959964 * math.sqrt(variance), rel=1e-5)


def test_rogan_gladen_is_the_formula_with_both_samples():
    # q = .6, TPR = .9, FPR = .2: p = .4 / .7
    found = rogan_gladen(120, 200, 90, 100, 10, 50)
    p = 0.4 / 0.7
    variance = (0.6 * 0.4 / 200 + (1 - p) ** 2 * 0.2 * 0.8 / 50 + p**2 * 0.9 * 0.1 / 100) / 0.7**2
    assert found.value == pytest.approx(p) and found.note == ""
    assert found.high - found.value == pytest.approx(1.959964 * math.sqrt(variance))
    more = rogan_gladen(120, 200, 9000, 10000, 1000, 5000)
    assert more.high - more.low < found.high - found.low


def test_rogan_gladen_says_when_not_to_trust_it():
    assert math.isnan(rogan_gladen(5, 10, 5, 10, 5, 10).value)
    assert math.isnan(rogan_gladen(5, 10, 0, 0, 5, 10).value)
    assert "cut" in rogan_gladen(1, 100, 90, 100, 20, 100).note
    assert rogan_gladen(1, 100, 90, 100, 20, 100).value == 0.0
    assert "not told from 0" in rogan_gladen(5, 10, 6, 10, 5, 10).note
    assert "below 0" in rogan_gladen(5, 10, 2, 10, 8, 10).note
    perfect = rogan_gladen(50, 100, 5, 5, 0, 5)
    assert perfect.value == 0.5 and perfect.high - perfect.low > 2 * 1.96 * 0.05


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


@pytest.mark.parametrize(
    "seeds, excess",
    some(product([3, 6], [0.0, 0.25, 1.0, 4.0]), standard=[(3, 0.0), (3, 4.0), (6, 1.0)]),
)
def test_null_comparisons_leave_0_out_in_3_to_7_percent(seeds, excess):
    """The rates of docs/statistics.md, over 120 studies of 24 comparisons that go together: the
    standard error of ``null`` is .006, that of ``family`` .016."""
    seen = rates(seeds, excess, 120, seed=1)
    assert 0.015 < seen.null < 0.08 and seen.family < 0.1
    assert seen.power > seen.power_of_student


def test_a_measure_that_alone_varies_is_missed_more_often():
    """As docs/statistics.md says; were it not so, the page would warn of nothing."""
    seen = rates(3, 4.0, 60, odd=True)
    assert 0.07 < seen.null_of_odd < 0.25 and seen.null < 0.06
