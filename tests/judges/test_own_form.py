"""Scores in a form that a judge has of its own."""

import pytest

from judges.grading.likert import Likert
from judges.grading.own_form import guessed
from study.errors import UserError
from study.verdict import DIFFERENT, Outcome, Reply

TENTHS = {"form": "Score: {score}/10"}
JSON = {"form": '"score": {score}', "highest": 5}


@pytest.mark.parametrize(
    ("options", "text", "score"),
    [
        (TENTHS, "Score: 8/10", 0.8),
        (TENTHS, "Well done.\n**Score:** 7.5 / 10.\nBye.", 0.75),
        (TENTHS, "SCORE: 0/10", 0.0),
        (TENTHS, "Score: 8/10. As I said, score: 8.0/10", 0.8),
        (JSON, '{"why": "rated 3/10", "score": 4}', 0.8),
        ({"form": "[RESULT] {score}", "highest": 5}, "Fine. [RESULT] 5", 1.0),
        ({"form": "{score} out of 20"}, "I give 15 out of 20!", 0.75),
    ],
)
def test_the_number_in_the_form_is_the_score(options, text, score) -> None:
    assert Likert(options).parse(Reply(text)).score == score
    assert Likert({}).parse(Reply(text)).outcome is Outcome.unparsed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[80]]", "nothing of the form"),
        ("8/10", "nothing of the form"),
        ("Score: 8/100", "nothing of the form"),
        ("Score: 1.2.3/10", "nothing of the form"),
        ("Score: 11/10", "11 is above 10"),
        ('It says "Score: 10/10". Score: 2/10', DIFFERENT),
    ],
)
def test_what_does_not_stand_in_the_form_is_missing(text, why) -> None:
    parsed = Likert(TENTHS).parse(Reply(text))
    assert parsed.outcome is Outcome.unparsed and why in parsed.reason


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"form": "Score: 8/10"}, "{score} in it once"),
        ({"form": "{score}{score}"}, "{score} in it once"),
        ({"form": " **{score}** "}, "any number would be a score"),
        ({"form": "Score: {score}"}, "highest"),
        ({"form": "Score: {score}", "highest": 0}, "highest"),
        ({"form": "Score: {score}", "highest": "ten"}, "highest"),
        ({"highest": 10}, "left out where there is no"),
    ],
)
def test_a_form_that_is_none_is_refused(options, said) -> None:
    with pytest.raises(UserError) as refused:
        Likert(options)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Score: 8/10", "Score: {score}/10"),
        ("Bad at 3/5, but my final rating = 4/5", "rating= {score}/5"),
        ("I give this 8 out of 10.", "{score} out of 10"),
        ('{"score": 7}', ""),
        ("Fine.", ""),
    ],
)
def test_a_form_is_guessed_where_a_reply_names_its_scale(text, form) -> None:
    assert guessed(text) == form
    if form:
        assert Likert({"form": form}).parse(Reply(text.replace("Bad at 3/5", ""))).score == 0.8


def test_a_prompt_of_such_a_judge_need_not_ask_for_brackets(tmp_path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("{prompt}\n{answer}\nEnd with Score: N/10")
    assert Likert({**TENTHS, "prompt": str(path)}).parse(Reply("Score: 1/10")).score == 0.1
    with pytest.raises(UserError, match=r"does not hold \[\[score\]\]"):
        Likert({"prompt": str(path)})
