"""More than two hundred ways to break an answer of a judge's endpoint, plain or as a stream.

``PLAIN`` and ``STREAM`` say of each fault what may become of a verdict that meets it and nothing
else. `soak_server` serves them.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

MODEL = "judge-m"
OTHER = "424242424242"
"""A number that nobody asked about: a verdict of it was read where no verdict was."""
TAKEN, WIRE = frozenset({"scored"}), frozenset({"transport"})
EITHER = TAKEN | WIRE
LATE = frozenset({"timeout"})


def ends(*outcomes: str) -> frozenset[str]:
    return frozenset(outcomes)


@dataclass
class Call:
    number: str
    stream: bool
    authorization: str
    elsewhere: int
    """A port that nothing must ever come to."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: dict[str, Any] = field(default_factory=dict)
    turn: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.head = {"id": "x", "object": "chat.completion", "model": MODEL}
        self.head["usage"] = {"prompt_tokens": 5, "completion_tokens": 2}
        self.turn = {"role": "assistant", "content": self.number}
        self.choice = {"index": 0, "finish_reason": "stop"}

    def json(self) -> bytes:
        choices = [{**self.choice, "message": self.turn}]
        return json.dumps({**self.head, "choices": choices}).encode()

    def events(self, end: bytes = b"data: [DONE]\n\n") -> bytes:
        return b"".join(event(chunk) for chunk in self.chunks()) + end

    def chunks(self) -> list[dict[str, Any]]:
        """The same as chunks, with its text in two of them."""
        head = {**self.head}
        usage = head.pop("usage", None)
        parts = [dict(self.turn)]
        said = self.turn.get("content")
        if isinstance(said, str) and len(said) > 1:
            parts = [{**self.turn, "content": said[:1]}, {"content": said[1:]}]
        going = {**self.choice, "finish_reason": None}
        found = [{**head, "choices": [{**going, "delta": part}]} for part in parts]
        found.append({**head, "choices": [{**self.choice, "delta": {}}]})
        return [*found, {**head, "choices": [], "usage": usage}]

    def good(self) -> bytes:
        return sse(self.events()) if self.stream else whole(self.json())


Make = Callable[[Call], Any]
"""Gives the bytes of an answer; or does it all itself and gives whether the connection lives on."""
PLAIN: dict[str, tuple[Make, frozenset[str]]] = {}
STREAM: dict[str, tuple[Make, frozenset[str]]] = {}


def event(data: Any, newline: bytes = b"\n") -> bytes:
    return b"data: " + json.dumps(data).encode() + newline * 2


def whole(
    body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = ""
) -> bytes:
    lines = (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    )
    return lines.encode() + body


def sse(body: bytes, kind: str = "text/event-stream", more: str = "") -> bytes:
    """As chunks of a length that falls into the middle of words."""
    data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in pieces(body, 1_000))
    lines = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n{more}\r\n"
    return lines.encode() + data + b"0\r\n\r\n"


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def plain(name: str, legal: frozenset[str], make: Make) -> None:
    PLAIN[name] = make, legal


def stream(name: str, legal: frozenset[str], make: Make) -> None:
    STREAM[name] = make, legal


def both(name: str, legal: frozenset[str], make: Make) -> None:
    plain(name, legal, make)
    stream(name, legal, make)


def shaped(name: str, legal: frozenset[str], change: Callable[[Call], Any]) -> None:
    """A fault of the completion, plain and in chunks."""

    def make(call: Call) -> bytes:
        change(call)
        return call.good()

    both(name, legal, make)


# What fields hold.
NESTED: Any = []
for _ in range(400):
    NESTED = [NESTED]
USAGES: dict[str, Any] = {
    "usage_2_63": {"prompt_tokens": 2**63, "completion_tokens": 2**63},
    "usage_4000_digits": {"prompt_tokens": int("9" * 4_000)},
    "usage_negative": {"prompt_tokens": -5, "completion_tokens": -(2**63)},
    "usage_floats": {"prompt_tokens": 1e308, "completion_tokens": float("nan")},
    "usage_infinite": {"prompt_tokens": float("inf")},
    "usage_texts": {"prompt_tokens": "5", "completion_tokens": "many"},
    "usage_flags": {"prompt_tokens": True, "completion_tokens": False},
    "usage_list": [5, 2],
    "usage_cached": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2**64}},
    "usage_nested": {"prompt_tokens": NESTED, "prompt_tokens_details": NESTED},
    "usage_null": None,
}
for name, usage in USAGES.items():
    shaped(name, TAKEN, lambda call, usage=usage: call.head.update(usage=usage))
