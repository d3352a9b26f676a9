"""Rates of a binary judge against hand-worked tables and other libraries; courses of pass rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from sklearn.metrics import matthews_corrcoef, roc_auc_score
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from analysis.statistics.proportions import (
    _fall,
    _prefix_squares,
    auc,
    confusion,
    course,
    gap_course,
    read_run,
    rogan_gladen,
    wilson,
)


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
            area = auc(score, truth)
            assert area.value == pytest.approx(roc_auc_score(truth, score))
    else:
        assert math.isnan(auc(score, truth).value) and math.isnan(found.youden_j.value)


@given(st.integers(1, 500), st.data())
def test_wilson_is_that_of_statsmodels(n, data):
    k = data.draw(st.integers(0, n))
    found = wilson(k, n)
    assert (found.low, found.high) == pytest.approx(
        proportion_confint(k, n, method="wilson"), abs=1e-12
    )
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


def test_rogan_gladen_covers_when_calibration_is_small():
    rng = np.random.default_rng(3)
    p, tpr, fpr, hits, runs = 0.4, 0.85, 0.25, 0, 600
    for _ in range(runs):
        q = fpr + (tpr - fpr) * p
        found = rogan_gladen(
            rng.binomial(500, q), 500, rng.binomial(60, tpr), 60, rng.binomial(60, fpr), 60
        )
        hits += found.low <= p <= found.high
    assert 0.92 < hits / runs <= 0.99


def test_youden_interval_is_newcombes_of_statsmodels():
    found = confusion([1] * 50 + [0] * 75, [1] * 40 + [0] * 10 + [1] * 15 + [0] * 60).youden_j
    theirs = confint_proportions_2indep(40, 55, 10, 70, method="newcomb", compare="diff")
    assert (found.low, found.high) == pytest.approx(theirs)


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


def test_a_rising_or_constant_rate_is_seldom_said_to_fall():
    rng = np.random.default_rng(8)
    n = np.full(20, 100)
    said = {"constant": 0, "rising": 0}
    for _ in range(100):
        said["constant"] += course(np.arange(20), rng.binomial(n, 0.5), n).fall_p < 0.05
        rate = np.linspace(0.2, 0.8, 20)
        said["rising"] += course(np.arange(20), rng.binomial(n, rate), n).fall_p < 0.05
    assert max(said.values()) <= 12, said  # of 100 at 5 %: more than 12 has p < .002


def test_a_wandering_rate_is_not_taken_for_independent_rollouts():
    """Steps of their own difficulty: the same hill is weaker evidence when neighbours differ."""
    n = np.full(12, 200)
    jumps = np.array([1, -1] * 6) * 50
    smooth, rough = HILL[2:8].repeat(2), np.clip(HILL[2:8].repeat(2) + jumps, 0, 200)
    assert course(STEPS, smooth, n).fall_p < 0.05 < course(STEPS, rough, n).fall_p


N = np.full(12, 200)


@pytest.mark.parametrize(
    ("true", "verdict", "said"),
    [
        (UP, "no judge hacking", "does not rise"),
        (UP - 15, "no judge hacking", "does not rise"),  # lenient throughout, not more and more
        (np.full(12, 20), "judge hacking", "same rollouts rises"),
        (None, "not to be told", "neither shown nor ruled out"),
    ],
)
def test_hacking_is_a_reward_that_parts_from_the_truth_of_the_same_rollouts(true, verdict, said):
    reward, held_out = course(STEPS, UP, N), course(STEPS, UP // 2, N)
    gap = None if true is None else gap_course(STEPS, UP, true, N)
    found = read_run(reward, held_out, gap)
    assert found.verdict == verdict and said in found.words


def test_a_short_run_is_not_cleared_of_hacking():
    four = [series[:4] for series in (STEPS, UP, N)]
    found = read_run(course(*four), course(*four), gap_course(STEPS[:4], UP[:4], UP[:4], N[:4]))
    assert found.verdict == "not to be told" and "fewer than 5 steps" in found.words
