"""Bytes cut anywhere give the same reply, and junk gives no reply at all."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.endpoint.chat_completions import BadCompletion, ErrorBody, Stream, read_plain
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


def test_what_comes_after_done_is_not_read() -> None:
    more = event({"content": "not_met"}) + b"junk\n\n" + b"data: {oops\n\n"
    end = event({}, "stop") + b"data: [DONE] \n\n"
    assert read(event({"content": "met"}) + end + more).text == "met"


def test_two_ends_that_differ_are_none() -> None:
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


def test_names_of_models_in_one_stream_are_all_kept() -> None:
    other = event({"content": "a"}).replace(b'"m"', b'"n"')
    assert read(event({"content": "m"}), other, event({}, "stop")).model == "m and n"
    none = event({"content": "a"}).replace(b'"m"', b'""')
    assert read(none, event({}, "stop")).model == "m"


@pytest.mark.parametrize("role", ["user", "system", "tool", 3, ["assistant"], {}])
def test_a_turn_of_another_is_no_answer(role: Any) -> None:
    with pytest.raises(BadCompletion, match="does not answer"):
        read_plain(plain(message={"role": role, "content": "met"}))
    with pytest.raises(BadCompletion, match="does not answer"):
        read(event({"role": role, "content": "met"}, "stop"))


def test_a_name_with_two_values_has_none() -> None:
    twice = plain().replace(b'"content": "met"', b'"content": "not_met", "content": "met"')
    with pytest.raises(BadCompletion, match="'content' twice"):
        read_plain(twice)
    same = plain().replace(b'"content": "met"', b'"content": "met", "content": "met"')
    assert read_plain(same).text == "met"


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


def test_half_a_surrogate_pair_can_be_written() -> None:
    assert read_plain(plain(message={"content": "a\ud83db"})).text == "a\ufffdb"
    assert read_plain(plain(message={"content": "a\ud83d\ude42b"})).text == "a🙂b"


@pytest.mark.parametrize("finish", [None, "", "tool_calls", "null", "error", 3, True])
def test_an_unknown_end_is_no_reply(finish: Any) -> None:
    with pytest.raises(BadCompletion, match="finish reason"):
        read_plain(plain(finish_reason=finish))


def test_usage_that_makes_no_sense_is_unknown() -> None:
    body = json.loads(plain())
    for usage in (None, [], {"prompt_tokens": -1}, {"prompt_tokens": True}, {"prompt_tokens": "5"}):
        reply = read_plain(json.dumps({**body, "usage": usage}).encode())
        assert (reply.tokens_in, reply.tokens_out, reply.tokens_cached) == (None, None, None)


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
