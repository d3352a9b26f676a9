"""The body of a draw and of what is asked again, and which of several replies counts."""

from dataclasses import replace
from typing import Any

from judges.endpoint.dialects import changed_body, judge_body
from judges.reading import settle
from study.schema import Endpoint, Judge, Sampling
from study.verdict import Outcome, Reply

MESSAGES = [{"role": "user", "content": "grade this"}]


def a_judge(**endpoint: Any) -> Judge:
    return Judge(
        endpoint=Endpoint(url="http://x/v1", model="m", **endpoint),
        sampling=Sampling(max_tokens=8, seed=7),
    )


def test_a_grading_may_need_more_tokens(one_word: Any) -> None:
    judge = a_judge()  # 8 tokens
    more, less = one_word({"body": {"max_tokens_at_least": 90}}), one_word({"body": {
        "max_tokens_at_least": 3}})  # fmt: skip
    assert judge_body(judge, more.body(), MESSAGES, 0)["max_tokens"] == 90
    assert judge_body(judge, less.body(), MESSAGES, 0)["max_tokens"] == 8
    assert (
        changed_body(judge, judge_body(judge, more.body(), MESSAGES, 0), budget=2)["max_tokens"]
        == 180
    )


def test_body_of_a_draw(one_word: Any) -> None:
    judge = a_judge(max_tokens_field="max_completion_tokens")
    judge = replace(
        judge, endpoint=replace(judge.endpoint, extra_body={"top_p": 0.5, "think": False})
    )
    grading = one_word({"body": {"max_tokens": 1, "logprobs": True}})
    body = judge_body(judge, grading.body(), MESSAGES, 3)
    assert changed_body(judge, body, budget=2) == {
        "model": "m",
        "messages": MESSAGES,
        "temperature": 0.0,
        "top_p": 0.5,
        "max_completion_tokens": 2,
        "seed": 10,
        "logprobs": True,
        "think": False,
    }
    unseeded = replace(judge, sampling=replace(judge.sampling, seed=None))
    assert "seed" not in judge_body(unseeded, grading.body(), MESSAGES, 3)


def test_the_first_grade_among_replies_counts(one_word: Any) -> None:
    grading = one_word({})
    vague, met, not_met = Reply("hm"), Reply("met"), Reply("not_met")
    assert settle(grading.parse, [vague, met, not_met])[0] is met
    assert settle(grading.parse, [vague, Reply("")])[1].outcome is Outcome.empty
    assert settle(grading.parse, [Reply("met", finish_reason="content_filter"), met])[
        1
    ].outcome is (Outcome.refused)


def test_a_bug_in_a_parser_is_no_grade(one_word: Any) -> None:
    grading = one_word({})
    parsed = settle(grading.parse, [Reply("explode")])[1]
    assert parsed.outcome is Outcome.unparsed
    assert "IndexError" in parsed.reason
