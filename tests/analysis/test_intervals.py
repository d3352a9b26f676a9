import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.statistics.intervals import (
    grouped_intervals,
    mean_interval,
    paired_difference,
    sign_flip_p,
    widening,
)

NUMBERS = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=8)


def test_three_runs_by_hand():
    # mean 2, sd 1, t(.975, 2) = 4.302653: half width 4.302653 / sqrt(3) = 2.484138
    found = mean_interval([1.0, 2.0, 3.0])
    assert (found.value, found.n, found.unit, found.note) == (2.0, 3, "run", "")
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-6)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-6)


@given(NUMBERS)
def test_agrees_with_scipy(values):
    if np.std(values) < 1e-6:
        return
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_missing_runs_are_left_out_and_counted_never_zero():
    found = mean_interval([1.0, float("nan"), 3.0])
    assert (found.value, found.n) == (2.0, 2)
    assert found.note == "1 of 3 runs have no value"


@pytest.mark.parametrize("values, n, note", [([], 0, "no runs"), ([5.0], 1, "one run")])
def test_too_few_runs_give_no_interval_and_say_so(values, n, note):
    found = mean_interval(values)
    assert found.n == n and note in found.note
    assert math.isnan(found.low) and math.isnan(found.high)
    assert math.isnan(found.value) == (n == 0)


def test_equal_runs_are_called_out():
    found = mean_interval([0.1, 0.1, 0.1])
    assert (found.low, found.high) == (found.value, found.value)
    assert "no spread" in found.note


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


def test_signs_that_cannot_be_counted_are_drawn():
    many = np.random.default_rng(1).normal(0.3, 1.0, 40)
    assert sign_flip_p(many) == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.02)


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


def test_grouped_intervals_of_one_run_have_no_bounds():
    table = grouped_intervals(pd.DataFrame({"arm": ["a"], "value": [1.0]}), ["arm"])
    assert table["mean"].tolist() == [1.0] and table[["low", "high"]].isna().all().all()


def test_of_ten_that_are_picked_the_interval_is_bonferroni_s_and_of_all_it_is_plain():
    assert widening(4, 10, 10) == pytest.approx(1.0)
    for selected in (1, 3):
        expected = stats.t.isf(0.0025 * selected, 4) / stats.t.isf(0.025, 4)
        assert widening(4, selected, 10) == pytest.approx(expected)
