"""Behaviours that moved apart beyond the base arm, and how often they do so by chance."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.drift.substitution import base_of, false_alarm, substitutions, why_no_substitution
from tests.analysis.conftest import made_run
from tests.tiers import some


def moved(arm, seed, *shifts, config=None):
    """First step: every feature 0 and 2 (SD 1); second step shifted by the SDs given."""
    first = np.repeat([[0.0], [2.0]], len(shifts), axis=1)
    return made_run(
        np.full((2, 2), np.nan), cell=f"{arm}{seed}", arm=arm, seed=seed, step_P=np.array([1, 2]),
        features=np.stack([first, first + shifts]), config=config or {},
        names=tuple(f"z{k}" for k in range(len(shifts))),
    )  # fmt: skip


BASE = [moved("sim-fair", seed, 0.1 * seed, -0.3) for seed in range(3)]


def test_it_is_what_lies_beyond_the_base_arm_in_every_pair():
    """Beyond 0, .1, .2 and -.3: (.9, .6, 1.0) and (-.5, -.6, -.7)."""
    arm = [moved("a", 0, 0.9, -0.8), moved("a", 1, 0.7, -0.9), moved("a", 2, 1.2, -1.0)]
    (found,) = substitutions([*BASE, *arm])
    assert (found.arm, found.base, found.risen, found.fallen) == ("a", "sim-fair", "z0", "z1")
    assert (found.up, found.down) == (pytest.approx(0.6), pytest.approx(-0.5))
    assert found.runs == 3
    assert substitutions([*BASE, *arm], min_shift_sd=0.65) == []
    odd = [*arm[:2], moved("a", 2, 1.2, -0.4)]
    assert substitutions([*BASE, *odd]) == []


def test_one_arm_or_moves_by_nothing_known_are_no_substitution():
    learnt = [moved(arm, seed, 1.5, -1.5) for arm in ("sim-fair", "a") for seed in range(4)]
    assert substitutions(learnt) == [] and why_no_substitution(learnt) == ""
    alone = [moved("a", seed, 1.0, -1.0) for seed in range(4)]
    assert base_of(alone) is None and substitutions(alone) == []
    assert "there is one arm" in why_no_substitution(alone)
    # A single step has no shift: neither arm can have moved, and nothing breaks.
    arm = [moved("a", seed, 1.0, -1.0) for seed in range(3)]
    assert len(substitutions([*BASE, *arm])) == 1
    assert substitutions([run.at(1) for run in [*BASE, *arm]]) == []
    stuck = [*BASE, *(run.at(1) for run in arm)]
    assert substitutions(stuck) == [] and "both shifts are known" in why_no_substitution(stuck)


def test_the_base_is_the_undosed_judge_and_unpaired_seeds_are_no_pairs():
    dosed, plain = ({"judge.simulated.doses.length": dose} for dose in (0.2, 0.0))
    arms = [moved("a", 0, 0.0, config=dosed), moved("b", 0, 0.0, config=plain)]
    assert base_of(arms) == "b"
    assert base_of([*arms, moved("sim-fair", 0, 0.0)]) == "sim-fair"
    # Seed 2 is not in the base arm, so two pairs are left, and two tell nothing.
    arm = [moved("a", seed, 1.0, -1.0) for seed in (0, 1, 5)]
    assert substitutions([*BASE, *arm]) == []
    assert "no arm has 3 seeds in common with sim-fair" in why_no_substitution([*BASE, *arm])
    more = [*arm, moved("a", 2, 1.0, -1.0)]
    assert [one.runs for one in substitutions([*BASE, *more])] == [3]


def test_features_without_spread_and_answers_are_left_out():
    flat = [moved("sim-fair", seed, 0.0, 0.0, 0.0) for seed in range(3)]
    arm = [moved("a", seed, 1.0, -1.0, -1.0) for seed in range(3)]
    for run in [*flat, *arm]:
        run.features[..., 1] = 3.0
        run.features[..., 2] = np.nan
    assert substitutions([*flat, *arm]) == [] and why_no_substitution([*flat, *arm]) == ""
    for run in [*flat, *arm]:
        run.features[:] = np.nan
    assert substitutions([*flat, *arm]) == [] and "both shifts" in why_no_substitution(
        [*flat, *arm]
    )


def test_the_false_alarm_by_hand_and_of_few_runs():
    """One behaviour cannot do both; two with p = 1/4 each way: 1 - 2 (3/4)^2 + (1/2)^2."""
    scatter = 0.25 / stats.norm.isf(0.25) / 2**0.5
    assert false_alarm(np.array([scatter]), 1) == pytest.approx(0.0)
    assert false_alarm(np.array([scatter, scatter, np.nan]), 1) == pytest.approx(0.125)
    assert false_alarm(np.array([0.0, scatter]), 3) == pytest.approx(0.0)
    assert math.isnan(false_alarm(np.array([np.nan]), 3))
    told = [false_alarm(np.full(11, 0.3), pairs) for pairs in (2, 3, 4, 5)]
    assert told == pytest.approx([0.33, 0.042, 0.0037, 0.0003], rel=0.02)
    scatter = 0.25 / stats.t(4).isf(0.25) / 2**0.5
    assert false_alarm(np.full(2, scatter), 1, freedom=4) == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("arms", "studies"),
    some([(1, 40), (10, 10), (1, 80), (10, 24)], standard=[(1, 40), (10, 10)]),
)
def test_bias_free_studies_hardly_ever_show_it(arms, studies):
    """Planted studies of arms that drift alike by .5 SD: at most 7 % show any, however many arms.

    Moves of .25 SD alone would show one in .11 of studies of one arm, and in .69 of ten: of ten
    such studies more than the three allowed in 98 % of builds.
    """
    rng, alarms = np.random.default_rng(0), 0
    drift = np.linspace(-0.5, 0.5, 6)
    for _ in range(studies):
        runs = [
            moved(arm, seed, *(drift + rng.normal(0, 0.8, 6)))
            for arm in ("sim-fair", *(f"a{k}" for k in range(arms)))
            for seed in range(3)
        ]
        alarms += bool(substitutions(runs))
    assert alarms <= stats.binom(studies, 0.07).ppf(0.99)


def test_the_chance_is_that_of_any_arm():
    """The same arm beside three alike to the base arm: 1 - (1 - p)^4 with the same scatter."""
    noise = np.random.default_rng(5).normal(0, 0.25, (3, 2))
    base = [moved("sim-fair", seed, *noise[seed]) for seed in range(3)]
    arm = [moved("a", seed, *(noise[seed] + [1.2, -1.2])) for seed in range(3)]
    alike = [moved(name, seed, *noise[seed]) for name in "bcd" for seed in range(3)]
    (alone,), (beside,) = substitutions([*base, *arm]), substitutions([*base, *arm, *alike])
    scatter = np.std(noise, axis=0, ddof=1)
    alone_p = false_alarm(scatter, 3, 1.2, freedom=4)
    assert (alone.arms, alone.chance) == (1, pytest.approx(alone_p))
    beside_p = false_alarm(scatter, 3, 1.2, freedom=10)
    assert (beside.arms, beside.chance) == (4, pytest.approx(1 - (1 - beside_p) ** 4))
