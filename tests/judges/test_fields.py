"""Whatever an endpoint puts into a reply, every table and file can hold what is kept of it."""

import dataclasses
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judges.endpoint.chat_completions import (
    BLOT,
    MOST_TOKENS,
    BadCompletion,
    ErrorBody,
    Stream,
    blot,
    check_value,
    clean,
    logprobs,
    read_plain,
)
from study.cell.records import VERDICT, arrow_type
from study.screen import one_line
from study.system.secrets import MARKS, PATTERNS
from study.verdict import Reply

KEY = "Plain-Looking-Key-77"
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, 2**64, 10**400, -1, 0, 5, MOST_TOKENS, MOST_TOKENS + 1])
    | st.floats()
    | st.text()
    | st.sampled_from(["\ud800", "\0", "m", KEY, "\u202e", "5", "NaN"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
TOKEN = st.fixed_dictionaries({"token": ANY, "logprob": ANY}, optional={"bytes": ANY})


@st.composite
def completions(draw: st.DrawFn) -> dict[str, Any]:
    """A good completion in which any field may be anything."""
    turn: dict[str, Any] = {"role": "assistant", "content": draw(st.text())}
    choice = {"index": 0, "message": turn, "finish_reason": "stop"}
    listed = st.lists(TOKEN | st.just({"token": "a", "logprob": -0.1}), max_size=3)
    fields = {"token": st.text(), "logprob": st.just(-1), "top_logprobs": listed}
    tops = st.fixed_dictionaries(fields)
    choice["logprobs"] = draw(ANY | st.fixed_dictionaries({"content": listed | st.lists(tops)}))
    details = st.fixed_dictionaries({"cached_tokens": ANY})
    usage = st.fixed_dictionaries(
        {"prompt_tokens": ANY, "completion_tokens": ANY, "prompt_tokens_details": ANY | details}
    )
    completion = {"id": draw(ANY), "model": draw(ANY), "usage": draw(ANY | usage)}
    for name in draw(st.sets(st.sampled_from(["reasoning", "refusal", "role", "content"]))):
        turn[name] = draw(ANY)
    if draw(st.booleans()):
        choice["finish_reason"] = draw(ANY)
    return completion | {"choices": [choice]}


def as_stream(completion: dict[str, Any]) -> bytes:
    choice = dict(completion["choices"][0])
    choice["delta"] = choice.pop("message")
    chunk = json.dumps({**completion, "choices": [choice]})
    return f"data: {chunk}\n\ndata: [DONE]\n\n".encode()


def usable(reply: Reply) -> None:
    """What the store, the recorder and the gradings do with a reply."""
    row = dataclasses.asdict(reply)
    value = json.loads(json.dumps({"replies": [row], "attempts": 1, "latency_s": 0.1}))
    check_value(value)
    assert Reply(**value["replies"][0]) == reply
    columns = {"text", "reasoning", "finish_reason", "tokens_in", "tokens_cached", "tokens_out"}
    fields = [(name, arrow_type(kind)) for name, kind in VERDICT.items() if name in columns]
    pa.Table.from_pylist([row], schema=pa.schema([*fields, ("model", pa.string())]))
    for amount in (reply.tokens_in, reply.tokens_cached, reply.tokens_out):
        assert amount is None or (type(amount) is int and 0 <= amount <= MOST_TOKENS)
    assert KEY.lower() not in json.dumps(row).lower()
    assert "\0" not in json.dumps(row, ensure_ascii=False)


@settings(max_examples=120)
@given(completions())
def test_no_field_of_a_reply_breaks_what_comes_after(completion: dict[str, Any]) -> None:
    for stream in (False, True):
        try:
            if stream:
                reader = Stream()
                reader.feed(as_stream(completion))
                reply = reader.end()
            else:
                reply = read_plain(json.dumps(completion).encode())
        except (BadCompletion, ErrorBody) as error:
            assert len(str(error)) < 10_000
            continue
        usable(clean(reply, KEY))


@pytest.mark.parametrize(
    "amount", [2**63, 2**31 * 10, -1, True, 5.0, "5", [5], None, MOST_TOKENS + 1]
)
def test_a_count_out_of_bounds_is_unknown(amount: Any) -> None:
    usage = {"prompt_tokens": amount, "completion_tokens": amount}
    usage["prompt_tokens_details"] = {"cached_tokens": amount}
    choice = {"message": {"content": "met"}, "finish_reason": "stop"}
    reply = read_plain(json.dumps({"choices": [choice], "usage": usage}).encode())
    assert (reply.tokens_in, reply.tokens_out, reply.tokens_cached) == (None, None, None)


def test_log_probs_are_kept_whole_or_not_at_all() -> None:
    good = {"token": "a", "logprob": -0.5}
    assert logprobs([{**good, "bytes": [97], "top_logprobs": [good, good]}]) == [
        {**good, "top_logprobs": [good, good]}
    ]
    least = {"token": "a", "logprob": -9999.0}
    assert logprobs([least | {"logprob": float("-inf")}]) == [least]
    for bad in (float("nan"), float("inf"), 3.0, "0", None, True, 10**400):
        entry = {"token": "a", "logprob": bad}
        assert logprobs([good, entry]) is None
        assert logprobs([{**good, "top_logprobs": [good, entry]}]) is None


@pytest.mark.parametrize(
    "text",
    [
        "the bearer acknowledgements", "sk-learn-compatible-estimators are used",
        "see https://user:name@host.org/x", "-----BEGIN PRIVATE KEY----- is a header",
        "[[70]] EMPTY", "task-based-judgement-of-answers", "risk-adjusted-returns-in-2024-and-2025",
    ],
)  # fmt: skip
def test_ordinary_words_stay(text: str) -> None:
    assert blot(text, "EMPTY") == text
    assert blot(text, "") == text


@pytest.mark.parametrize(
    "text",
    [
        f"you sent {KEY}.", KEY.lower(), f"Bearer {KEY}", "sk-test-canary-0123456789abcdef",
        "Authorization: Bearer 550e8400e29b41d4a716446655440000", "AKIAIOSFODNN7EXAMPLE",
        "hf_abcdefghijklmnopqrst",
    ],
)  # fmt: skip
def test_keys_go(text: str) -> None:
    blotted = blot(f"[[70]] {text} met", KEY)
    assert BLOT in blotted
    assert blotted.startswith("[[70]] ") and blotted.endswith(" met")
    assert text.rpartition(" ")[2].rstrip(".") not in blotted


def test_a_key_spelt_in_tokens_goes_with_the_log_probs() -> None:
    halves = [{"token": half, "logprob": -0.1} for half in (KEY[:5], KEY[5:])]
    assert clean(Reply("met", logprobs=halves), KEY).logprobs is None
    assert clean(Reply("met", logprobs=halves[:1]), KEY).logprobs == halves[:1]
    top = [{"token": "a", "logprob": -0.1, "top_logprobs": [{"token": KEY, "logprob": -1.0}]}]
    assert clean(Reply("met", logprobs=top), KEY).logprobs is None


@given(st.text(), st.integers(4, 50))
def test_a_line_is_short_and_can_be_written(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert "\n" not in line
    line.encode()


def test_every_kind_of_key_is_looked_for_but_those_of_configs() -> None:
    assert PATTERNS.keys() - MARKS.keys() == {
        "a private key", "a URL with a password", "a URL with a token", "an address with a secret",
    }  # fmt: skip
