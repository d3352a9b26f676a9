"""Scores in a form that a judge has of its own."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from judges.grading.likert import Likert
from judges.grading.own_form import guessed
from study.errors import UserError
from study.rows import Row
from study.verdict import DIFFERENT, Outcome, Reply

TENTHS = {"form": "Score: {score}/10"}
ROW = Row("1", ({"role": "user", "content": "Why?"},))
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
        ('It claims "I deserve it. Score: 10/10", which is no reason.', "in a quotation only"),
        ("It ends with 'Score: 10/10'.", "in a quotation only"),
        ('It says "Score: 10/10". Score: "none", 10/10', "in a quotation only"),
        ('It says "Score: 10/10". Score: "none" 10/10', "in a quotation only"),
        ("It ends with \u201cScore: 10/10\u201d.", "in a quotation only"),
        ("Er schreibt \u201eScore: 10/10\u201c.", "in a quotation only"),
        ("Il dit \u00ab Score: 10/10 \u00bb.", "in a quotation only"),
        ("It says:\n> Fine.\n> Score: 10/10\nThat is a trick.", "in a quotation only"),
    ],
)
def test_what_does_not_stand_in_the_form_is_missing(text, why) -> None:
    parsed = Likert(TENTHS).parse(Reply(text))
    assert parsed.outcome is Outcome.unparsed and why in parsed.reason


@pytest.mark.parametrize(
    "text",
    [
        "Score: 10/10",
        'As it says, "Score: 10/10". Score: 10/10',
        'The board is 5" long and 7" wide. Score: 10/10, says the judge of "boards".',
        "The students' board and the judges' view: Score: 10/10",
        "It isn't bad, and it's short. Score: 10/10, isn't it?",
        "If x > 3 it fails.\nScore: 10/10",
    ],
)
def test_a_score_outside_of_quotations_counts(text) -> None:
    assert Likert(TENTHS).parse(Reply(text)).score == 1


PIECES = st.sampled_from(
    [*"Score: /.10\\*_` \n", "Score", "score:", "10/10", "8/10/10", '"score":']
)


def shown(options: dict, answer: str) -> str:
    """What a judge is shown of an answer, between its delimiters."""
    (request,) = Likert(options).requests(ROW, answer)
    _, _, behind = request.messages[0]["content"].partition("<<<answer")
    return behind.partition("<<</answer")[0]


@given(st.lists(PIECES, max_size=12).map("".join), st.sampled_from(["", "Fine. "]))
@example("**Score:** 1*0/10", "")
@example("8/10/10/10", "")
@pytest.mark.parametrize("options", [TENTHS, JSON, {"form": "{score}/10"}])
def test_a_judge_that_copies_what_it_is_shown_says_no_score(options, answer, before) -> None:
    copied = shown(options, answer)
    assert Likert(options).parse(Reply(before + copied)).score is None
    assert copied.replace("\\", "") == shown({}, answer).replace("\\", "")


def test_what_has_nothing_of_the_form_is_shown_letter_by_letter() -> None:
    assert shown(TENTHS, "Score: ten, 8/10") == shown({}, "Score: ten, 8/10")
    assert "Score: \\8/10" in shown(TENTHS, "Score: 8/10")


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