MODELS = {
    "model_smaller": ("judge-m-mini", "wrong_model"), "model_number": (7, "wrong_model"),
    "model_list": ([MODEL], "wrong_model"), "model_long": ("m" * 90_000, "wrong_model"),
    "model_surrogate": ("judge-m\ud800", "wrong_model"), "model_absent": (None, "scored"),
    "model_empty": ("", "scored"), "model_dated": (f"{MODEL}-2026-02-03", "scored"),
    "model_owned": (f"owner/{MODEL}", "scored"), "model_false": (False, "wrong_model"),
}  # fmt: skip
for name, (model, outcome) in MODELS.items():
    shaped(name, ends(outcome), lambda call, model=model: call.head.update(model=model))
TURNS: dict[str, tuple[dict[str, Any], str]] = {
    "text_surrogate": ({"content": "12\ud800"}, "unparsed"),
    "text_nul": ({"content": "12\0"}, "unparsed"),
    "text_number": ({"content": 12}, "transport"),
    "text_true": ({"content": True}, "transport"),
    "text_parts": ({"content": [{"type": "text", "text": OTHER}]}, "transport"),
    "text_object": ({"content": {"text": OTHER}}, "transport"),
    "text_blank": ({"content": ""}, "empty"),
    "text_null": ({"content": None}, "empty"),
    "text_long": ({"content": "x" * 1_500_000}, "unparsed"),
    "text_open_thinking": ({"content": f"<think>{OTHER}"}, "unparsed"),
    "reasoning_other": ({"reasoning": OTHER}, "scored"),
    "reasoning_odd_fields": ({"thinking": OTHER, "thoughts": [OTHER], "text": OTHER}, "scored"),
    "reasoning_object": ({"reasoning": {"text": OTHER}}, "transport"),
    "reasoning_list": ({"reasoning_content": [OTHER]}, "transport"),
    "reasoning_surrogates": ({"reasoning": "\ud83d\0\udfff" * 99}, "scored"),
    "reasoning_long": ({"reasoning": "[[1]] {<think>" * 60_000}, "scored"),
    "role_user": ({"role": "user", "content": OTHER}, "transport"),
    "role_tool": ({"role": "tool", "content": OTHER}, "transport"),
    "role_object": ({"role": {"x": 1}, "content": OTHER}, "transport"),
    "refusal": ({"refusal": "I will not", "content": None}, "refused"),
    "refusal_number": ({"refusal": 5}, "transport"),
    "tool_calls_only": ({"content": None, "tool_calls": [{"function": {"name": OTHER}}]}, "empty"),
    "function_call": ({"function_call": {"arguments": OTHER}}, "scored"),
}
for name, (turn, outcome) in TURNS.items():
    shaped(name, ends(outcome), lambda call, turn=turn: call.turn.update(turn))
CHOICES: dict[str, tuple[dict[str, Any], str]] = {
    "finish_null": ({"finish_reason": None}, "transport"),
    "finish_list": ({"finish_reason": ["stop"]}, "transport"),
    "finish_long": ({"finish_reason": "stop" * 30_000}, "transport"),
    "finish_tool_calls": ({"finish_reason": "tool_calls"}, "transport"),
    "finish_one": ({"finish_reason": 1}, "transport"),
    "finish_filter": ({"finish_reason": "content_filter"}, "refused"),
    "finish_length": ({"finish_reason": "length"}, "truncated"),
    "index_text": ({"index": "0"}, "transport"),
    "index_one": ({"index": 1}, "transport"),
    "index_nan": ({"index": float("nan")}, "transport"),
    "logprobs_nan": (
        {"logprobs": {"content": [{"token": "1", "logprob": float("nan"), "bytes": [2**70]}]}},
        "scored",
    ),
    "logprobs_text": ({"logprobs": "none"}, "scored"),
    "logprobs_nested": ({"logprobs": {"content": NESTED}}, "scored"),
}
for name, (choice, outcome) in CHOICES.items():
    shaped(name, ends(outcome), lambda call, choice=choice: call.choice.update(choice))
