"""The body of a draw and of what is asked again, and which of several replies counts."""

from dataclasses import replace
from typing import Any

from judges.ask.reading import settle
from judges.endpoint.dialects import changed_body, judge_body
from study.verdict import Outcome, Reply
from tests.judges.asking import APPLICATION, MESSAGES, a_judge


def test_a_grading_may_need_more_tokens(one_word: Any) -> None:
    judge = a_judge(APPLICATION)  # 8 tokens
    more, less = (one_word({"body": {"max_tokens_at_least": least}}) for least in (90, 3))
    body = judge_body(judge, more.body(), MESSAGES, 0)
    assert body["max_tokens"] == 90
    assert judge_body(judge, less.body(), MESSAGES, 0)["max_tokens"] == 8
    assert changed_body(judge, body, budget=2)["max_tokens"] == 180


def test_body_of_a_draw(one_word: Any) -> None:
    more = {"max_tokens_field": "max_completion_tokens"}
    judge = a_judge(APPLICATION, extra_body={"top_p": 0.5, "think": False}, **more)
    grading = one_word({"body": {"max_tokens": 1, "logprobs": True}})
    body = judge_body(judge, grading.body(), MESSAGES, 3)
    assert changed_body(judge, body, budget=2) == {
        "model": "m", "messages": MESSAGES, "temperature": 0.0, "top_p": 0.5,
        "max_completion_tokens": 2, "seed": 10, "logprobs": True, "think": False,
    }  # fmt: skip
    unseeded = replace(judge, sampling=replace(judge.sampling, seed=None))
    assert "seed" not in judge_body(unseeded, grading.body(), MESSAGES, 3)


def test_the_first_grade_among_replies_counts(one_word: Any) -> None:
    grading = one_word({})
    vague, met, not_met = Reply("hm"), Reply("met"), Reply("not_met")
    assert settle(grading.parse, [vague, met, not_met])[0] is met
    assert settle(grading.parse, [vague, Reply("")])[1].outcome is Outcome.empty
    refused = Reply("met", finish_reason="content_filter")
    assert settle(grading.parse, [refused, met])[1].outcome is Outcome.refused


def test_a_bug_in_a_parser_is_no_grade(one_word: Any) -> None:
    parsed = settle(one_word({}).parse, [Reply("explode")])[1]
    assert parsed.outcome is Outcome.unparsed
    assert "IndexError" in parsed.reason
