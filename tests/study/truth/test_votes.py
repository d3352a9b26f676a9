"""Spellings of one answer have one vote, and other answers another."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.truth.votes import ballot

SAME = [
    ("gsm8k", "math", ["1,000", "1000", "1000.00", "$1000"]),
    ("squad2", "qa", ["Paris", "paris.", "the Paris"]),
    ("hotpotqa", "qa", ["Yes", "yes."]),
    ("math", "math", [r"\frac12", r"\frac{1}{2}", r"\dfrac{1}{2}", "0.5", "1/2"]),
    ("math", "math", [r"-\frac{1}{2}", "-0.5", r"-\frac12"]),
    ("math", "math", [r"x + 1", r"x+1", r"x+1."]),
    ("math500", "math", ["Evelyn", "evelyn", r"\text{Evelyn}"]),
]


@pytest.mark.parametrize(("dataset", "domain", "spellings"), SAME)
def test_spellings_of_one_answer_are_one_vote(dataset, domain, spellings):
    assert len({ballot(dataset, domain, text) for text in spellings}) == 1


def test_other_answers_are_other_votes():
    names = [ballot("math", "math", text) for _, _, texts in SAME[3:] for text in texts[:1]]
    assert len(set(names)) == 4
    assert ballot("math", "math", "X") != ballot("math", "math", "x")
    assert ballot("mmlu", "qa", "A") == "A" and ballot("humaneval", "code", " a ") == " a "
    assert {ballot(name, "math", None) for name in ("gsm8k", "math")} == {None}


@given(st.fractions(max_denominator=10**6))
def test_a_number_of_math_is_its_value(value):
    sign, above, below = "-" * (value < 0), abs(value.numerator), value.denominator
    for text in (f"{value}", rf"{sign}\frac{{{above}}}{{{below}}}"):
        assert Fraction(ballot("math", "math", text) or "") == value
