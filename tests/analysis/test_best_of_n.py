"""Best-of-n from recorded groups equals the mean over every subset, ties and gaps included."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis.onset.display import best_of_n_table
from analysis.onset.overopt import best_of_n, expected_best
from tests.analysis.conftest import made_run

SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0, np.nan])
"""Few, so that ties are common."""


def by_hand(score, truth, n):
    """The mean over all subsets of n of the mean truth of those with the highest score."""
    known = [k for k in range(len(score)) if score[k] == score[k] and truth[k] == truth[k]]
    means = []
    for subset in itertools.combinations(known, n):
        most = max(score[k] for k in subset)
        means.append(np.mean([truth[k] for k in subset if score[k] == most]))
    return np.mean(means)


@given(
    arrays(float, 6, elements=SCORES),
    arrays(float, 6, elements=st.one_of(st.floats(0, 1), st.just(np.nan))),
)
def test_it_is_the_mean_over_every_subset(score, truth):
    best = expected_best(score, truth[:, None])
    assert len(best) == (np.isfinite(score) & np.isfinite(truth)).sum()
    for n in range(1, len(best) + 1):
        assert best[n - 1, 0] == pytest.approx(by_hand(score, truth, n), abs=1e-12)


def make_run(judge, truth, prompts=None, **changes):
    prompt_P = None if prompts is None else np.array(prompts, dtype=object)
    return made_run(judge, truth, prompt_P=prompt_P, config={"judge.name": "own"}, **changes)


def test_a_group_by_hand():
    """Scores 1, 2, 3: the best of two is 3 in two of three pairs and 2 in the other."""
    truth = np.array([[0.0, 0.6, 0.3]])
    lines = best_of_n([make_run(np.array([[1.0, 2.0, 3.0]]), truth)])
    assert [line.n for line in lines] == [1, 2, 3]
    assert [line.truth.value for line in lines] == pytest.approx([0.3, 0.4, 0.3])
    assert [line.gain.value for line in lines] == pytest.approx([0.0, 0.1, 0.0])
    assert [line.score.value for line in lines] == pytest.approx([2.0, 8 / 3, 3.0])
    assert lines[1].kl == pytest.approx(math.log(2) - 0.5) and lines[0].kl == 0
    assert math.isnan(lines[0].truth.low) and lines[0].truth.n == 1


def test_the_prompt_is_the_unit():
    """Two groups of one prompt are one observation; the interval is over the two prompts."""
    judge = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    truth = np.array([[0.0, 1.0], [0.0, 0.5], [0.25, 0.0]])
    best = best_of_n([make_run(judge, truth, ["p", "p", "q"])])[-1]
    assert (best.n, best.truth.n) == (2, 2)
    assert best.truth.value == pytest.approx((0.75 + 0.25) / 2)
    standard_error, quantile = 0.25, 12.706204736
    assert best.truth.high - best.truth.value == pytest.approx(quantile * standard_error)


def test_a_prompt_of_several_runs_is_one_prompt():
    """Two seeds that answered the same prompts say no more of other prompts than one does."""
    judge = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    truth = np.array([[0.0, 1.0], [0.5, 0.0], [0.25, 0.0]])
    runs = [make_run(judge, truth, ["p", "q", "r"]) for _ in range(2)]
    assert best_of_n(runs) == best_of_n(runs[:1])
    unnamed = [replace(make_run(judge, truth), cell=cell) for cell in "ab"]
    assert best_of_n(unnamed)[-1].truth.n == 6


def test_only_the_first_tenth_of_the_steps_counts_and_shadows_have_their_own_curve():
    rng = np.random.default_rng(0)
    judge, truth = rng.random((20, 4)), rng.random((20, 4))
    shadow = truth.copy()
    shadow[0, 0] = np.nan
    run = make_run(judge, truth, shadows={"oracle": shadow}, step_P=np.arange(1, 21))
    lines = {(line.judge, line.n): line for line in best_of_n([run])}
    assert lines["own", 1].truth.n == 2
    assert lines["own", 1].truth.value == pytest.approx(truth[:2].mean())
    assert lines["oracle", 4].truth.n == 1, "a group that lost a score has no best of four"
    assert lines["oracle", 4].truth.value == pytest.approx(truth[1].max())
    table = best_of_n_table(list(lines.values()))
    assert table["n"].tolist() == [1, 2, 4, 1, 2, 4]
    assert set(table["chosen by"]) == {"own", "oracle"}


def test_a_judge_that_sees_the_truth_gains_and_one_that_sees_its_opposite_loses():
    rng = np.random.default_rng(1)
    truth = rng.random((40, 6))
    gains = {}
    for name, score in (("right", truth), ("wrong", -truth), ("blind", rng.random((40, 6)))):
        gains[name] = best_of_n([make_run(score, truth)])[-1].gain
    assert gains["right"].low > 0 > gains["wrong"].high
    assert gains["blind"].low < 0 < gains["blind"].high


def test_nothing_scored_gives_no_curve():
    assert best_of_n([make_run(np.full((3, 2), np.nan), np.ones((3, 2)))]) == []
    assert best_of_n([]) == []