HEADS: dict[str, tuple[dict[str, Any], frozenset[str]]] = {
    "extra_nested": ({"extra": NESTED}, TAKEN),
    "error_null": ({"error": None}, TAKEN),
    "error_beside_choices": ({"error": {"code": 429, "message": "slow down"}}, WIRE),
    "error_text": ({"error": OTHER}, WIRE),
    "error_nested": ({"error": {"code": NESTED, "message": NESTED}}, WIRE),
    "id_list": ({"id": [OTHER], "created": 10**300}, TAKEN),
    "many_lists": ({"extra": [[]] * 100_000}, WIRE),
    "some_lists": ({"extra": [[]] * 4_000}, TAKEN),
    "many_numbers": ({"extra": [1] * 120_000}, TAKEN),
    "many_objects": ({"extra": [{}] * 120_000}, WIRE),
}
for name, (more, legal) in HEADS.items():
    shaped(name, legal, lambda call, more=more: call.head.update(more))
shaped("echo_in_text", ends("unparsed"), lambda c: c.turn.update(content=c.authorization))
shaped("echo_in_reasoning", TAKEN, lambda c: c.turn.update(reasoning=f"sent: {c.authorization}"))
shaped("echo_in_model", ends("wrong_model"), lambda c: c.head.update(model=c.authorization))
shaped("echo_in_id", TAKEN, lambda c: c.head.update(id=c.authorization, usage=[c.authorization]))
shaped("echo_in_finish", WIRE, lambda c: c.choice.update(finish_reason=c.authorization))


# Bodies that are no completion, or another's.
def bodied(name: str, legal: frozenset[str], body: Callable[[Call], bytes]) -> None:
    plain(name, legal, lambda call: whole(body(call)))


bodied("body_bom", TAKEN, lambda c: b"\xef\xbb\xbf" + c.json())
bodied("body_utf16", WIRE, lambda c: c.json().decode().encode("utf-16"))
bodied("body_latin", WIRE, lambda c: c.json().replace(b'"x"', b'"\xe9"'))
bodied("body_empty", WIRE, lambda c: b"")
bodied("body_null", WIRE, lambda c: b"null")
bodied("body_list", WIRE, lambda c: b"[" + c.json() + b"]")
bodied("body_twice", WIRE, lambda c: c.json() + c.json())
bodied("body_lines", WIRE, lambda c: c.json() + b"\n" + c.json())
bodied("body_cut", WIRE, lambda c: c.json()[:-1])
bodied("body_deep", WIRE, lambda c: b'{"a":' * 200_000)
bodied("body_digits", WIRE, lambda c: b'{"x":' + b"9" * 5_000 + b"," + c.json()[1:])
bodied("body_html", WIRE, lambda c: b"<html><body>" + OTHER.encode() + b"</body></html>")
bodied("body_xml", WIRE, lambda c: b"<?xml version='1.0'?><choices>1</choices>")
bodied("body_yaml", WIRE, lambda c: b"choices:\n- message: {content: 1}\n")
bodied("body_single_quotes", WIRE, lambda c: c.json().replace(b'"', b"'"))
bodied("body_events", WIRE, lambda c: c.events())
bodied("body_blanks", TAKEN, lambda c: b" \r\n\t" * 200_000 + c.json())
bodied("two_texts", WIRE, lambda c: c.json().replace(
    b'"content"', b'"content": "' + OTHER.encode() + b'", "content"'))  # fmt: skip
bodied("two_choice_lists", WIRE, lambda c: c.json().replace(
    b'"choices"', b'"choices": [], "choices"'))  # fmt: skip
bodied("choices_null", WIRE, lambda c: json.dumps({**c.head, "choices": None}).encode())
bodied("choices_object", WIRE, lambda c: json.dumps({**c.head, "choices": c.choice}).encode())
bodied("choices_numbers", WIRE, lambda c: json.dumps({**c.head, "choices": [1]}).encode())
bodied("choices_many", WIRE, lambda c: json.dumps(
    {**c.head, "choices": [{**c.choice, "message": c.turn}] * 2}).encode())  # fmt: skip
