"""What a rule reads of an answer, alone: the same score, and nothing around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import UserError
from study.truth import Grader, extracted, score
from study.truth.score import LONGEST
from tests.study.truth.shared import item

CHOICES = (("A", "red"), ("B", "dark blue"))
PROGRAM = "def f(x):\n    return x + 1"
NUMBER = item("gsm8k", "math", answers=("42",))
SHARE = item("gsm8k", "math", answers=("0.25",))
MATH = item("math", "math", answers=(r"\frac{1}{2}",))
SPAN = item("squad2", "qa", answers=("Marie Curie",))
NONE = item("squad2", "qa", answerable=False)
HOTPOT = item("hotpotqa", "qa", answers=("Marie Curie",))
LABEL = item("mmlu", "qa", answers=("B",), choices=CHOICES)
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


def test_a_domain_without_a_rule_is_refused():
    with pytest.raises(UserError, match="no rule"):
        extracted(item("poems", "art"), "a rose")


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
