"""What changes a judge's identity and a request's key, and what must not."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from judges.ask.asker import request_keys
from judges.ask.identity import build_grading, check_settings, judge_id
from judges.endpoint.dialects import judge_body
from judges.serving.vllm_command import arguments
from judges.simulated.bias import Bias
from study.config.schema import (
    Endpoint,
    Failure,
    Grading,
    Judge,
    Price,
    Sampling,
    Serve,
    Simulated,
)
from study.errors import UserError

JUDGE = Judge(
    name="j",
    revision="r1",
    endpoint=Endpoint(url="http://127.0.0.1:8000/v1", model="m", extra_body={"top_k": 5}),
    grading=Grading("one-word", {"body": {"logprobs": True}}),
    sampling=Sampling(temperature=0.5, max_tokens=8, seed=1, votes=2, salt="s"),
    simulated=Simulated(doses={"length": 0.5}),
)
MESSAGES = [{"role": "user", "content": "grade"}]


def endpoint(**change: Any) -> Judge:
    return replace(JUDGE, endpoint=replace(JUDGE.endpoint, **change))


def sampling(**change: Any) -> Judge:
    return replace(JUDGE, sampling=replace(JUDGE.sampling, **change))


SAME = {
    "name": replace(JUDGE, name="other"),
    "family": replace(JUDGE, family="f", size="1B"),
    "price": replace(JUDGE, price=Price(input=1.0)),
    "on_failure": replace(JUDGE, on_failure="zero", max_unscored_frac=0.1),
    "url": endpoint(url="http://elsewhere:9/v1"),
    "key": endpoint(api_key_env="SOME_KEY"),
    "times": endpoint(deadline_s=1.0, connect_timeout_s=1.0, idle_timeout_s=1.0, backoff_s=2.0),
    "attempts": endpoint(attempts=9, max_concurrency=3, max_reply_bytes=10),
    "stream": endpoint(stream=True),
    "start": endpoint(start_command="vllm serve m"),
    "limits": endpoint(requests_per_min=9.0, tokens_per_min=9.0, adaptive=False, shared=True),
}
OTHER = {
    "model": endpoint(model="m2"),
    "revision": replace(JUDGE, revision="r2"),
    "extra_body": endpoint(extra_body={"top_k": 6}),
    "max_tokens_field": endpoint(max_tokens_field="max_completion_tokens"),
    "dialect's switch": replace(
        sampling(thinking=True), endpoint=replace(JUDGE.endpoint, dialect="dashscope")
    ),
    "thinking": replace(sampling(thinking=True), endpoint=replace(JUDGE.endpoint, dialect="vllm")),
    "no thinking": replace(
        sampling(thinking=False), endpoint=replace(JUDGE.endpoint, dialect="vllm")
    ),
    "effort": sampling(reasoning_effort="low"),
    "more effort": sampling(reasoning_effort="high"),
    "temperature": sampling(temperature=0.6),
    "top_p": sampling(top_p=0.9),
    "max_tokens": sampling(max_tokens=9),
    "seed": sampling(seed=2),
    "no seed": sampling(seed=None),
    "salt": sampling(salt="t"),
    "grading options": replace(JUDGE, grading=Grading("one-word", {"body": {"logprobs": False}})),
    "doses": replace(JUDGE, simulated=Simulated(doses={"length": 0.6})),
    "not simulated": replace(JUDGE, simulated=None),
}


@pytest.mark.parametrize("judge", SAME.values(), ids=SAME.keys())
@pytest.mark.usefixtures("one_word")
def test_where_and_for_how_much_is_no_part_of_a_judge(judge: Judge) -> None:
    assert judge_id(judge) == judge_id(JUDGE)
    assert key(judge) == key(JUDGE)


@pytest.mark.parametrize("judge", OTHER.values(), ids=OTHER.keys())
@pytest.mark.usefixtures("one_word")
def test_what_can_change_a_verdict_is(judge: Judge) -> None:
    assert judge_id(judge) != judge_id(JUDGE)
    assert key(judge) != key(JUDGE)


def key(judge: Judge, messages: Any = MESSAGES, index: int = 0) -> str:
    body = judge_body(judge, build_grading(judge).body(), messages, index)
    return request_keys(judge)(body, index)


@pytest.mark.usefixtures("one_word")
def test_all_differences_differ() -> None:
    judges = [JUDGE, *OTHER.values()]
    assert len({judge_id(judge) for judge in judges}) == len(judges)
    assert len({key(judge) for judge in judges}) == len(judges)


def test_the_prompt_and_the_version_are_part_of_a_judge(one_word, monkeypatch) -> None:
    before, stored = judge_id(JUDGE), key(JUDGE)
    monkeypatch.setattr(one_word, "version", "2")
    assert judge_id(JUDGE) != before
    assert key(JUDGE) == stored  # a new parser reads what is stored
    monkeypatch.setattr(one_word, "version", "1")
    monkeypatch.setattr(one_word, "prompt_sha", "f" * 16)
    assert judge_id(JUDGE) != before


@pytest.mark.usefixtures("one_word")
def test_more_votes_keep_the_draws_there_are() -> None:
    more = sampling(votes=5)
    assert judge_id(more) != judge_id(JUDGE)
    assert key(more, index=1) == key(JUDGE, index=1)
    assert len({key(JUDGE, index=index) for index in range(5)}) == 5


@pytest.mark.usefixtures("one_word")
def test_draws_differ_without_a_seed_too_and_the_messages_are_the_question() -> None:
    assert key(sampling(seed=None), index=0) != key(sampling(seed=None), index=1)
    assert key(JUDGE, [{"content": "grade", "role": "user"}]) == key(JUDGE)
    assert key(JUDGE, [{"role": "user", "content": "grade "}]) != key(JUDGE)
    assert key(JUDGE, [{"role": "system", "content": "grade"}]) != key(JUDGE)


GOLDEN_KEY = (
    '{"body":{"logprobs":true,"max_tokens":8,"messages":[{"content":"grade","role":"user"}],'
    '"model":"m","seed":3,"temperature":0.5,"top_k":5,"top_p":1.0},"revision":"r1","salt":"s",'
    '"sample_index":2,"schema":1,"simulated":null}'
)
GOLDEN_ID = (
    '{"dialect":"openai","extra_body":{"top_k":5},"grading":{"name":"one-word","options":{"body":{"logprobs":true}},'
    '"prompt_sha":"0000000000000000","version":"1"},"max_tokens_field":"","model":"m",'
    '"revision":"r1","sampling":{"max_tokens":8,"reasoning_effort":null,"salt":"s","seed":1,'
    '"temperature":0.5,"thinking":null,"top_p":1.0,"votes":2},"schema":1,"simulated":null}'
)


@pytest.mark.usefixtures("one_word")
def test_golden_identity_and_key() -> None:
    """Written out: a change orphans every stored reply and breaks every join with older runs."""
    judge = replace(JUDGE, simulated=None)
    assert key(judge, index=2) == hashlib.sha256(GOLDEN_KEY.encode()).hexdigest()
    assert judge_id(judge) == hashlib.sha256(GOLDEN_ID.encode()).hexdigest()[:16]
    assert key(judge, index=2).startswith("bac017572bdf33a0")
    assert judge_id(judge) == "82ba1ae27359e2ff"


def in_code(several: Any) -> Judge:
    """A judge with several of everything, each made by ``several``."""
    return Judge(
        name="j",
        endpoint=Endpoint(
            "http://a/v1", "m", replicas=several(["http://b/v1"]), served_as=several(["n"])
        ),
        simulated=Simulated(
            reference={"length": several([10.0, 5.0])}, failure=Failure(kinds=several(["hang"]))
        ),
        serve=Serve(model="m", extra=several(["--seed", "1"])),
    )


def test_a_judge_may_have_tuples_and_no_unknown_grading() -> None:
    check_settings(in_code(tuple))
    assert judge_id(in_code(tuple)) == judge_id(in_code(list))
    assert Bias(in_code(tuple).simulated).standardised("")["length"] == -2.0
    assert arguments(in_code(tuple), "127.0.0.1", 1)[-2:] == ["--seed", "1"]
    with pytest.raises(UserError, match=r"grading\.name=nope.*likert"):
        judge_id(replace(JUDGE, grading=Grading("nope")))


@pytest.mark.parametrize(
    ("judge", "named"),
    [
        (endpoint(replicas=("http://b/v1", 5)), r"replicas\.1=5 .* a text"),
        (endpoint(replicas="http://b/v1"), "replicas=http://b/v1 .* a list"),
        (endpoint(extra_body={"top_k": (1, float("nan"))}), r"top_k\.1=nan .* finite"),
    ],
)
def test_what_is_in_a_tuple_is_checked(judge: Judge, named: str) -> None:
    with pytest.raises(UserError, match=named):
        check_settings(judge)
