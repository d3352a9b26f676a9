"""SQuAD 2.0 and HotpotQA against their official definitions, and choices."""

import collections
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.truth import Grader, score
from study.truth.choice import chosen
from study.truth.choice import score as choice
from study.truth.qa import hotpot, span, squad
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


def test_a_gold_beside_an_unanswerable_question_does_not_count():
    assert squad(gold("France", answerable=False), "").correct
    assert not squad(gold("France", answerable=False), "France").correct


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
