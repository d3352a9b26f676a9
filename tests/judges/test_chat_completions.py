"""Bytes cut anywhere give the same reply, junk gives none; tables and files can hold what is kept
of a reply; which names of a model are the requested one's."""

import dataclasses
import json
from itertools import pairwise
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
    is_requested_model,
    logprobs,
    read_plain,
)
from study.cell.records import VERDICT, arrow_type
from study.screen import one_line
from study.system.secrets import MARKS, PATTERNS
from study.verdict import Reply


def event(delta: dict[str, Any], finish: str | None = None, **choice: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish, **choice}]
    return b"data: " + json.dumps({"model": "m", "choices": choices}).encode() + b"\n\n"


WORDS = ["[[", "7", "0]", "] é", " 🙂\n", '"\\']
STREAM = (
    b": ping\n\nid: 3\nretry: 10\n"
    + b"".join(event({"content": word}) for word in WORDS)
    + event({"reasoning": "because"})
    + event({}, "stop", logprobs={"content": [{"token": "7", "logprob": -0.5}]})
    + b'data: {"choices": [],\ndata: "usage": {"prompt_tokens": 5, "completion_tokens": 2}}\n\n'
    + b"data: [DONE]\n\n"
)
WHOLE = Reply(
    text="".join(WORDS),
    reasoning="because",
    logprobs=[{"token": "7", "logprob": -0.5}],
    tokens_in=5,
    tokens_out=2,
    model="m",
)


def read(*pieces: bytes) -> Reply:
    stream = Stream()
    for piece in pieces:
        stream.feed(piece)
    return stream.end()


