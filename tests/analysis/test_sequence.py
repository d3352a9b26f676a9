"""What may be looked at after every step: simulated at every step, by hand, by definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from analysis.statistics.sequence import FEWEST, TIGHTEST, e_bh, e_value, running_mean

SD = 0.04


def looks(rng, steps, level=0.0):
    return level + SD * rng.standard_normal(steps)


def test_the_interval_holds_the_mean_at_every_look():
    rng, left = np.random.default_rng(0), 0
    for _ in range(400):
        values = looks(rng, 40)
        ends = [running_mean(values[:steps])[1:] for steps in range(FEWEST, 41)]
        left += not all(low <= 0 <= high for low, high in ends)
    # .05 of 400 is 20, SD 4.4: four of them
    assert left <= 20 + 18


def test_a_mean_that_moves_is_held_too():
    rng, left = np.random.default_rng(1), 0
    expected = np.linspace(0, 0.4, 40)
    for _ in range(200):
        values = expected + looks(rng, 40)
        means = [
            (running_mean(values[:steps])[1:], expected[:steps].mean())
            for steps in range(FEWEST, 41)
        ]
        left += not all(low <= mean <= high for (low, high), mean in means)
    assert left <= 10 + 13


def test_evidence_without_a_rise_passes_twenty_in_one_run_of_twenty_at_most():
    rng = np.random.default_rng(2)
    rings = sum(
        any(e_value(values[:steps]) >= 20 for steps in range(FEWEST, 41))
        for values in (looks(rng, 40) for _ in range(400))
    )
    assert rings <= 20 + 18
    fallen = [e_value(looks(rng, 40, level=-0.05)) for _ in range(50)]
    assert max(fallen) < 1


def test_a_rise_is_seen_and_the_sooner_the_larger_it_is():
    rng = np.random.default_rng(3)
    at = []
    for level in (0.02, 0.04, 0.08):
        values = looks(rng, 200, level)
        steps = range(FEWEST, 201)
        at.append(next(n for n in steps if e_value(values[:n]) >= 20))
        low = running_mean(values)[1]
        assert 0 < low < level
    assert at == sorted(at, reverse=True)


def test_an_e_value_is_the_mean_likelihood_ratio_of_larger_means():
    values = looks(np.random.default_rng(4), 30, 0.02)
    differences = np.diff(values)
    sd = math.sqrt((differences**2).sum() / (2 * 29)) * (1 + 2 / 29)
    mixing = (-2 * math.log(0.05) + math.log(-2 * math.log(0.05) + 1)) / TIGHTEST

    def ratio(mean):
        z = values / sd
        return (
            math.exp(mean * z.sum() - len(z) * mean**2 / 2) * 2 * norm.pdf(mean, scale=mixing**0.5)
        )

    assert e_value(values) == pytest.approx(quad(ratio, 0, 8)[0], rel=1e-6)


def test_few_steps_tell_nothing_and_equal_ones_everything():
    assert math.isnan(running_mean([0.1] * (FEWEST - 1))[1])
    assert e_value([1.0] * (FEWEST - 1)) == 1.0
    assert running_mean([0.1] * FEWEST) == (
        pytest.approx(0.1),
        pytest.approx(0.1),
        pytest.approx(0.1),
    )
    assert e_value([0.1] * FEWEST) == math.inf
    assert e_value([0.1] * FEWEST, most=0.2) == 0.0
    assert math.isnan(running_mean([])[0])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_e_bh_calls_the_largest_by_its_definition(values):
    called = e_bh(values)
    largest = sorted(values, reverse=True)
    enough = [
        k for k in range(1, len(values) + 1) if k * largest[k - 1] >= len(values) / 0.05 - 1e-9
    ]
    assert called.sum() == max(enough, default=0)
    if called.any() and not called.all():
        assert min(np.array(values)[called]) >= max(np.array(values)[~called])


def test_one_cell_is_called_at_twenty():
    assert e_bh([19.0]).tolist() == [False]
    assert e_bh([20.0]).tolist() == [True]
    assert e_bh([25.0, 30.0, 1.0]).tolist() == [False, False, False]
    assert e_bh([40.0, 30.0, 1.0]).tolist() == [True, True, False]