bodied("completion_of_old", WIRE, lambda c: json.dumps(
    {**c.head, "choices": [{**c.choice, "text": OTHER}]}).encode())  # fmt: skip
bodied("other_protocol", WIRE, lambda c: json.dumps(
    {"type": "message", "content": [{"type": "text", "text": OTHER}]}).encode())  # fmt: skip


# Streams that bend the rules.
def lined(name: str, legal: frozenset[str], body: Callable[[Call], bytes]) -> None:
    stream(name, legal, lambda call: sse(body(call)))


def between(call: Call, line: bytes) -> bytes:
    return line.join(event(chunk) for chunk in call.chunks()) + b"data: [DONE]\n\n"


lined("s_cr", TAKEN, lambda c: c.events().replace(b"\n", b"\r"))
lined("s_crlf", TAKEN, lambda c: c.events().replace(b"\n", b"\r\n"))
lined("s_mixed_ends", TAKEN, lambda c: c.events().replace(b"\n\n", b"\r\r\n"))
lined("s_bom", TAKEN, lambda c: b"\xef\xbb\xbf" + c.events())
lined("s_bom_within", WIRE, lambda c: between(c, b"\xef\xbb\xbf"))
lined("s_no_blank", TAKEN, lambda c: c.events().replace(b"data: ", b"data:"))
lined("s_many_comments", TAKEN, lambda c: between(c, b": x\n\n" * 20_000))
lined("s_blank_lines", TAKEN, lambda c: between(c, b"\n" * 100_000))
lined("s_ids", TAKEN, lambda c: between(c, b"id: 7\nretry: 99999999999999\nevent: message\n"))
lined("s_many_lines", TAKEN, lambda c: between(c, b"data:\ndata:\n"))
lined("s_indented_json", TAKEN, lambda c: b"".join(
    b"data: " + json.dumps(chunk, indent=1).encode().replace(b"\n", b"\ndata: ") + b"\n\n"
    for chunk in c.chunks()))  # fmt: skip
lined("s_no_done", TAKEN, lambda c: c.events(b""))
lined("s_two_dones", TAKEN, lambda c: c.events(b"data: [DONE]\n\ndata: [DONE]\n\n"))
lined("s_after_done", TAKEN, lambda c: c.events(
    b"data: [DONE]\n\n" + event({"choices": [{"delta": {"content": OTHER}}]})))  # fmt: skip
lined("s_done_first", WIRE, lambda c: b"data: [DONE]\n\n" + c.events())
lined("s_finish_twice", TAKEN, lambda c: c.events(event(c.chunks()[-2])))
lined("s_finish_changes", WIRE, lambda c: c.events(
    event({"choices": [{"delta": {}, "finish_reason": "length"}]})))  # fmt: skip
lined("s_after_finish", WIRE, lambda c: c.events(
    event({"choices": [{"delta": {"content": "7"}}]})))  # fmt: skip
lined("s_two_choices", WIRE, lambda c: between(
    c, event({"choices": [{"index": 1, "delta": {"content": "7"}}]})))  # fmt: skip
lined("s_two_models", ends("wrong_model"), lambda c: between(c, event(
    {"model": "judge-n", "choices": []})))  # fmt: skip
lined("s_lost_name", WIRE, lambda c: b"dta: " + c.events().removeprefix(b"data: "))
lined("s_leading_blank", WIRE, lambda c: b" " + c.events())
lined("s_capital_name", WIRE, lambda c: b"DATA" + c.events().removeprefix(b"data"))
lined("s_junk", WIRE, lambda c: between(c, b"Traceback (most recent call last):\n"))
lined("s_html", WIRE, lambda c: b"<html>" + OTHER.encode() + b"</html>")
lined("s_plain", WIRE, lambda c: c.json())
lined("s_plain_as_event", WIRE, lambda c: b"data: " + c.json() + b"\n\ndata: [DONE]\n\n")
lined("s_error_event", WIRE, lambda c: between(c, b'event: error\ndata: {"message": "x"}\n\n'))
lined("s_error_first", WIRE, lambda c: event({"error": {"message": OTHER}}))
lined("s_no_finish", WIRE, lambda c: event(c.chunks()[0]) + b"data: [DONE]\n\n")
lined("s_nothing", WIRE, lambda c: b"")
lined("s_cut", WIRE, lambda c: c.events()[: len(event(c.chunks()[0])) + 20])
lined("s_half_a_letter", WIRE, lambda c: between(c, b'data: {"choices": [], "x": "\xc3"}\n\n'))
lined("s_two_texts", WIRE, lambda c: between(
    c, b'data: {"choices": [{"delta": {"content": "7", "content": "8"}}]}\n\n'))  # fmt: skip
