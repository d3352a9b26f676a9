"""GSM8K: which number counts, and that it is compared exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.filters.extraction import RegexFilter

from study.truth.numbers import final_number, numbers, score
from tests.study.truth.shared import item, official


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # what the last number of a text gets wrong
        ("18 (see step 2)", 18), ("from 3-4", 4), ("1/2", Fraction(1, 2)),
        ("12,34", Fraction("12.34")), ("1e3", 1000), ("the answer is 18, not 20", 18),
        # the order: ####, box, "answer is", last number
        ("the answer is 5 \\boxed{6} #### 7", 7), ("#### 3\n#### 4 apples", 4),
        ("the answer is 5, \\boxed{6}, 7", 6), ("\\boxed{6} and \\boxed{{7} of 9}", 7),
        ("The answer is 5. I used 3 numbers.", 5),
        ("The answer is: **$1,234.50**. 3", Fraction("1234.5")),
        ("The answer is x = 3 + 4 = 7. Not 9", 7), ("**Answer:** 18", 18),
        # a quantity, and then how it comes about or what it is in other units
        ("#### 18 = 9*2", 18), ("\\boxed{15 = 5*3}", 15), ("\\boxed{7 = 18 - 11}", 7),
        ("The answer is 5 dollars = 500 cents", 5), ("#### $18 USD = 16 EUR", 18),
        ("#### 5*3 = 15", 15), ("#### 20 - 5 = 15 apples, 3 each", 15),
        ("#### 5 x = 15, 2x = 6", 6), ("\\boxed{f(2) = 7}", 7), ("so 3, 4, 5", 5),
        ("#### none\nthe answer is 72", 72),
        # how numbers are written
        ("-5", -5), ("$-5", -5), ("-$5.50.", Fraction("-5.5")), ("5 - 3", 3), ("\u22125", -5),
        ("1,450,000", 1450000), ("1,00,000", 100000), ("$1{,}234$", 1234),
        ("3 1/2 cups", Fraction(7, 2)), ("0 1/2", Fraction(1, 2)), ("-3 1/2", Fraction(-7, 2)),
        ("\\boxed{3\\frac{1}{2}}", Fraction(7, 2)), ("\\frac{1}{-2}", Fraction(-1, 2)),
        ("\\dfrac12", Fraction(1, 2)), ("1.5 \\times 10^{3}", 1500), (".5", Fraction(1, 2)),
        ("18.0", 18), ("18.", 18),
        # no number
        ("", None), ("eighteen", None), ("step_2 of x2", None), ("1.2.3", None), ("1/0", None),
        ("9" * 500, None), ("1e999999999", None), ("\u0661\u0662", None),
    ],
)  # fmt: skip
def test_the_number_that_a_text_gives(text, value):
    number = final_number(text)
    assert (number and number.value) == value


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("it gives 2 1/2", "2 1/2"),
        ("-2 1/2 cups", "-2 1/2"),
        ("2, 1/2", "1/2"),
        ("4", "4"),
        ("0", "0"),
    ],
)
def test_a_number_is_extracted_as_it_stands(text, spelled):
    number = final_number(text)
    assert number and number.text == spelled


@given(st.fractions(max_denominator=999).filter(lambda value: abs(value) < 10**9))
def test_a_fraction_that_is_written_is_read(value):
    assert [number.value for number in numbers(f"it is {value}")] == [value]


@given(st.integers(-(10**15), 10**15))
def test_a_grouped_number_that_is_written_is_read(value):
    assert [number.value for number in numbers(f"{value:,} or so")] == [value]


@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [
        ("... #### 2,125", "2125", True), ("18", "18.00", True), ("18", "17.9999999", False),
        ("1000000", "1000001", False),  # 1e-4 relative would pass
        ("25", "25%", True), ("0.25", "25%", True), ("0.25", "25", False),
        ("1/3", "0.3333333", False),
    ],
)  # fmt: skip
def test_numbers_are_compared_exactly(gold, answer, correct):
    assert score(item("gsm8k", "math", answers=(gold,)), answer).correct is correct


def test_official_solutions_are_right_and_extracted_as_by_lm_eval():
    for gold in official("gsm8k"):
        assert score(gold, gold.reference).correct
        right = final_number(gold.reference)
        assert score(gold, f"so \\boxed{{{right.value}}}.").correct
        assert not score(gold, str(right.value + 1)).correct
    solutions = [gold.reference for gold in official("gsm8k")]
    for solution, (extracted,) in zip(
        solutions, RegexFilter().apply([[text] for text in solutions], []), strict=True
    ):
        number = final_number(solution)
        assert number is not None and number.value == Fraction(extracted.replace(",", ""))
