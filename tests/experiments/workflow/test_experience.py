"""The experience buffer: what enters, what stays, what is shown, and that it is a pure function."""

import random
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from experiments.data.near import shingles
from experiments.workflow.experience import CAP, MODES, Buffer, Entry, Query, normal_form

WORDS = "red blue green fox owl cat name list three four apple pear road train sum half".split()


def entry(number, problem, program="class Workflow: pass", **changed):
    whole = Entry(number, "math", problem, program, correct=1.0, verified=True, total=1.0)
    return replace(whole, **changed)


def random_entries(seed, n, length=12, words=WORDS):
    draw = random.Random(seed)
    return [
        entry(
            number,
            " ".join(draw.choice(words) for _ in range(length)),
            f"run({draw.randrange(3)})",
            domain=draw.choice(("math", "qa")),
            correct=draw.choice((None, 0.0, 1.0)),
            verified=draw.choice((None, False, True, True)),
            total=draw.choice((None, 0.1, 0.5, 0.9)),
        )
        for number in range(n)
    ]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 30), st.booleans(), st.sampled_from([0.0, 0.5]))
def test_every_row_is_kept_or_refused_and_their_order_is_nothing(seed, n, verified, quantile):
    rows = random_entries(seed, n, length=2)
    empty = Buffer(verified=verified, quantile=quantile)
    buffer = empty.updated(rows)
    assert len(buffer.entries) + sum(buffer.refused.values()) == n
    shuffled = random.Random(seed).sample(rows, n)
    again = empty.updated(shuffled)
    assert again == buffer and again.sha == buffer.sha
    if verified:
        assert all(kept.verified for kept in buffer.entries)
        assert buffer.refused["unverified"] == sum(not row.verified for row in rows)
        assert buffer.contamination in (None, 0.0)
    wrong = sum(kept.verified is False and kept.correct == 1 for kept in buffer.entries)
    share = wrong / len(buffer.entries) if buffer.entries else None
    assert buffer.contamination == share


def test_the_judges_word_is_a_treatment():
    rows = [
        entry(1, "red fox", verified=True, correct=0.0),
        entry(2, "blue owl", verified=False, correct=1.0),
        entry(3, "green cat", verified=True, correct=1.0),
        entry(4, "four pears", verified=None, correct=0.9),
    ]
    careful, trusting = Buffer().updated(rows), Buffer(verified=False).updated(rows)
    assert {kept.id for kept in careful.entries} == {1, 3} and careful.contamination == 0
    assert {kept.id for kept in trusting.entries} == {2, 3, 4}
    assert trusting.contamination == pytest.approx(1 / 3)
    assert careful.refused["unverified"] == 2 and trusting.refused["unverified"] == 1


def test_the_same_program_on_the_same_problem_is_a_duplicate():
    program = "class Workflow:\n    def f(self):\n        return 1\n"
    other = "class Workflow:\n\n  def f( self ): # why\n    return (1)\n"
    rows = [
        entry(1, "Red fox", program, total=0.8),
        entry(2, "red  FOX", other, total=0.9),
        entry(3, "red fox", "Custom -> Revise"),
        entry(4, "red fox", " Custom  ->\nRevise "),
        entry(5, "blue owl", program),
    ]
    buffer = Buffer().updated(rows)
    assert buffer.refused == {"unverified": 0, "duplicate": 2, "below": 0}
    assert {kept.id for kept in buffer.entries} == {2, 3, 5}


@pytest.mark.parametrize(
    "program", ["(" * 9000, "-" * 16_000 + "1", "a\0b", "\ud800 x", "x." * 9000]
)
def test_a_hostile_program_has_a_normal_form(program):
    assert isinstance(normal_form(program), str)


def test_the_quantile_refuses_what_is_below_it_in_its_domain():
    rows = [entry(n, f"problem {n}", total=n / 10) for n in range(10)]
    rows += [entry(99, "alone", domain="qa", total=-3.0)]
    buffer = Buffer(quantile=0.9).updated(rows)
    assert {kept.id for kept in buffer.entries} == {8, 9, 99} and buffer.refused["below"] == 8
    assert Buffer().updated([*rows, entry(5, "no total", total=None)]).refused["below"] == 1


