"""What each kind of endpoint is sent, written out, and what is refused before anything is sent."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from judges.ask.session import Session
from judges.endpoint.dialects import DIALECTS, described, dialect_of, judge_body
from study.config.schema import Endpoint, Grading, Judge, Sampling, Simulated
from study.errors import UserError
from tests.judges.asking import MESSAGES
from tests.judges.sessions import ask_once, http

SCHEMA = {"type": "object"}
PLAIN = {
    "model": "m", "messages": MESSAGES, "temperature": 0.0, "top_p": 1.0, "max_tokens": 64,
    "seed": 0,
}  # fmt: skip


def judge(dialect: str, grading: str = "likert", **change: Any) -> Judge:
    sampling = {key: change.pop(key) for key in list(change) if key in Sampling.__match_args__}
    options = change.pop("options", {})
    url = {"url": "http://host/v1", "model": "m"}
    return Judge(
        endpoint=Endpoint(**url, dialect=dialect, **change),
        grading=Grading(grading, options),
        sampling=Sampling(**sampling),
    )


def sent(dialect: str, wants: dict[str, Any] | None = None, **change: Any) -> dict[str, Any]:
    """What a body has beyond the plain one."""
    body = judge_body(judge(dialect, **change), wants or {}, MESSAGES, 0)
    assert body.items() >= {key: PLAIN[key] for key in ("model", "messages")}.items()
    return {key: value for key, value in body.items() if PLAIN.get(key) != value}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_nobody_set_is_not_sent(dialect: str) -> None:
    assert sent(dialect) == {}


def test_the_form_of_an_answer() -> None:
    choice = {"structured_outputs": {"choice": ["Yes", "No"]}}
    form = {"structured_outputs": {"json": SCHEMA}}
    spec = {"name": "verdict", "strict": True, "schema": SCHEMA}
    as_openai = {"response_format": {"type": "json_schema", "json_schema": spec}}
    assert sent("vllm", choice) == sent("simulated", choice) == choice
    assert sent("vllm", form) == form
    assert sent("openai", form) == as_openai
    assert sent("openai", choice) == sent("dashscope", choice) == sent("dashscope", form) == {}
    assert sent("vllm", as_openai) == sent("openai", as_openai) == as_openai
    assert sent("dashscope-qwq", as_openai) == {}


def test_an_empty_name_is_the_obvious_one_and_what_is_sent_fits_the_endpoint() -> None:
    assert dialect_of(judge("")) is DIALECTS["openai"]
    assert dialect_of(replace(judge(""), simulated=Simulated())) is DIALECTS["simulated"]
    assert described(judge("dashscope-qwq", stream=True)) == (
        "dashscope-qwq: thinking always, stream on, structured none, log-probs none"
    )
    wants = {"logprobs": True, "top_logprobs": 20}
    assert sent("vllm", wants) == wants
    assert sent("dashscope", wants) == {"logprobs": True, "top_logprobs": 5}
    body = sent("openai", {"max_tokens": 7}, max_tokens_field="max_completion_tokens")
    assert body == {"max_completion_tokens": 7}
    assert sent("vllm", thinking=True) == {"chat_template_kwargs": {"enable_thinking": True}}
    assert sent("vllm", thinking=False) == {"chat_template_kwargs": {"enable_thinking": False}}
    assert sent("dashscope", thinking=False) == {"enable_thinking": False}
    assert sent("vllm-harmony", reasoning_effort="low") == {"reasoning_effort": "low"}
    assert sent("vllm-harmony", thinking=True) == {}  # it does anyway
    assert sent("openai", reasoning_effort="minimal") == {"reasoning_effort": "minimal"}


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (judge("vllm2"), r"dialect=vllm2.*openai, vllm, vllm-harmony"),
        (judge("openai", thinking=True), r"thinking=true is not possible.*no switch"),
        (judge("openai", thinking=False), r"thinking=false is not possible.*no switch"),
        (judge("vllm-harmony", thinking=False), r"thinking=false is not possible.*always thinks"),
        (judge("simulated", thinking=True), r"thinking=true is not possible.*never thinks"),
        (judge("dashscope", thinking=True), r"judge\.endpoint\.stream=true"),
        (judge("vllm", reasoning_effort="low"), r"knows no such setting.*reasoning_effort=null"),
        (judge("vllm-harmony", reasoning_effort="max"), r"knows low, medium, high"),
        (judge("dashscope-qwq"), r"stream=false is not possible.*only as a stream"),
        (judge("vllm-harmony", "soft_choice"), r"reads log-probs.*gives none"),
        (judge("dashscope-qwq", "soft_choice", stream=True), r"reads log-probs.*gives none"),
        (
            judge("openai", "binary", options={"structured": True}),
            r"structured=true is not possible",
        ),
        (
            judge("dashscope", "rubric_batch", options={"structured": True}),
            r"structured=true is not possible",
        ),
    ],
)
def test_what_an_endpoint_cannot_do_is_refused_at_once(refused: Judge, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Session(refused, None)


@pytest.mark.parametrize(
    "possible",
    [
        judge("dashscope", thinking=True, stream=True),
        judge("dashscope-qwq", thinking=True, stream=True),
        judge("simulated", thinking=False),
        judge("vllm-harmony", "soft_choice", options={"soft": False}),
        judge("openai", "soft_choice"),
        judge("openai", "rubric_batch", options={"structured": True}),
        judge("vllm", "pairwise", options={"structured": True}),
    ],
)
def test_what_it_can_do_is_not(possible: Judge) -> None:
    Session(possible, None).close()


def test_a_stream_is_asked_for_its_usage(faults: Any, one_word: Any) -> None:
    ask_once(http(faults.url("s_good"), stream=True))
    body = faults.bodies["s_good"][-1]
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize(("dialect", "refused"), [("openai", True), ("dashscope", False)])
def test_only_a_whole_list_of_models_refuses_one(dialect, refused, faults, one_word) -> None:
    unlisted = http(faults.url("good"), model="unlisted", dialect=dialect)
    expectation = pytest.raises(UserError, match="does not serve") if refused else nullcontext()
    with Session(unlisted, None) as session, expectation:
        session.check()
