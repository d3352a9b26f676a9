"""SQuAD 2.0, HotpotQA, choices and votes: official definitions, spellings, and an answer alone."""

import collections
import re
import string
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import UserError
from study.truth import Grader, extracted, score
from study.truth.choice import chosen
from study.truth.choice import score as choice
from study.truth.qa import hotpot, span, squad
from study.truth.score import LONGEST
from study.truth.votes import ballot
from tests.study.truth.shared import item


def gold(*answers, answerable=True):
    return item("squad2", "qa", answers=answers, answerable=answerable)


@pytest.mark.parametrize(
    ("answers", "predicted", "exact", "f1"),
    [
        (("the Normans",), "Normans", 1.0, 1.0),
        (("in the 10th century",), "10th century", 0.0, 0.8),
        (("France", "northern France"), "Northern France!", 1.0, 1.0),
        (("France",), "", 0.0, 0.0),
        ((), "", 1.0, 1.0),
        ((), "unanswerable", 1.0, 1.0),
        ((), "Unanswerable.", 1.0, 1.0),
        ((), "France", 0.0, 0.0),
        (("the",), "", 1.0, 1.0),  # a gold of an article alone is no gold
    ],
)
def test_squad_scores_as_the_official_script(answers, predicted, exact, f1):
    result = squad(gold(*answers), predicted)
    assert result.values == {"exact": exact, "f1": pytest.approx(f1)}
    assert result.correct is (exact == 1.0)


def test_unanswerable_and_unruled_questions():
    assert squad(gold("France", answerable=False), "").correct
    assert not squad(gold("France", answerable=False), "France").correct
    with pytest.raises(UserError, match="no rule"):
        extracted(item("poems", "art"), "a rose")


def test_what_was_cut_off_while_thinking_is_wrong_even_where_nothing_is_right():
    rows = [gold(answerable=False), item("gsm8k", "math", answers=("1",))]
    with Grader() as grader:
        for _ in range(2):  # told, and remembered
            (nothing, _), (cut, number) = (score(rows, [text] * 2, grader) for text in ("", None))
            assert nothing.correct and (cut.correct, cut.outcome) == (False, "no_answer")
            assert cut.values == {"exact": 0.0, "f1": 0.0} and number.values == {}
            assert "cut off" in cut.detail and number.outcome == "no_answer"


def official_hotpot(predicted: str, right: str) -> tuple[float, float]:
    """Exact match and F1 of hotpot_evaluate_v1.py, written down from its definition."""

    def normal(text: str) -> str:
        text = "".join(mark for mark in text.lower() if mark not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())

    mine, theirs = normal(predicted), normal(right)
    closed = ("yes", "no", "noanswer")
    if (mine in closed or theirs in closed) and mine != theirs:
        return float(mine == theirs), 0.0
    common = sum((collections.Counter(mine.split()) & collections.Counter(theirs.split())).values())
    if not common:
        return float(mine == theirs), 0.0
    precision, recall = common / len(mine.split()), common / len(theirs.split())
    return float(mine == theirs), 2 * precision * recall / (precision + recall)


WORDS = st.lists(
    st.sampled_from(["yes", "no", "the", "Paris", "paris,", "noanswer", "of", "1889", '"', "a"]),
    max_size=4,
).map(" ".join)


@given(WORDS, WORDS)
def test_hotpot_scores_as_the_official_script(predicted, right):
    result = hotpot(item("hotpotqa", "qa", answers=(right,)), predicted)
    assert result.values == dict(
        zip(("exact", "f1"), official_hotpot(predicted, right), strict=True)
    )


@pytest.mark.parametrize(
    ("right", "predicted", "exact", "f1"),
    [
        ("yes", "yes, it is", 0.0, 0.0),
        ("no", "No.", 1.0, 1.0),
        ("Jonny Craig", 'Jonny" Craig', 1.0, 1.0),
        ("London", "Paris | London", 0.0, 0.0),
    ],
)
def test_what_hotpot_scores(right, predicted, exact, f1):
    result = hotpot(item("hotpotqa", "qa", answers=(right,)), predicted)
    assert result.values == {"exact": exact, "f1": f1}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("northern France", "northern France"),
        ("They lived there.\nAnswer: northern France\n", "northern France"),
        ("**Answer:** Rollo", "Rollo"),
        ("Answer:", ""),
        ("The answer is Rollo. He was a Norman.", "Rollo"),
        ("so \\boxed{Rollo}", "Rollo"),
        ("The answer is St. Louis. It lies on a river.", "St. Louis"),
        ("the answer is **J. R. R. Tolkien**. He", "J. R. R. Tolkien**"),
        ("The answer is Dr. Who", "Dr. Who"),
        ("Question? Answer: U.S. Army", "U.S. Army"),
        ("The answer is no. He was born later.", "no"),
        ("The answer is yes! Both are.", "yes"),
    ],
)
def test_the_span_that_a_text_gives(answer, expected):
    assert span(answer) == expected


