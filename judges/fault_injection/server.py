"""Broken answers of a chat-completions endpoint: as bytes, or as what the server does over time.

Names that begin with ``s_`` are streams; the others are plain answers, or faults below the answer
that are the same for both. Each has the word ``met`` in it wherever it can have one.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

COUNTED = {
    "prompt_tokens": 100,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 40},
}
KEY_ECHO = "sk-test-canary-0123456789abcdef"
MODEL = "m"
"""What answers say who gave them."""
SAID = "met"
"""What every answer says, whole or in part: a reader that makes a grade of it was fooled."""


def choice(content: Any = SAID, finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    turn = {"role": "assistant", "content": content, **message}
    return {"index": 0, "message": turn, "finish_reason": finish, "logprobs": None}


def completion(*choices: dict[str, Any]) -> bytes:
    return json.dumps(
        {"id": "x", "model": MODEL, "choices": list(choices), "usage": COUNTED}
    ).encode()


def chunk(delta: dict[str, Any] | None, finish: str | None = None, index: int = 0) -> bytes:
    choices = (
        [{"index": index, "delta": delta, "finish_reason": finish}] if delta is not None else []
    )
    data = {"id": "x", "model": MODEL, "choices": choices}
    if delta is None:
        data["usage"] = COUNTED
    return b"data: " + json.dumps(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
ROLE = chunk({"role": "assistant", "content": ""})
GOOD = completion(choice())
GOOD_STREAM = (
    b": hello\n\n"
    + ROLE
    + chunk({"content": "m"})
    + chunk({"content": "et"})
    + chunk({}, "stop")
    + chunk(None)
    + DONE
)


def head(status: int = 200, length: int | None = None, **headers: Any) -> bytes:
    lines = [f"HTTP/1.1 {status} Status"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if length is not None:
        lines.append(f"content-length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(body: bytes, status: int = 200, kind: str = "application/json", **headers: Any) -> bytes:
    return head(status, len(body), content_type=kind, **headers) + body


def error(status: int, message: str = "broken", **headers: Any) -> bytes:
    return whole(json.dumps({"error": {"message": message}}).encode(), status, **headers)


def events(body: bytes, **headers: Any) -> bytes:
    """A stream that ends when the connection does."""
    return head(200, content_type="text/event-stream", connection="close", **headers) + body


def bomb(megabyte: bytes) -> bytes:
    """300 MB in some 300 kB: after a full flush the same compressed piece fits again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(megabyte) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + piece * 300


ANSWERS: dict[str, bytes] = {
    "good": whole(GOOD),
    "good_gzip": whole(gzip.compress(GOOD), content_encoding="gzip"),
    "good_deflate": whole(zlib.compress(GOOD), content_encoding="deflate"),
    "close": b"",
    "no_http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "short_body": head(200, len(GOOD) + 50, content_type="application/json") + GOOD,
    "cut_json": whole(GOOD[:-20]),
    "non_utf8": whole(GOOD.replace(b"met", b"m\xff\xfet")),
    "utf16": whole(GOOD.decode().encode("utf-16")),
    "html_200": whole(b"<html><body>Sign in, score 1.0, met</body></html>", kind="text/html"),
    "not_object": whole(b'["met", 1.0]'),
    "deep": whole(b"[" * 100_000),
    "error_200": error(200, "overloaded"),
    "error_200_flat": whole(b'{"code": "Throttled", "message": "slow down"}'),
    "no_choices": whole(b'{"id": "x", "model": "m"}'),
    "choices_empty": whole(completion()),
    "choices_two": whole(completion(choice(), choice("not_met"))),
    "choice_no_message": whole(completion({"index": 0, "finish_reason": "stop"})),
    "content_number": whole(completion(choice(1.0))),
    "finish_null": whole(completion(choice(finish=None))),
    "finish_strange": whole(completion(choice(finish="insufficient_system_resource"))),
    "null_reasoning": whole(completion(choice(None, reasoning="I think met"))),
    "null_reasoning_content": whole(completion(choice(None, reasoning_content="so: met"))),
    "empty": whole(completion(choice(""))),
    "truncated": whole(completion(choice("me", "length"))),
    "unparsed": whole(completion(choice("who knows"))),
    "filtered": whole(completion(choice("met", "content_filter"))),
    "refusal_field": whole(completion(choice(None, refusal="I will not"))),
    "inspection_400": error(400, "data_inspection_failed: Input text may be inappropriate"),
    "context_400": error(400, "maximum context length is 4096"),
    "key_401": error(401, f"Incorrect API key provided: {KEY_ECHO}"),
    "bill_402": error(402),
    "forbidden_403": error(403),
    "model_404": error(404, "The model `x` does not exist"),
    "too_large_413": error(413),
    "invalid_422": error(422),
    "redirect": whole(b"", 307, location="/good/v1/chat/completions"),
    "status_204": head(204),
    "timeout_408": error(408),
    "limit_429": error(429),
    "limit_429_zero": error(429, retry_after="0"),
    "limit_429_short": error(429, retry_after="0.2"),
    "limit_429_pause": error(429, retry_after="0.4"),
    "limit_429_long": error(429, retry_after="300"),
    "limit_429_date": error(429, retry_after="Fri, 31 Dec 2999 23:59:59 GMT"),
    "limit_429_nonsense": error(429, retry_after="soon"),
    "quota_429": error(429, "insufficient_quota"),
    "server_500": error(500),
    "gateway_502": whole(b"<html>Bad gateway</html>", 502, "text/html"),
    "busy_503_long": error(503, retry_after="300"),
    "overloaded_529": error(529),
    "broken_gzip": whole(b"\x1f\x8b no gzip at all", content_encoding="gzip"),
    "cut_gzip": whole(gzip.compress(GOOD)[:-12], content_encoding="gzip"),
    "brotli": whole(GOOD, content_encoding="br"),
    "huge": whole(completion(choice("met" * 500_000))),
    # streams
    "s_good": events(GOOD_STREAM),
    "s_good_crlf": events(GOOD_STREAM.replace(b"\n", b"\r\n")),
    "s_good_lost_after_finish": head(200, 9_999, content_type="text/event-stream")
    + GOOD_STREAM.removesuffix(DONE),
    "s_good_no_last_newline": events(GOOD_STREAM.removesuffix(DONE).rstrip(b"\n")),
    "s_no_finish": events(ROLE + chunk({"content": "met"})),
    "s_done_no_finish": events(ROLE + chunk({"content": "met"}) + DONE),
    "s_cut_chunk": events(ROLE + chunk({"content": "met"}) + chunk({}, "stop")[:30]),
    "s_nothing": events(b""),
    "s_error_object": events(ROLE + b'data: {"error": {"message": "worker died"}}\n\n'),
    "s_error_event": events(b'event: error\ndata: {"code": "500", "message": "no"}\n\n'),
    "s_inspection": events(
        b'event: error\ndata: {"code": "data_inspection_failed", "message": "no"}\n\n'
    ),
    "s_malformed": events(ROLE + b"data: {oops\n\n" + chunk({}, "stop") + DONE),
    "s_json": whole(GOOD),
    "s_html": whole(b"<html>met</html>", kind="text/html"),
    "s_two_choices": events(chunk({"content": "met"}, "stop", index=1) + DONE),
    "s_after_finish": events(chunk({"content": "not_"}, "stop") + chunk({"content": "met"}) + DONE),
    "s_non_utf8": events(ROLE + chunk({"content": "met"}).replace(b"met", b"\xff\xfe") + DONE),
    "s_length": events(chunk({"content": "me"}) + chunk({}, "length") + DONE),
    "s_filtered": events(chunk({"content": "met"}) + chunk({}, "content_filter") + DONE),
    "s_reasoning_only": events(chunk({"reasoning": "met"}) + chunk({}, "stop") + DONE),
    "s_reasoning_content_only": events(
        chunk({"content": None, "reasoning_content": "met"}) + chunk({}, "stop") + DONE
    ),
    "s_huge": events(chunk({"content": "met " * 100}) * 5_000),
    "s_http_500": error(500),
    "s_key_401": error(401),
    "s_limit_429": error(429, retry_after="0"),
    "s_unparsed": events(chunk({"content": "who knows"}, "stop") + DONE),
    "s_empty": events(chunk({"content": ""}, "stop") + DONE),
    "events_for_plain": events(GOOD_STREAM),
}
"""Answers that are bytes; what they do over time is in ``FLOWS``."""
LIARS = {"close", "no_http", "short_body", "s_good_lost_after_finish"}
"""Answers that the client must see the connection end after."""


