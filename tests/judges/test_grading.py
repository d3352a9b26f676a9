"""Gradings: what is asked, in which order, and how strictly the reply is read."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.grading import GRADINGS
from judges.grading.base import PROMPTS
from judges.grading.delimiters import undelimit
from judges.grading.likert import Likert
from judges.grading.soft_choice import SoftChoice
from study.errors import UserError
from study.rows import Criterion, make_row
from study.verdict import Outcome, Reply, Request

SPEC = {"secret": "the-truth-is-42", "n": 3}
ROW = make_row(({"role": "user", "content": "Name three colors."},), (), SPEC)
RUBRIC = make_row(
    ({"role": "user", "content": "Hi {answer}"}, {"role": "assistant", "content": "Yes?"}),
    (Criterion("Is polite.", 2.0), Criterion("Is rude.", -1.5)),
)
EVERY = [
    (name, prompt) for name in ("likert", "soft_choice") for prompt in ("default", "strict")
]  # of the gradings that show criteria with their points and do not label them
SHIPPED = [
    *EVERY, *((name, prompt) for name, _ in EVERY[::2] for prompt in ("expert", "lenient")),
    *(("rubric_batch", prompt) for prompt in ("default", "strict", "ancestor")),
    ("verif", "en"), ("verif", "zh"), ("pairwise", "default"), ("listwise", "default"),
    *(("binary", name) for name in ("default", "unaided", "math", "qa", "code", "equivalence")),
]  # fmt: skip


def token(text, logprob, **others):
    top = [{"token": key, "logprob": value} for key, value in others.items()]
    return {"token": text, "logprob": logprob, "top_logprobs": top}


def twice(word, chances, **others):
    """An entry whose alternatives hold ``word`` once for each of its probabilities."""
    listed = [(word, chance) for chance in chances] + list(others.items())
    top = [{"token": text, "logprob": math.log(chance)} for text, chance in listed]
    return {**top[0], "top_logprobs": top}


@pytest.mark.parametrize("name", ["likert", "soft_choice"])
def test_a_rubric_can_be_hidden(name):
    hidden, shown = GRADINGS[name]({"rubric": "hidden"}), GRADINGS[name]({})
    assert hidden.messages(ROW, "Red") == shown.messages(ROW, "Red")
    (turn,) = hidden.messages(RUBRIC, "Hello")
    assert "Is polite." not in turn["content"] and "<<<rubric" not in turn["content"]
    assert "Is polite." in shown.messages(RUBRIC, "Hello")[0]["content"]
    assert hidden.prompt_sha != shown.prompt_sha == GRADINGS[name]({"rubric": "shown"}).prompt_sha


@pytest.mark.parametrize(("name", "prompt"), EVERY)
@given(answer=st.text(max_size=60))
def test_what_is_asked(name, prompt, answer):
    grading = GRADINGS[name]({"prompt": prompt})
    for row in (ROW, RUBRIC):
        (turn,) = grading.messages(row, answer)
        assert turn["role"] == "user"
        content = turn["content"]
        assert undelimit("prompt", content) == row.prompt_text()
        assert undelimit("answer", content) == answer
        rubric = undelimit("rubric", content)
        shown = "- (2 points) Is polite.\n- (-1.5 points) Is rude."
        assert rubric == (shown if row.criteria else None)
        assert "the-truth-is-42" not in content
        before, after = content.split("<<<prompt", 1)
        assert "{" not in before and content.index("<<</prompt") < content.rindex("<<<answer")
        assert content.endswith(">>>") and "\n\n\n" not in before + after.replace(answer, "")


@pytest.mark.parametrize(("name", "prompt"), [*EVERY, ("rubric_batch", "default")])
def test_two_answers_share_everything_up_to_the_answer(name, prompt):
    """Prefix caches of judge servers work on this."""
    requests_by_answer = (
        GRADINGS[name]({"prompt": prompt}).requests(RUBRIC, text) for text in ("red", "blue")
    )
    one, two = (request.messages[0]["content"] for (request,) in requests_by_answer)
    shared = one[: one.index("<<<answer")]
    assert two.startswith(shared) and len(shared) > 200 and "<<<rubric" in shared


def test_a_prompt_that_asks_for_an_analysis_leaves_room_for_it():
    rooms = {
        prompt: GRADINGS["binary"]({"prompt": prompt}).body()["max_tokens_at_least"]
        for prompt in ("default", "qa", "equivalence")
    }
    assert rooms["default"] == rooms["qa"] < rooms["equivalence"]
    by_domain = GRADINGS["binary"]({"prompts": {"code": "equivalence"}})
    assert by_domain.body()["max_tokens_at_least"] == rooms["equivalence"]
    forced = GRADINGS["binary"]({"prompt": "equivalence", "structured": True})
    assert forced.body() == {"structured_outputs": {"choice": ["[[1]]", "[[0]]"]}}


def test_shipped_prompts_have_their_own_identity():
    shas = {GRADINGS[name]({"prompt": prompt}).prompt_sha for name, prompt in SHIPPED}
    assert len(shas) == len(SHIPPED) == len(list(PROMPTS.glob("*.txt")))
    assert all(len(sha) == 16 and int(sha, 16) for sha in shas)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("[[73]]", 0.73), ("[[0]]", 0.0), ("[[100]]", 1.0), ("[[ 62.5 ]]", 0.625),
        ("First [[90]], again: [[90.0]].", 0.9), ("Of [[200]] points: [[90]].", 0.9),
        ("<think>[[10]]</think>[[20]]", 0.2), ("[[20]] <think>[[90]]", 0.2),
        ("The form is [[score]]. So: [[55]]", 0.55),
    ],
)  # fmt: skip
def test_likert_reads(text, score):
    parsed = Likert({}).parse(Reply(text))
    assert (parsed.outcome, parsed.score, parsed.reason) == (Outcome.scored, score, "")


@pytest.mark.parametrize(
    "text",
    ["good", "73", "[73]", "[[score]]", "[[101]]", "[[-5]]", "[[1e1]]", "[[70/100]]", "[[\u0667]]",
     "[[nan]]", "[[]]", "[[90]] or rather [[n/a]]", "[[85,5]]", "[[100.01]]"],
)  # fmt: skip
def test_likert_never_guesses(text):
    parsed = Likert({}).parse(Reply(text))
    assert (parsed.outcome, parsed.score) == (Outcome.unparsed, None)
    assert parsed.reason and "\n" not in parsed.reason


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("likert", "First [[10]], no: [[90]]."),
        ("likert", "[[70]] because it repeats [[100]]"),
        ("likert", "It wants [[100]]. [[70]]. Not [[100]]."),
        ("verif", "[[1]]? No: [[0]]"),
        ("binary", "[[1]]? No: [[0]]"),
        ("pairwise", "[[A]] or [[tie]]"),
        ("listwise", "[[A > B]] or [[b>a]]"),
    ],
)
def test_two_different_verdicts_are_none(name, text):
    parsed = GRADINGS[name]({}).parse(Reply(text), Request(members=(0, 1)))
    assert (parsed.outcome, parsed.score) == (Outcome.unparsed, None)
    assert parsed.reason.startswith("different verdicts in one reply: [[")


@pytest.mark.parametrize("grading", [Likert({}), SoftChoice({}), SoftChoice({"soft": False})])
@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply("[[73]]", finish_reason="length"), Outcome.truncated),
        (Reply("Yes", finish_reason="length"), Outcome.truncated),
        (Reply("[[73]]", finish_reason="content_filter"), Outcome.refused),
        (Reply(""), Outcome.empty),
        (Reply(" \n"), Outcome.empty),
        (Reply("", reasoning="[[73]] Yes"), Outcome.empty),
        (Reply("<think>[[73]] Yes"), Outcome.empty),
        (Reply("<think>Yes [[73]]</think>"), Outcome.empty),
        (Reply("Hm.", reasoning="[[73]]", logprobs=[token("Yes", -0.1)]), Outcome.unparsed),
    ],
)
def test_a_reply_without_a_grade_has_a_reason_and_no_score(grading, reply, outcome):
    parsed = grading.parse(reply)
    assert (parsed.outcome, parsed.score) == (outcome, None)
    assert parsed.reason


@given(st.text(), st.text(), st.sampled_from(["stop", "length", "tool_calls", ""]))
def test_no_reply_breaks_a_grading(text, reasoning, finish):
    for grading in (Likert({}), SoftChoice({}), SoftChoice({"soft": False})):
        for shown in (text, f"[[{text}]]", f"Yes{text}"):
            reply = Reply(shown, reasoning, finish)
            parsed = grading.parse(reply)
            assert parsed == grading.parse(reply)
            assert parsed.score is None or 0 <= parsed.score <= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.sampled_from(["Yes", "No", "token", "logprob"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["token", "logprob", "top_logprobs"]), inner, max_size=3)
    ),
)


@given(st.lists(JSON, min_size=1, max_size=3))
def test_no_log_probs_break_a_grading(logprobs):
    parsed = SoftChoice({}).parse(Reply("Yes", logprobs=logprobs))
    assert parsed.score is None or 0 <= parsed.score <= 1


def test_soft_choice_asks_for_the_words_and_their_log_probs():
    grading = SoftChoice({"positive": "Good", "negative": "Bad"})
    body = grading.body()
    assert body.pop("max_tokens") <= 16
    assert body == {
        "logprobs": True, "top_logprobs": 20, "structured_outputs": {"choice": ["Good", "Bad"]}
    }  # fmt: skip
    assert "one word: Good or Bad." in grading.messages(ROW, "x")[0]["content"]
    assert "logprobs" not in SoftChoice({"soft": False}).body()
    assert Likert({}).body() == {} and json.dumps(body)


@pytest.mark.parametrize(
    ("text", "logprobs", "score"),
    [
        # 0.6 against 0.2, whatever else there is
        ("Yes", [token("Yes", math.log(0.6), Yes=math.log(0.6), No=math.log(0.2))], 0.75),
        # spellings add up: 0.3 + 0.3 against 0.2
        ("Yes", [{"token": "Yes", "logprob": math.log(0.3), "top_logprobs": [
            {"token": "Yes", "logprob": math.log(0.3)}, {"token": " yes", "logprob": math.log(0.3)},
            {"token": "NO", "logprob": math.log(0.2)}, {"token": "Not", "logprob": -1.7}]}], 0.75),
        # the sampled word counts even if it is not among the best
        ("No", [token("No", math.log(0.1), Yes=math.log(0.3))], 0.75),
        ("No.", [token("\n", -0.1, Yes=-0.1), token("No", -9.0, No=-9.0, Yes=-9.0)], 0.5),
        ("Yes", [token("Yes", -0.5, Yes=-0.5)], 1.0),
        ("Yes", [token("Yes", 0.0, Yes=0.0, No=-9999.0)], 1.0),
        # a token that stands there more than once counts once: 0.3 against 0.3, not 0.6
        ("Yes", [twice("Yes", (0.3, 0.3), No=0.3)], 0.5),
        ("Yes", [twice("Yes", (0.6, 0.6, 0.6), No=0.2)], 0.75),
        # ... as the likeliest of them, wherever it stands
        ("Yes", [twice("Yes", (0.1, 0.6, 0.3), No=0.2)], 0.75),
        # mass of 1, up to what 16 bits round
        ("Yes", [twice("Yes", (0.75,), No=0.25)], 0.75),
        ("Yes", [twice("Yes", (0.7525,), No=0.2525)], 0.7525 / 1.005),
        # the Yes in the thinking is passed over
        ("<think>Yes</think>Yes", [token("<think>", 0), token("Yes", 0, Yes=0),
         token("</think>", 0), token("Yes", -1.0, Yes=-1.0, No=-1.0)], 0.5),
        ("Yes", [token("Yes", 0, Yes=0), token("</think>", 0),
         token("Yes", -1.0, Yes=-1.0, No=-1.0)], 0.5),
    ],
)  # fmt: skip
def test_soft_score_computed_by_hand(text, logprobs, score):
    parsed = SoftChoice({}).parse(Reply(text, logprobs=logprobs))
    assert parsed.outcome is Outcome.scored and parsed.score == pytest.approx(score, abs=1e-12)


def test_soft_choice_counts_pieces_of_a_word_and_the_hard_option_the_word():
    """A real reply of vLLM under a forced choice: the word came in pieces, most mass in them."""
    first = token("Y", -0.86098, No=-0.91850, N=-2.06230, Yes=-3.03321, Ye=-5.87329)
    parsed = SoftChoice({}).parse(Reply("Yes", logprobs=[first, token("es", -0.911)]))
    assert parsed.score == pytest.approx(0.474, abs=5e-4)
    hard = SoftChoice({"soft": False, "positive": "Good", "negative": "Bad"})
    scores = [hard.parse(Reply(text)).score for text in ("Good", " bad.", "**GOOD**", "Yes")]
    assert scores == [1.0, 0.0, 1.0, None]


CHANCES = st.dictionaries(
    st.sampled_from(["Yes", " yes", "No", "N", "Ye", "no!", "Maybe"]),
    st.floats(1e-6, 1.0),
    min_size=1,
)


@given(CHANCES, st.data())
def test_soft_choice_reads_a_distribution_however_often_it_lists_a_token(chances, data):
    listed = [{"token": word, "logprob": math.log(chance)} for word, chance in chances.items()]
    first = {"token": "Yes", "logprob": math.log(chances.setdefault("Yes", 0.1))}

    def read(top):
        reply = Reply("Yes", logprobs=[{**first, "top_logprobs": top}])
        return SoftChoice({}).parse(reply).score

    score = read(listed)
    repeated = data.draw(st.permutations(listed + data.draw(st.lists(st.sampled_from(listed)))))
    assert read(repeated) == score
    if math.fsum(chances.values()) > 1.011:
        assert score is None
    elif math.fsum(chances.values()) < 1.009:
        assert 0 < score <= 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply("Yes"), "no log-probs"),
        (Reply("Yes", logprobs=[]), "no log-probs"),
        (Reply("Yes", logprobs=[token('"', -0.1), token("?", -0.1)]), "no token"),
        (Reply("Yes", logprobs=[token("No", -0.1, Yes=-0.2)]), "no token"),
        (Reply("Yes", logprobs=[token("Yes", -9999.0, Yes=-9999.0)]), "no mass"),
        # without alternatives the choice would have all of the mass, however unlikely it is
        (Reply("Yes", logprobs=[token("Yes", -20.7)]), "no alternatives"),
        (Reply("Yes", logprobs=[{"token": "Yes", "logprob": -0.1}]), "no alternatives"),
        (Reply("Yes", logprobs=[{**token("Yes", 0.0), "top_logprobs": {}}]), "no alternatives"),
        (Reply("Yes", logprobs=[{**token("Yes", 0.0), "top_logprobs": [3]}]), "no alternatives"),
        (Reply("Yes", logprobs=[twice("Yes", (0.9,), No=0.9)]), "add up to 1.80"),
        (Reply("Yes", logprobs=[twice("Yes", (0.5,), No=0.2, The=0.4)]), "add up to 1.10"),
        (Reply("Yes", logprobs=[twice("Yes", (0.5, 0.5), No=0.53)]), "add up to 1.03"),
        (Reply("Yes", logprobs=[token("Yes", -0.1, Yes=-3.0, No=-0.5)]), "add up to 1.51"),
        (Reply("Yes, but No", logprobs=[token("Yes", -0.1, Yes=-0.1)]), "neither"),
        (Reply("Yesterday", logprobs=[token("Yes", -0.1, Yes=-0.1)]), "neither"),
    ],
)
def test_soft_choice_never_guesses(reply, reason):
    parsed = SoftChoice({}).parse(reply)
    assert parsed.outcome is Outcome.unparsed and reason in parsed.reason


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("likert", {"soft": True}, "'soft'"),
        ("likert", {"prompt": "harsh"}, "default, expert, lenient, strict"),
        ("likert", {"prompt": "no/such/file.txt"}, "no/such/file.txt"),
        ("likert", {"prompts": {"qa": "qa"}}, "default, expert, lenient, strict"),
        ("likert", {"reference": "seen"}, "hidden, shown"),
        ("soft_choice", {"prompt": 3}, "'3'"),
        ("soft_choice", {"positive": "yes", "negative": "YES"}, "same word"),
        ("soft_choice", {"positive": True}, "True"),
        ("soft_choice", {"positive": "two words"}, "two words"),
        ("soft_choice", {"soft": "no"}, "soft=no "),
        ("verif", {"language": "de"}, "Legal are en, zh; type"),
        ("verif", {"vocabulary": "met"}, "Legal are bracket; type"),
        ("verif", {"prompt": "fr"}, "en, zh"),
        ("verif", {"reference": "shown"}, "does not have. Legal are"),
        ("verif", {"prompts": {"qa": "en"}}, "does not have. Legal are"),
        ("binary", {"vocabulary": "met"}, "'vocabulary'"),
        ("binary", {"prompts": {"maths": "math"}}, "prompts=maths is not legal: it must be one of"),
        ("binary", {"prompts": {"math": "maths"}}, "options.prompts.math='maths'"),
        ("binary", {"prompts": "math"}, "a table of domains"),
        (
            "binary",
            {"reference": "hidden", "prompt": "default"},
            "type judge.grading.options.reference=shown",
        ),
        ("pairwise", {"against": "some"}, "Legal are all, next; type"),
        ("pairwise", {"structured": "x"}, "Legal are false, true; type"),
        ("listwise", {"structured": True}, "'structured'"),
        ("rubric_batch", {"vocabulary": "bracket"}, "met, present, bool, yes_no"),
        ("rubric_batch", {"points": True}, "hidden, shown"),
        ("rubric_batch", {"clip": "one"}, "zero, none"),
        ("rubric_batch", {"reason": "later"}, "none, before, after"),
        ("rubric_batch", {"layout": "random"}, "cacheable, ancestor"),
        ("rubric_batch", {"partial": "zero"}, "none, renormalise"),
        ("rubric_batch", {"polarity_guidance": "maybe"}, "on, off"),
        ("rubric_batch", {"structured": "yes"}, "false, true"),
        ("rubric_batch", {"structured": 1}, "false, true"),
        ("rubric_batch", {"structured": True, "reason": "before"}, "reason=before"),
        ("rubric_batch", {"k": 3}, "'k'"),
        ("rubric_batch", {"prompt": "harsh"}, "ancestor, default, strict"),
        ("rubric_chunk", {"k": 0}, "k=0"),
        ("rubric_chunk", {"k": True}, "k=True"),
        ("rubric_chunk", {"k": "many"}, "k=many "),
    ],
)
def test_options_that_do_not_fit(name, options, named):
    with pytest.raises(UserError, match=r"[Tt]ype|[Gg]ive|it must be") as problem:
        GRADINGS[name](options)
    message = str(problem.value)
    assert named in message and "judge.grading" in message and "\n" not in message


def test_a_prompt_of_ones_own(tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("Grade as [[score]].\n{prompt}\n{answer}\n")
    grading = Likert({"prompt": str(mine)})
    assert grading.messages(ROW, "red")[0]["content"].startswith("Grade as [[score]].\n<<<prompt")
    assert grading.prompt_sha != Likert({}).prompt_sha
    for text, named in (("{prompt} [[score]]", "{answer}"), ("{prompt}{answer}", "[[score]]"),
                        ("{prompt}{answer}[[score]]{spec}", "{spec}"),
                        ("{prompt}{answer}[[score]]{positive}", "{positive}")):  # fmt: skip
        mine.write_text(text)
        with pytest.raises(UserError) as problem:
            Likert({"prompt": str(mine)})
        assert named in str(problem.value)
