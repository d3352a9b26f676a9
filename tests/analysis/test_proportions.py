"""Rates of a binary judge against hand-worked tables and other libraries."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import matthews_corrcoef, roc_auc_score
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from analysis.statistics.proportions import auc, confusion, rogan_gladen, wilson


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


def test_delong_interval_of_a_hand_worked_table():
    # beats: 1, .5 -> var .125; beaten: 1, .5 -> var .125; SE = sqrt(.125 / 2 * 2)
    found = auc([4, 2, 1, 3], [1, 1, 0, 0])
    assert found.value == 0.75
    assert found.low == pytest.approx(max(0.75 - 1.959964 * math.sqrt(0.125), 0))


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


def test_youden_interval_is_newcombes_of_statsmodels():
    found = confusion([1] * 50 + [0] * 75, [1] * 40 + [0] * 10 + [1] * 15 + [0] * 60).youden_j
    theirs = confint_proportions_2indep(40, 55, 10, 70, method="newcomb", compare="diff")
    assert (found.low, found.high) == pytest.approx(theirs)