async def _rst(writer: asyncio.StreamWriter, first: bytes = b"") -> None:
    """Close so that the client's kernel reports a reset."""
    writer.write(first)
    await writer.drain()
    await asyncio.sleep(0.02)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _hang(writer: asyncio.StreamWriter, first: bytes = b"") -> None:
    writer.write(first)
    await writer.drain()
    await asyncio.sleep(60)


async def _drip(writer: asyncio.StreamWriter, first: bytes, rest: bytes, wait_s: float) -> None:
    writer.write(first)
    for byte in rest:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(wait_s)


async def _forever(writer: asyncio.StreamWriter, first: bytes, again: bytes) -> None:
    writer.write(first)
    while True:
        writer.write(again)
        await writer.drain()
        await asyncio.sleep(0.02)


async def _fragments(writer: asyncio.StreamWriter, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        writer.write(data[start : start + size])
        await writer.drain()
        await asyncio.sleep(0)


_SSE = events(b"")
_LENGTH = head(200, len(GOOD), content_type="application/json")
FLOWS: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
    "rst": _rst,
    "rst_body": lambda w: _rst(w, _LENGTH + GOOD[:30]),
    "hang": _hang,
    "hang_head": lambda w: _hang(w, b"HTTP/1.1 200 OK\r\nx-part"),
    "hang_body": lambda w: _hang(w, _LENGTH + GOOD[:30]),
    "drip": lambda w: _drip(w, _LENGTH, GOOD, 0.03),
    "drip_head": lambda w: _drip(w, b"", whole(GOOD), 0.03),
    "endless_head": lambda w: _forever(w, b"HTTP/1.1 200 OK\r\n", b"x-more: 1\r\n"),
    "bomb": lambda w: _fragments(w, whole(bomb(bytes(1_000_000)), content_encoding="gzip"), 65_536),
    "s_rst": lambda w: _rst(w, _SSE + ROLE + chunk({"content": "met"})),
    "s_stall": lambda w: _hang(w, _SSE + ROLE + chunk({"content": "met"})),
    "s_lingers": lambda w: _hang(w, _SSE + GOOD_STREAM),
    "s_drip": lambda w: _drip(w, _SSE, GOOD_STREAM, 0.03),
    "s_comments": lambda w: _forever(w, _SSE + ROLE, b": keep-alive\n\n"),
    "s_empty_deltas": lambda w: _forever(w, _SSE, chunk({"content": ""})),
    "s_slow_words": lambda w: _forever(w, _SSE, chunk({"content": "met "})),
    "s_bomb": lambda w: _fragments(
        w, events(bomb(b":" * 1_000_000), content_encoding="gzip"), 65_536
    ),
    "s_fragments": lambda w: _fragments(w, events(GOOD_STREAM), 1),
}