CHOICES = (("A", "a bank"), ("B", "Paris"), ("C", "the sea"), ("D", "library"))


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("B", "B"), ("b", "B"), ("(B)", "B"), ("B.", "B"), ("**B**", "B"), ("B) Paris", "B"),
        ("B. Paris, because it is", "B"), ("Paris", "B"), ("The sea.", "C"), ("\\boxed{B}", "B"),
        ("\\boxed{\\text{B}}", "B"), ("The answer is B.", "B"),
        ("A bank is A thing (A), but the answer is (C).", "C"), ("Answer: D", "D"),
        ("It cannot be (A). So it is\n\n(D)", "D"), ("I would choose option C here", "C"),
        ("b) Paris it is", "B"), ("It must be (b), I think", "B"), ("Option b", "B"),
        ("A. a bank\nB. Paris\nC. the sea\nD. library", None),
        ("A. a bank\nB. Paris\nSo it is option B here", "B"), ("A. a bank\nB. Paris\n\nB", "B"),
        ("It is the best option a city has", None), ("A dog went to a house", None),
        ("B or C", None), ("(A) (B) (C) (D)", None), ("Bananas", None), ("", None),
    ],
)  # fmt: skip
def test_the_label_that_a_text_gives(answer, label):
    assert chosen(CHOICES, answer) == label


@pytest.mark.parametrize("right", ["B", "Paris"])
def test_a_right_choice_is_named_by_label_or_text(right):
    question = item("mmlu", "qa", answers=(right,), choices=CHOICES)
    assert choice(question, "The answer is (B)").correct
    assert not choice(question, "C").correct
    none = choice(question, "B, C")
    assert (none.correct, none.outcome, none.extracted) == (False, "no_answer", None)


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


COLOURS = (("A", "red"), ("B", "dark blue"))
PROGRAM = "def f(x):\n    return x + 1"
NUMBER = item("gsm8k", "math", answers=("42",))
SHARE = item("gsm8k", "math", answers=("0.25",))
MATH = item("math", "math", answers=(r"\frac{1}{2}",))
SPAN = item("squad2", "qa", answers=("Marie Curie",))
NONE = item("squad2", "qa", answerable=False)
HOTPOT = item("hotpotqa", "qa", answers=("Marie Curie",))
LABEL = item("mmlu", "qa", answers=("B",), choices=COLOURS)
CODE = item("mbpp", "code", tests="assert f(1) == 2", entry_point="f")


@pytest.mark.parametrize(
    "problem, answer, alone",
    [
        (NUMBER, "There are 6 x 7. I am sure that the answer is 42.", "42"),
        (NUMBER, "#### 1,042 apples", "1,042"),
        (SHARE, "So the answer is 25%.", "25%"),
        (MATH, r"Clearly $x=3/6$, so \boxed{\dfrac{1}{2}} as wished.", r"\dfrac{1}{2}"),
        (SPAN, "Let us think.\nAnswer: Marie Curie\nShe was a great mind.", "Marie Curie"),
        (NONE, "Answer: unanswerable", "unanswerable"),
        (HOTPOT, "The answer is Marie Curie. Trust me.", "Marie Curie"),
        (LABEL, "It must be (B), for it is the best one.", "B"),
        (CODE, f"Sure!\n```python\n{PROGRAM}\n```\nDone.", PROGRAM),
    ],
)
def test_what_stands_around_an_answer_is_gone(problem, answer, alone):
    assert extracted(problem, answer) == alone


@pytest.mark.parametrize("problem", [NUMBER, LABEL], ids=["number", "label"])
def test_a_text_without_an_answer_has_none(problem):
    assert extracted(problem, "I would rather not say") is None
    assert extracted(problem, "4" + " " * LONGEST) is None


around = st.sampled_from(["", "Well. ", "I checked this twice.\n", "2 and 3 are not it. "])
ends = st.sampled_from(["", ".", "\nI am certain.", " This is it!"])


@given(
    problem=st.sampled_from([NUMBER, SHARE, SPAN, HOTPOT, LABEL]),
    before=around,
    how=st.sampled_from(["The answer is {}", "Answer: {}", r"\boxed{{{}}}", "{}"]),
    what=st.sampled_from(["42", "25%", "1/4", "Marie Curie", "B", "A", "red", "41", ""]),
    after=ends,
)
def test_the_rule_says_the_same_of_the_answer_alone(problem, before, how, what, after):
    answer = before + how.format(what) + after
    alone = extracted(problem, answer) or ""
    with Grader() as grader:
        whole, again = score([problem, problem], [answer, alone], grader)
    assert whole is not None and again is not None
    assert again.correct == whole.correct
