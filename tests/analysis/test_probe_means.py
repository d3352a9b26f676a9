"""Means clustered by prompt and what is claimed of them: oracles, coverage, sizes of tests."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttost_paired

from analysis.probes.effects import clustered_mean, effects, tost
from analysis.statistics.power import smallest_effect
from tests.analysis.conftest import clustered


def drawn(seed: int, prompts: int, each: int, between: float) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    shared = draw.normal(0, between, prompts).repeat(each)
    return shared + draw.normal(0, 1, prompts * each), np.arange(prompts).repeat(each)


def test_a_clustered_mean_is_that_of_statsmodels():
    values, prompts = drawn(1, 17, 3, 2.0)
    values, prompts = np.append(values[4:], np.nan), np.append(prompts[4:], 99)
    found = clustered_mean(values, prompts)
    kept = np.isfinite(values)
    fit = clustered(values[kept], prompts[kept])
    low, high = fit.conf_int()[0]
    assert (found.value, found.se) == pytest.approx((fit.params[0], fit.bse[0]))
    assert (found.low, found.high, found.p) == pytest.approx((low, high, fit.pvalues[0]))
    assert (found.rows, found.n) == (kept.sum(), len(set(prompts[kept])))


def test_the_smallest_effect_is_that_of_the_power_of_prompts():
    values, prompts = drawn(3, 20, 1, 0.0)
    smallest = smallest_effect(20, paired=True) * values.std(ddof=1)
    assert clustered_mean(values, prompts).smallest == pytest.approx(smallest)


def test_equivalence_is_that_of_statsmodels():
    values, prompts = drawn(5, 30, 1, 0.0)
    oracle = ttost_paired(values, np.zeros(30), -0.4, 0.4)[0]
    assert tost(clustered_mean(values, prompts), 0.4) == pytest.approx(oracle)


@pytest.mark.parametrize(
    "values, p, outside",
    # of two prompts none differs: .95 ** 2 is the chance of that if a share of .05 did
    [([0.0, 0.0], 1.0, 0.95**2), ([0.2, 0.2], 0.5, 1.0), ([1e-8, 0.0], 1.0, 0.95**2)],
)
def test_without_spread_nothing_is_certain(values, p, outside):
    found = clustered_mean(np.array(values), np.array([1, 2]))
    assert (found.se, found.p) == (0.0, pytest.approx(p))
    assert tost(found, 0.05) == pytest.approx(outside)
    unseen = 1 - 0.025 ** (1 / 2)
    assert found.high == pytest.approx(found.value + unseen * (1 - found.value))
    assert found.low == pytest.approx(found.value - unseen * (1 + found.value))
    assert math.isnan(found.smallest), "two prompts show nothing"


@pytest.mark.parametrize("moved", [0, 1, 4])
def test_prompts_that_turn_to_the_end_of_the_scale_are_bounded_exactly(moved):
    """Clopper and Pearson's bound on their share, by its definition."""
    found = clustered_mean(np.r_[np.ones(moved), np.zeros(64 - moved)], np.arange(64))
    assert stats.binom.cdf(moved, 64, found.high) == pytest.approx(0.025, abs=0.004)
    assert tost(found, 0.05) == pytest.approx(stats.binom.cdf(moved, 64, 0.05), abs=0.015)
    # seen with a chance of 80 %: six that turn the same way, 2 / 2 ** 6 < .05
    worst = clustered_mean(np.zeros(64), np.arange(64)).smallest
    assert stats.binom.sf(5, 64, worst) == pytest.approx(0.8)
    assert found.smallest >= worst


def test_what_is_known_of_the_size_of_changes_is_used():
    """One prompt of 20 moved by .5: P(w + v / 2 >= x), weights Dirichlet(1, 19, 1), by hand."""
    values = np.r_[0.5, np.zeros(19)]
    rare = clustered_mean(values, np.arange(20)).rare
    assert (rare.value, rare.still, rare.apart, rare.ends) == (0.0, 19, (0.5,), (-1.0, 1.0))
    # the two weights sum to Beta(2, 19) and share it evenly: P(w + v / 2 >= x) given the sum
    total = (np.arange(20_000) + 0.5) / 20_000
    share = np.clip(2 * 0.15 / total - 1, 0, 1)
    by_hand = float(np.mean(stats.beta.pdf(total, 2, 19) * (1 - share)))
    assert rare.at_least(0.15) == pytest.approx(by_hand, abs=0.01)
    assert rare.at_least(0.15) < clustered_mean(2 * values, np.arange(20)).rare.at_least(0.15)
    assert rare.at_least(-0.1) == rare.at_most(0.6) == 1.0


def test_all_prompts_moving_alike_are_as_clear_as_their_signs():
    found = clustered_mean(np.full(20, 0.1), np.arange(20))
    assert found.p == pytest.approx(2 * 0.5**20) and found.se == 0
    two_ways = clustered_mean(np.r_[np.full(19, 0.1), -0.1], np.arange(20))
    assert two_ways.p == pytest.approx(2 * 21 * 0.5**20)
    # every second row is missing in half of the prompts: parts keep the mean of all rows
    uneven = np.r_[np.zeros(30), 1.0]
    prompts = np.r_[np.arange(10).repeat(2), np.arange(10, 20), 20]
    lopsided = clustered_mean(uneven, prompts)
    whole = lopsided.rare
    assert whole.value * whole.still + sum(whole.apart) == pytest.approx(21 * lopsided.value)


def test_a_change_reaches_as_far_as_its_own_scale_does():
    flips = clustered_mean(np.zeros(30), np.arange(30), ends=(0.0, 1.0))
    assert flips.low == 0.0 < flips.high
    # the truth says that the edit is worse: agreement can turn by 2 and by nothing
    table = pd.DataFrame(
        {"judge": "j", "bias": "b", "variant": "v", "keeps": True, "at_end": False}
        | {"pairwise": True}
        | {"prompt_id": range(30), "planted_change": math.nan, "words_change": 1.0}
        | {"judge_change": -1.0, "truth_change": -1.0, "bias_change": 0.0}
        | {f"{of}_{end}": 0.0 for of in ("bias", "judge") for end in ("low", "high")}
    )
    row = effects(table, {}).iloc[0]
    unseen = 1 - 0.025 ** (1 / 30)
    assert row["low"] == 0.0 and row["high"] == pytest.approx(2 * unseen)
    single = effects(table.assign(pairwise=False), {}).iloc[0]
    assert (single["low"], single["high"]) == pytest.approx((-unseen, unseen))


def test_one_prompt_has_no_interval():
    found = clustered_mean(np.array([0.1, 0.3]), np.array([1, 1]))
    assert found.value == pytest.approx(0.2) and found.rows == 2
    assert all(map(math.isnan, (found.se, found.low, found.p, tost(found, 0.05))))
    nothing = clustered_mean(np.array([np.nan]), np.array([1]))
    assert math.isnan(nothing.value) and nothing.rows == 0
