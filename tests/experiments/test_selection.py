"""Prompt selection against brute force and a greedy choice by hand, and what it refuses."""

import itertools
import math
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.evaluation import selection
from study.errors import UserError

WORDS = "red blue green fox owl cat name list three four".split()
TEXTS = [" ".join(words) for words in itertools.permutations(WORDS[:5], 3)]


def kernel_of(seed: int, n: int, away: int, grid: int = 0) -> tuple[np.ndarray, np.ndarray | None]:
    """Similarities of random points; on a grid of so many steps per side, or anywhere for 0."""
    points = np.random.default_rng(seed).random((n + away, 4))
    if grid:
        points = np.round(points * grid)
    own = points[:n]
    return own @ own.T, own @ points[n:].T if away else None


def by_hand(kernel: np.ndarray, away: np.ndarray | None, chosen: tuple[int, ...]) -> float:
    """The value of a choice with loops and nothing else."""
    total = 0.0
    for i in range(len(kernel)):
        known = max(away[i]) if away is not None else 0.0
        total += max(0.0, max(kernel[i][j] for j in chosen) - known)
    return total


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(0, 3), st.data())
def test_a_choice_is_near_the_best_of_all_choices(seed, n, away, data):
    k = data.draw(st.integers(1, n))
    kernel, others = kernel_of(seed, n, away)
    chosen = tuple(selection.facility_location(kernel, k, others))
    assert len(chosen) == len(set(chosen)) == k and list(chosen) == sorted(chosen)
    best = max(by_hand(kernel, others, c) for c in itertools.combinations(range(n), k))
    assert by_hand(kernel, others, chosen) >= (1 - 1 / math.e) * best - 1e-6


def check_greedy(kernel: np.ndarray, away: np.ndarray, found: list[tuple[int, float]]) -> None:
    """Every place found gained what it says, and none left would have gained more."""
    assert len({place for place, _ in found}) == len(found), "a place was chosen twice"
    held = away.max(axis=1, initial=0.0)
    for place, said in found:
        gains = np.maximum(kernel - held[:, None], 0.0).sum(axis=0)
        close = 1e-5 * max(1.0, gains.max())  # the library reckons in single precision
        assert said == pytest.approx(gains[place], abs=close), f"place {place} gains less or more"
        assert gains[place] >= gains.max() - close, f"another than place {place} gains more"
        held = np.maximum(held, kernel[:, place])


@settings(max_examples=150)
@given(
    st.integers(0, 10**6),
    st.integers(2, 30),
    st.integers(0, 3),
    st.sampled_from([0, 1, 3]),
    st.data(),
)
def test_the_library_chooses_greedily(seed, n, away, grid, data):
    """With ties too: on a grid of 1 or 3 steps many prompts are worth the same."""
    k = data.draw(st.integers(1, n))
    kernel, others = kernel_of(seed, n, away, grid)
    known = np.zeros((n, 0)) if others is None else others
    found = selection._maximised(kernel, k, known)
    check_greedy(kernel, known, found)
    gaining = {place for place, gain in found if gain > selection.NO_GAIN}
    assert gaining <= set(selection.facility_location(kernel, k, others))
    # it stops only where k are found, all but one are, or nothing more is gained
    if len(found) < min(k, n - 1):
        held = np.maximum(known.max(axis=1, initial=0.0), kernel[:, [p for p, _ in found]].max(1))
        assert np.maximum(kernel - held[:, None], 0.0).sum(axis=0).max() <= 1e-5


def test_prompts_are_chosen_greedily():
    """As they come, through the words: repeated prompts, an empty one, some trained on."""
    texts = [*TEXTS, *TEXTS[:9], "", "42"]
    vectors = selection.embed([*texts, *texts[10:14]])
    own, other = vectors[: len(texts)], vectors[len(texts) :]
    found = selection._maximised(own @ own.T, 20, own @ other.T)
    check_greedy(own @ own.T, own @ other.T, found)
    gaining = {place for place, gain in found if gain > selection.NO_GAIN}
    assert gaining <= set(selection.choose(texts, 20, away=texts[10:14]))


@pytest.mark.parametrize(
    "found, said",
    [
        ([(2, 1.0)], "another than place 2"),
        ([(0, 3.0), (0, 0.0)], "chosen twice"),
        ([(0, 2.0)], "less or more"),
    ],
)
def test_a_choice_that_is_not_greedy_is_seen(found, said):
    with pytest.raises(AssertionError, match=said):
        check_greedy(np.diag([3.0, 2.0, 1.0]), np.zeros((3, 0)), found)


def test_what_training_covers_is_not_chosen_and_words_decide_what_is_alike():
    # two groups of three; the first group is what was trained on
    kernel = np.kron(np.eye(2), np.full((3, 3), 0.9)) + 0.1 * np.eye(6)
    away = np.array([[1.0], [1.0], [1.0], [0.0], [0.0], [0.0]])
    assert selection.facility_location(kernel, 1, away)[0] in (3, 4, 5)
    both = selection.facility_location(kernel, 2, None)
    assert {place // 3 for place in both} == {0, 1}, "without it each group has one"
    one, same, other, empty = selection.embed(["red fox", "fox, red!", "blue owl", ""])
    assert one @ same == pytest.approx(1.0)
    assert one @ other == pytest.approx(0.0, abs=1e-12)
    assert not empty.any()
    # "red" stands in three texts and "fox" in one: the rarer word weighs more
    both, red, _ = selection.embed(["red fox", "red", "red owl"])
    assert both @ red < 1 / math.sqrt(2)


def test_where_nothing_is_gained_the_least_alike_are_taken_and_a_missing_library_is_said(
    monkeypatch,
):
    kernel = np.eye(4)
    assert selection.facility_location(kernel, 2, np.ones((4, 1))) == [0, 1]
    assert selection.facility_location(kernel, 4) == [0, 1, 2, 3]
    monkeypatch.setitem(sys.modules, "submodlib", None)
    with pytest.raises(UserError, match=r"pip install submodlib-py.*select=stratified"):
        selection.choose(TEXTS, 3)
    assert len(selection.choose(TEXTS, 3, "random")) == 3


@pytest.mark.parametrize("method", selection.METHODS)
def test_a_choice_is_the_same_again(method):
    first, again = (selection.choose(TEXTS, 7, method, away=TEXTS[:2], seed=3) for _ in range(2))
    assert first == again
    assert len(set(first)) == 7 and set(first) <= set(range(len(TEXTS)))


def test_strata_have_their_shares():
    strata = ["a"] * 50 + ["b"] * 30 + ["c"] * 20
    chosen = selection.stratified(strata, 10)
    assert Counter(strata[place] for place in chosen) == {"a": 5, "b": 3, "c": 2}
    few = Counter(strata[place] for place in selection.stratified(strata, 7))
    assert few in ({"a": 4, "b": 2, "c": 1}, {"a": 3, "b": 2, "c": 2})
    assert selection.stratified(strata, 10, seed=1) != chosen


def test_bad_requests_are_said(monkeypatch):
    monkeypatch.setattr(selection, "MOST", 3)
    texts = ["a", "b", "c", "d"]
    for asked, said in ((0, "random"), "n=0"), ((5, "random"), "from 1 to 4"), ((2,), "at most 3"):
        with pytest.raises(UserError, match=said):
            selection.choose(texts, *asked)
    assert selection.choose(texts[:3], 3, away=texts[:3]) == [0, 1, 2], "3 are not more than 3"
    assert len(selection.choose(texts, 2, "stratified")) == 2