lined("s_delta_null", WIRE, lambda c: between(c, event({"choices": [{"delta": None}]})))
lined("s_choice_list", WIRE, lambda c: between(c, event({"choices": [[]]})))
lined("s_choices_null", WIRE, lambda c: between(c, event({"choices": None})))
lined("s_empty_deltas", TAKEN, lambda c: between(c, event({"choices": [{"delta": {}}]}) * 2_000))
lined("s_one_long_line", ends("scored"), lambda c: between(c, b": " + b"x" * 300_000 + b"\n"))
lined("s_echo_in_halves", TAKEN, lambda c: event(
    {"choices": [{"delta": {"reasoning": c.authorization[:12]}}]}) + event(
    {"choices": [{"delta": {"reasoning": c.authorization[12:]}}]}) + c.events())  # fmt: skip


# HTTP that bends the rules.
def framed(name: str, legal: frozenset[str], make: Callable[[Call, bytes], Any]) -> None:
    """A fault around a body that is good."""
    both(name, legal, lambda call: make(call, call.events() if call.stream else call.json()))


def raw(call: Call, body: bytes, lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    kind = "text/event-stream" if call.stream else "application/json"
    return f"{status}\r\ncontent-type: {kind}\r\n{lines}\r\n".encode("latin-1") + body


def last(call: Call, answer: bytes) -> Awaitable[bool]:
    """The answer, and then the connection ends without a word about it."""

    async def send() -> bool:
        call.writer.write(answer)
        await call.writer.drain()
        return False

    return send()


def sized(call: Call, body: bytes, lines: str = "", **more: Any) -> bytes:
    return raw(call, body, f"content-length: {len(body)}\r\n{lines}", **more)


framed("early_hints", TAKEN, lambda c, b: (
    b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + sized(c, b)))  # fmt: skip
framed("continues", TAKEN, lambda c, b: b"HTTP/1.1 100 Continue\r\n\r\n" * 5 + sized(c, b))
framed("switching", WIRE, lambda c, b: last(c, sized(
    c, b, "upgrade: h2c\r\nconnection: upgrade\r\n", status="HTTP/1.1 101 Switching")))  # fmt: skip
for status in ("201 Created", "202 Accepted", "203 Other", "206 Partial Content", "226 IM Used"):
    framed(f"status_{status[:3]}", WIRE,
           lambda c, b, status=status: sized(c, b, status=f"HTTP/1.1 {status}"))  # fmt: skip
framed("status_204", WIRE, lambda c, b: b"HTTP/1.1 204 No Content\r\n\r\n")
framed("status_304", WIRE, lambda c, b: b"HTTP/1.1 304 Not Modified\r\n\r\n")
for status in (301, 302, 303, 307, 308):
    framed(f"status_{status}", WIRE, lambda c, b, status=status: raw(
        c, b"", f"location: http://127.0.0.1:{c.elsewhere}/\r\ncontent-length: 0\r\n",
        status=f"HTTP/1.1 {status} Moved"))  # fmt: skip
framed("status_999", WIRE, lambda c, b: last(c, sized(c, b, status="HTTP/1.1 999 What")))
framed("status_word", WIRE, lambda c, b: last(c, sized(c, b, status="HTTP/1.1 2OO OK")))
framed(
    "status_long", EITHER, lambda c, b: last(c, sized(c, b, status="HTTP/1.1 200 " + "k" * 60_000))
)
framed("forbidden", ends("endpoint_down"), lambda c, b: whole(b"<html>no</html>", "403 Forbidden"))
framed("too_long", ends("too_long"), lambda c, b: whole(b"", "413 Too Large"))
framed("filtered", ends("refused"), lambda c, b: whole(
    b'{"error": {"code": "content_filter", "message": "no"}}', "400 Bad"))  # fmt: skip
framed("teapot", WIRE, lambda c, b: whole(b, "418 Teapot"))
for value in ("-5", "nan", "soon", "0x10", "1e-999", "Thu, 01 Jan 1970 00:00:00 GMT", "\xff", ""):
    framed(f"limit_{value.split(',')[0]}", ends("rate_limited"), lambda c, b, value=value: raw(
        c, b"slow", f"retry-after: {value}\r\ncontent-length: 4\r\n",
        status="HTTP/1.1 429 Slow"))  # fmt: skip
framed("server_error_good_body", WIRE, lambda c, b: sized(c, b, status="HTTP/1.1 500 Oops"))
framed("server_error_long", WIRE, lambda c, b: whole(b"x" * 900_000, "502 Bad"))
framed("server_error_echo", WIRE, lambda c, b: whole(
    b"x" * 290 + c.authorization.encode(), "500 Oops"))  # fmt: skip
framed("length_short", WIRE, lambda c, b: raw(c, b, f"content-length: {len(b) // 2}\r\n"))
framed("length_long", WIRE, lambda c, b: last(c, raw(c, b[:-30], f"content-length: {len(b)}\r\n")))
framed("length_twice", EITHER, lambda c, b: last(c, sized(c, b, "content-length: 3\r\n")))
framed("length_word", WIRE, lambda c, b: last(c, raw(c, b, "content-length: many\r\n")))
framed("length_negative", WIRE, lambda c, b: last(c, raw(c, b, "content-length: -1\r\n")))
framed("length_and_chunks", EITHER, lambda c, b: last(c, sized(
    c, b, "transfer-encoding: chunked\r\n")))  # fmt: skip
framed("chunk_no_number", WIRE, lambda c, b: last(c, raw(
    c, b"xyz\r\n" + b, "transfer-encoding: chunked\r\n")))  # fmt: skip
framed("chunk_negative", WIRE, lambda c, b: last(c, raw(
    c, b"-5\r\n" + b, "transfer-encoding: chunked\r\n")))  # fmt: skip
framed("chunk_too_long", WIRE, lambda c, b: last(c, raw(
    c, b"ffffff\r\n" + b[:40], "transfer-encoding: chunked\r\n")))  # fmt: skip
framed("chunk_trailers", TAKEN, lambda c, b: raw(
    c, b"%x;a=b\r\n%b\r\n0\r\nx-trailer: %b\r\n\r\n" % (len(b), b, OTHER.encode()),
    "transfer-encoding: chunked\r\n"))  # fmt: skip
framed("chunk_of_one", TAKEN, lambda c, b: raw(
    c, b"".join(b"1\r\n%c\r\n" % byte for byte in b) + b"0\r\n\r\n",
    "transfer-encoding: chunked\r\n"))  # fmt: skip
framed("gzip", TAKEN, lambda c, b: sized(c, gzip.compress(b), "content-encoding: gzip\r\n"))
framed("gzip_capital", TAKEN, lambda c, b: sized(c, gzip.compress(b), "content-encoding: GZIP\r\n"))
framed("gzip_lie", WIRE, lambda c, b: sized(c, b, "content-encoding: gzip\r\n"))
framed("gzip_twice", WIRE, lambda c, b: sized(
    c, gzip.compress(gzip.compress(b)), "content-encoding: gzip\r\n"))  # fmt: skip
framed("gzip_cut", WIRE, lambda c, b: sized(
    c, gzip.compress(b)[: len(b) // 4], "content-encoding: gzip\r\n"))  # fmt: skip
framed("gzip_bomb", WIRE, lambda c, b: sized(c, BOMB, "content-encoding: gzip\r\n"))
framed("deflate_lie", WIRE, lambda c, b: sized(
    c, zlib.compress(b)[2:-4], "content-encoding: deflate\r\n"))  # fmt: skip
framed("encoding_unknown", WIRE, lambda c, b: sized(c, b, "content-encoding: zstd\r\n"))
framed("encoding_identity", TAKEN, lambda c, b: sized(c, b, "content-encoding: identity\r\n"))
framed("http_1_0", TAKEN, lambda c, b: last(c, raw(c, b, "", status="HTTP/1.0 200 OK")))
framed("http_0_9", WIRE, lambda c, b: last(c, b))
framed("http_2", WIRE, lambda c, b: last(c, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b))
framed("headers_many", EITHER, lambda c, b: last(c, sized(
    c, b, "".join(f"x-{number}: y\r\n" for number in range(3_000)))))  # fmt: skip
framed("header_long", EITHER, lambda c, b: last(c, sized(c, b, f"x-long: {'y' * 200_000}\r\n")))
framed("header_folded", EITHER, lambda c, b: last(c, sized(c, b, "x-a: b\r\n  c\r\n")))
framed("header_no_colon", EITHER, lambda c, b: last(c, sized(c, b, "what is this\r\n")))
framed("header_bytes", EITHER, lambda c, b: last(c, sized(c, b, "x-a: \xff\xfe\x01\r\n")))
framed("header_echo", TAKEN, lambda c, b: sized(
    c, b, f"x-you-sent: {c.authorization}\r\nset-cookie: k={c.authorization}\r\n"))  # fmt: skip
both("kind_capital", TAKEN, lambda c: sse(c.events(), "Text/Event-Stream; charset=utf-8")
     if c.stream else whole(c.json(), kind="TEXT/PLAIN; charset=utf-16"))  # fmt: skip
stream("kind_html", WIRE, lambda c: sse(c.events(), "text/html"))
stream("kind_bytes", WIRE, lambda c: sse(c.events(), "text/k").replace(b"text/k", b"text/\xff\xfe"))
framed("closes_unsaid", TAKEN, lambda c, b: last(c, sized(c, b)))
framed("second_answer", TAKEN, lambda c, b: sized(c, b) * 2)


async def second_late(call: Call) -> bool:
    """The answer again a little later, when the connection may be waiting for the next one."""
    call.writer.write(call.good())
    await call.writer.drain()
    await asyncio.sleep(0.03)
    call.writer.write(call.good())
    await call.writer.drain()
    return True


async def reset(call: Call, first: bytes) -> bool:
    call.writer.write(first)
    await call.writer.drain()
    await asyncio.sleep(0.02)
    link = call.writer.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    call.writer.transport.abort()
    return False


async def drip(call: Call, data: bytes, again: bytes = b"") -> bool:
    """A byte now and then, and never the last one."""
    for byte in data:
        call.writer.write(bytes([byte]))
        await asyncio.sleep(0.05)
    while again:
        call.writer.write(again)
        await call.writer.drain()
        await asyncio.sleep(0.05)
    await asyncio.sleep(60)
    return False


async def half_closed(call: Call) -> bool:
    call.writer.write_eof()
    await asyncio.sleep(0.05)
    return False


both("second_answer_late", TAKEN, second_late)
both("reset_at_once", WIRE, lambda c: reset(c, b""))
both("reset_in_head", WIRE, lambda c: reset(c, c.good()[:20]))
both("reset_in_body", WIRE, lambda c: reset(c, c.good()[:150]))
both("half_closed", WIRE, half_closed)
SLOW = {"head_drips", "body_stalls", "says_nothing", "s_comments_for_ever", "s_empty_for_ever"}
"""Faults that cost the idle time-out each time."""
both("head_drips", LATE, lambda c: drip(c, c.good()[:40]))
both("body_stalls", LATE, lambda c: stall(c, c.good()[:150]))
both("says_nothing", LATE, lambda c: drip(c, b""))
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
stream("s_comments_for_ever", LATE, lambda c: stall(c, _HEAD, b": wait\n\n"))
stream("s_empty_for_ever", LATE, lambda c: stall(c, _HEAD, event({"choices": [{"delta": {}}]})))


async def stall(call: Call, first: bytes, again: bytes = b"") -> bool:
    call.writer.write(first)
    return await drip(call, b"", again)


def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(bytes(1_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + piece * 100


BOMB = _bomb()