@pytest.mark.parametrize("size", [1, 2, 3, 97, 100_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_a_stream_in_pieces_of_one_size(size: int, newline: bytes) -> None:
    data = STREAM.replace(b"\n", newline)
    assert read(*(data[at : at + size] for at in range(0, len(data), size))) == WHOLE


@given(
    st.lists(st.integers(0, 2 * len(STREAM)), max_size=20),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.booleans(),
)
def test_a_stream_cut_anywhere(cuts: list[int], newline: bytes, marked: bool) -> None:
    data = b"\xef\xbb\xbf" * marked + STREAM.replace(b"\n", newline)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert read(*(data[a:b] for a, b in pairwise(edges))) == WHOLE


def test_a_line_in_many_pieces_is_put_together_once() -> None:
    """Were each piece put to what is there already, the work would grow with the square."""
    stream, copied = Stream(), 0
    for _ in range(2_000):
        stream.feed(b"data: x"[:3] if not stream._tail else b"x" * 100)
        copied = max(copied, max(len(piece) for piece in stream._tail))
    assert copied == 100


@pytest.mark.parametrize(
    "line", [b'dxta: {"choices": []}', b' data: {"choices": []}', b"DATA: {}", b"<html>", b"{}"]
)
def test_a_line_that_is_no_field_may_have_held_words(line: bytes) -> None:
    with pytest.raises(BadCompletion, match="not a field"):
        read(event({"content": "met"}), line + b"\n\n", event({}, "stop"))


def test_an_end_is_one_and_nothing_after_it_is_read() -> None:
    more = event({"content": "not_met"}) + b"junk\n\n" + b"data: {oops\n\n"
    end = event({}, "stop") + b"data: [DONE] \n\n"
    assert read(event({"content": "met"}) + end + more).text == "met"
    with pytest.raises(BadCompletion, match="two finish reasons"):
        read(event({"content": "met"}, "stop"), event({}, "length"))
    assert read(event({"content": "met"}, "stop"), event({}, "stop")).text == "met"


@pytest.mark.parametrize(
    ("ids", "is_mixed"),
    [("aaa", False), ("abc", False), ("  a", False), ("aba", True), ("aab", True)],
)
def test_chunks_of_two_answers_are_none(ids: str, is_mixed: bool) -> None:
    """A server may give each chunk an id of its own, but none twice then."""
    words = [
        event({"content": "x"}).replace(b"{", b'{"id": "%b", ' % name.strip().encode(), 1)
        for name in ids
    ]
    pieces = [event({"role": "assistant"}), *words, event({}, "stop")]
    if is_mixed:
        with pytest.raises(BadCompletion, match="mixes chunks of two answers"):
            read(*pieces)
    else:
        assert read(*pieces).text == "xxx"


def test_a_name_with_two_values_or_two_models_is_told() -> None:
    other = event({"content": "a"}).replace(b'"m"', b'"n"')
    assert read(event({"content": "m"}), other, event({}, "stop")).model == "m and n"
    none = event({"content": "a"}).replace(b'"m"', b'""')
    assert read(none, event({}, "stop")).model == "m"
    twice = plain().replace(b'"content": "met"', b'"content": "not_met", "content": "met"')
    with pytest.raises(BadCompletion, match="'content' twice"):
        read_plain(twice)
    same = plain().replace(b'"content": "met"', b'"content": "met", "content": "met"')
    assert read_plain(same).text == "met"


@pytest.mark.parametrize("role", ["user", "system", "tool", 3, ["assistant"], {}])
def test_a_turn_of_another_is_no_answer(role: Any) -> None:
    with pytest.raises(BadCompletion, match="does not answer"):
        read_plain(plain(message={"role": role, "content": "met"}))
    with pytest.raises(BadCompletion, match="does not answer"):
        read(event({"role": role, "content": "met"}, "stop"))


def test_objects_are_counted_before_they_are_made() -> None:
    for many in (b"{}", b"[]"):
        with pytest.raises(BadCompletion, match="more than 20000 objects and lists"):
            read_plain(plain().replace(b"{", b'{"x":[' + (many + b",") * 20_001 + b"0],", 1))
    quoted = '[{"\\' * 20_000
    assert read_plain(plain(message={"content": quoted})).text == quoted


@given(st.integers(0, STREAM.index(b'"stop"')))
def test_a_stream_that_breaks_off_is_no_reply(end: int) -> None:
    with pytest.raises(BadCompletion):
        read(STREAM[:end])


def test_only_content_is_progress() -> None:
    stream = Stream()
    assert not stream.feed(b": keep-alive\n\n")
    assert not stream.feed(event({"role": "assistant", "content": ""}))
    assert not stream.feed(event({"content": "a"})[:20])
    assert stream.feed(event({"content": "a"})[20:])
    assert not stream.finished
    assert stream.feed(event({}, "stop"))
    assert stream.finished
    assert not stream.done
    assert stream.feed(b"data: [DONE]\n\n")
    assert stream.done


def plain(**choice: Any) -> bytes:
    message = {"role": "assistant", "content": "met"}
    full = {"index": 0, "message": message, "finish_reason": "stop", **choice}
    return json.dumps({"choices": [full], "model": "m"}).encode()


def test_what_is_odd_in_a_reply_is_unknown_or_replaced() -> None:
    assert read_plain(plain(message={"content": "a\ud83db"})).text == "a\ufffdb"
    assert read_plain(plain(message={"content": "a\ud83d\ude42b"})).text == "a🙂b"
    body = json.loads(plain())
    for usage in (None, [], {"prompt_tokens": -1}, {"prompt_tokens": True}, {"prompt_tokens": "5"}):
        reply = read_plain(json.dumps({**body, "usage": usage}).encode())
        assert (reply.tokens_in, reply.tokens_out, reply.tokens_cached) == (None, None, None)


@pytest.mark.parametrize("finish", [None, "", "tool_calls", "null", "error", 3, True])
def test_an_unknown_end_is_no_reply(finish: Any) -> None:
    with pytest.raises(BadCompletion, match="finish reason"):
        read_plain(plain(finish_reason=finish))


@given(st.binary(max_size=60))
def test_random_bytes_are_no_reply(data: bytes) -> None:
    with pytest.raises((BadCompletion, ErrorBody)):
        read_plain(data)
    with pytest.raises((BadCompletion, ErrorBody)):
        read(b"data: " + data + b"\n\n")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "finish_reason", "index", "usage"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_random_json_is_a_text_reply_or_none(data: Any) -> None:
    """Whatever has the right words in the wrong places: a reply holds text, or there is none."""
    try:
        reply = read_plain(json.dumps(data).encode())
    except (BadCompletion, ErrorBody):
        return
    assert isinstance(reply.text, str)
    assert reply.finish_reason in ("stop", "length", "content_filter")


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


SAME = [
    ("m", "m"), ("Qwen3-32B", "qwen3-32b"), ("m", ""), ("", "anything"),
    ("gpt-4o", "gpt-4o-2024-08-06"), ("gpt-4", "gpt-4-0613"), ("claude", "claude-20241022"),
    ("mistral-large-latest", "mistral-large-2411"), ("mistral-large-latest", "mistral-large"),
    ("gpt-4o", "openai/gpt-4o"), ("openai/gpt-4o", "gpt-4o"), ("gpt", "openai/gpt-2024-08-06"),
    ("openrouter/openai/gpt-4o", "openai/gpt-4o"), ("qwen3-32b", "/models/qwen3-32b"),
    ("/models/qwen3-32b", "/models/qwen3-32b"), ("qwen3", "qwen3:latest"),
]  # fmt: skip
OTHER = [
    ("gpt-4o", "gpt-4o-mini"), ("gpt-4o-mini", "gpt-4o"), ("gpt-4o", "gpt-4o-mini-2024-07-18"),
    ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06"), ("gpt-4o-2024-08-06", "gpt-4o"),
    ("meta-llama/Llama-3-8B", "someone/Llama-3-8B"), ("qwen3-32b", "3-32b"), ("m", "mm"),
    ("qwen3-32b", "qwen3-32b-awq"), ("llama3-70b", "llama3-70b-8192"), ("m", "m-9999"),
    ("m", "m and n"), ("m", "/"), ("m", " "), ("m", "m-2024-13-01"), ("m", "n-2024-08-06"),
    ("qwen3:8b", "qwen3:4b"), ("m", "m-"), ("m", "-2024-08-06"),
    ("m", "m-\uff12\uff10\uff12\uff14-08-06"),
]  # fmt: skip


@pytest.mark.parametrize(("requested", "served"), SAME)
def test_names_of_the_same_model(requested: str, served: str) -> None:
    assert is_requested_model(requested, served)


@pytest.mark.parametrize(("requested", "served"), OTHER)
def test_names_of_another_model(requested: str, served: str) -> None:
    assert not is_requested_model(requested, served)
    assert is_requested_model(requested, served, [served])
    assert not is_requested_model(requested, served, [served + "x"])


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_name_is_its_own_and_what_stands_behind_it_makes_another(
    requested: str, more: str
) -> None:
    assert is_requested_model(requested, requested)
    assert not is_requested_model("model-" + requested, "model-" + requested + "-x" + more + "x")