def test_a_full_domain_keeps_what_is_good_and_what_is_new():
    """Near-copies at a low total go before what nothing else is like."""
    copies = [entry(n, f"the red fox runs home {n}", f"run({n})", total=0.5) for n in range(CAP)]
    novel = [
        entry(1000 + n, f"w{n} x{n} y{n} z{n}", f"go({n})", total=0.5) for n in range(CAP // 2)
    ]
    good = [entry(2000 + n, f"the red fox runs home {n}", f"win({n})") for n in range(5)]
    buffer = Buffer().updated([*copies, *novel, *good])
    kept = {stays.id for stays in buffer.entries}
    assert len(buffer.entries) == CAP and buffer.refused["below"] == CAP // 2 + 5
    assert {stays.id for stays in (*novel, *good)} <= kept


def test_a_resumed_buffer_is_that_of_the_unbroken_run():
    steps = [random_entries(seed, 40, length=4) for seed in range(5)]
    unbroken = reduce(Buffer.updated, steps, Buffer())
    resumed = reduce(Buffer.updated, steps[2:], reduce(Buffer.updated, steps[:2], Buffer()))
    assert resumed == unbroken and resumed.sha == unbroken.sha
    query = Query("q", "math", "the sum of three and four")
    assert resumed.retrieve(query) == unbroken.retrieve(query)
    assert Buffer().updated(steps[0]).sha != unbroken.sha


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(MODES), st.integers(1, 5))
def test_nothing_of_the_problem_itself_is_shown(seed, mode, k):
    draw = random.Random(seed)
    rows = [
        replace(row, verified=True, total=1.0, group_key=f"g{draw.randrange(6)}")
        for row in random_entries(seed, 25, length=draw.choice((1, 3, 12)))
    ]
    buffer = Buffer().updated(rows)
    chosen = draw.choice(rows)
    query = Query(chosen.id, chosen.domain, chosen.problem, chosen.group_key)
    retrieved = buffer.retrieve(query, mode, k)
    assert len(retrieved) <= k
    ids = [shown.id for shown, _ in retrieved]
    assert chosen.id not in ids and len(set(ids)) == len(ids)
    words = shingles(query.problem)
    for shown, likeness in retrieved:
        assert shown.domain == query.domain and shown.group_key != query.group_key
        other = shingles(shown.problem)
        assert len(words & other) / len(words | other) < 0.8 and likeness <= 0.95 + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_the_cosine_is_that_of_the_library(seed):
    rows = [
        replace(row, domain="math", verified=True, total=1.0) for row in random_entries(seed, 9)
    ]
    query = Query(None, "math", " ".join(random.Random(seed).choices([*WORDS, "unseen"], k=9)))
    vectorizer = TfidfVectorizer(analyzer=shingles)
    buffer = Buffer().updated(rows)
    vectors = vectorizer.fit_transform([kept.problem for kept in buffer.entries])
    cosines = cosine_similarity(vectors, vectorizer.transform([query.problem])).ravel()
    by_id = {kept.id: cosine for kept, cosine in zip(buffer.entries, cosines, strict=True)}
    retrieved = buffer.retrieve(query, "cosine", 9)
    for shown, likeness in retrieved:
        assert likeness == pytest.approx(by_id[shown.id], abs=1e-9)
    likenesses = [likeness for _, likeness in retrieved]
    assert likenesses == sorted(likenesses, reverse=True)


def test_modes_differ_in_what_they_make_of_copies():
    rows = [
        entry(1, "how many red apples does the fox eat on monday"),
        entry(2, "how many red apples does the fox eat on tuesday"),
        entry(3, "how many pears fall from the tree"),
        entry(4, "name the capital"),
    ]
    buffer = Buffer().updated(rows)
    query = Query(9, "math", "how many red apples and pears does the owl eat")
    ids = {mode: [shown.id for shown, _ in buffer.retrieve(query, mode, 2)] for mode in MODES}
    assert set(ids["cosine"]) == {1, 2}
    assert ids["mmr"][0] in (1, 2) and ids["mmr"][1] in (3, 4)
    assert ids["facility"][0] in (1, 2) and ids["facility"][1] == 3


def test_an_empty_buffer_has_nothing_to_show():
    query = Query("q", "math", "red fox")
    assert Buffer().retrieve(query) == []
    only = Buffer().updated([entry("q", "other words entirely")])
    for mode in MODES:
        assert only.retrieve(query, mode) == []
        assert len(only.retrieve(replace(query, id=2), mode)) == 1
        assert only.retrieve(replace(query, id=2, domain="qa"), mode) == []
