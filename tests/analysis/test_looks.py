"""Looks at a study: Pocock's level where runs are many, and what is clear at which seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.planted.run_variance import first_clear
from analysis.statistics.looks import Look, level, look_lines, look_of


@pytest.mark.parametrize(
    ("looks", "nominal"), [((200, 400), 0.0294), ((200, 400, 600), 0.0221), ((60,), 0.05)]
)
def test_with_many_runs_the_level_is_pocock_s(looks, nominal):
    """Jennison and Turnbull (2000), table 2.1: two-sided .05."""
    assert level(looks) == pytest.approx(nominal, rel=0.02)


def test_with_few_runs_the_level_is_that_of_student_s_t():
    """Two looks, by other draws and another t."""
    differences = np.random.default_rng(5).standard_normal((200_000, 5))
    p = [stats.ttest_1samp(differences[:, :seeds], 0.0, axis=1).pvalue for seeds in (3, 5)]
    assert np.mean(np.minimum(*p) < level((3, 5))) == pytest.approx(0.05, abs=0.002)
    assert level((3, 5)) < level((200, 334)), "t of few runs is less like itself at the next look"


@given(st.lists(st.integers(2, 12), min_size=1, max_size=4, unique=True).map(sorted))
def test_each_look_costs_and_none_costs_more_than_its_share(looks):
    chosen = tuple(looks)
    assert 0.05 / len(chosen) * 0.98 <= level(chosen) <= 0.05
    if len(chosen) > 1:
        assert level(chosen) < level(chosen[1:])


def test_where_a_study_stands():
    none, second = Look((), 4), Look((3, 4, 6), 4)
    assert (none.alpha, none.next, none.sentence()) == (0.05, None, "")
    assert second.alpha == level((3, 4, 6)) == pytest.approx(0.0212, rel=0.02)
    assert second.next == 6 and second.sentence().startswith(
        "This is look 2 of 3, declared at 3, 4, 6 seeds: a difference is called clear below a p of"
        " 0.021"
    )
    between, past, before = (Look((3, 4, 6), seeds) for seeds in (5, 7, 1))
    assert between.alpha == past.alpha == before.alpha == 0.0
    assert (between.next, past.next, before.next) == (6, None, 3)
    assert between.sentence().endswith("so no difference is called clear before there are 6.")
    assert past.sentence().endswith("so no difference is called clear any more.")
    assert before.sentence().startswith("1 seed in every arm")


def test_a_study_stands_where_its_shortest_arm_does():
    runs = [(arm, seed) for arm, seeds in (("a", 4), ("b", 3)) for seed in range(seeds)]
    assert look_of((3, 4), runs).seeds == 3
    assert look_of((3, 4), [*runs, ("b", 9)]).seeds == 3, "other seeds are no pairs"
    assert look_of((3, 4), []).seeds == 0


def test_a_plan_says_what_looks_cost():
    assert look_lines((), 3) == []
    (line,) = look_lines((3, 6), 3)
    assert "below a p of 0.027" in line and "2.77, 1.48 SD" in line
    assert look_lines((3, 6), 4)[1] == (
        "Warning: 4 seeds per arm is none of the looks; nothing is called clear there."
    )


def test_three_looks_err_as_one_and_find_a_planted_effect():
    """400 studies: 3 errors in 100 without an excess, 9 where each look is taken for the only
    one."""
    rng = np.random.default_rng(3)
    clear = np.mean([first_clear(rng, 0.0) > 0 for _ in range(400)])
    plain = np.mean([first_clear(rng, 0.0, alpha=0.05) > 0 for _ in range(400)])
    assert clear < 0.055 < plain
    found = [first_clear(rng, 1.0, effect=3.0) for _ in range(40)]
    assert min(found) == 3 and np.mean(found) < 4
