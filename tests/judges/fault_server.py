"""A judge's endpoint on a raw socket that can lie: it breaks each answer in one named way.

The fault is the first part of the path, ``http://127.0.0.1:PORT/FAULT/v1``; ``FAULT:2`` breaks
only the first two answers and then gives a good one. ``calls`` counts requests per fault.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 40},
}
KEY_ECHO = "sk-test-canary-0123456789abcdef"


def choice(content: Any = "met", finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    turn = {"role": "assistant", "content": content, **message}
    return {"index": 0, "message": turn, "finish_reason": finish, "logprobs": None}


def completion(*choices: dict[str, Any]) -> bytes:
    return json.dumps(
        {"id": "x", "model": "served-1", "choices": list(choices), "usage": USAGE}
    ).encode()


def chunk(delta: dict[str, Any] | None, finish: str | None = None, index: int = 0) -> bytes:
    choices = (
        [{"index": index, "delta": delta, "finish_reason": finish}] if delta is not None else []
    )
    data = {"id": "x", "model": "served-1", "choices": choices}
    if delta is None:
        data["usage"] = USAGE
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


def head(status: int = 200, length: int | None = None, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Status"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if length is not None:
        lines.append(f"content-length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(body: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    return head(status, len(body), content_type=kind, **headers) + body


def error(status: int, message: str = "broken", **headers: str) -> bytes:
    return whole(json.dumps({"error": {"message": message}}).encode(), status, **headers)


def events(body: bytes, **headers: str) -> bytes:
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
}
"""Answers that are bytes; what they do over time is in ``_FLOWS``."""
_LIARS = {"close", "no_http", "short_body", "s_good_lost_after_finish"}
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
_FLOWS: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
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


class FaultServer:
    """The server in a thread of its own; a context manager."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bodies: dict[str, list[dict[str, Any]]] = {}
        self.headers: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def url(self, fault: str) -> str:
        return f"http://127.0.0.1:{self.port}/{fault}/v1"

    def __enter__(self) -> FaultServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            task = asyncio.create_task(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda _: writer.transport.abort())

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
        await asyncio.sleep(0.05)  # aborted transports close their sockets in the next rounds

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await reader.readuntil(b"\r\n\r\n")
        self.headers.append(request)
        line, *headers = request.decode().lower().split("\r\n")
        sizes = [item.split(":")[1] for item in headers if item.startswith("content-length:")]
        body = await reader.readexactly(int(sizes[0])) if sizes else b""
        fault = line.split(" ")[1].split("/")[1]
        self.calls[fault] += 1
        if body:
            self.bodies.setdefault(fault, []).append(json.loads(body))
        name, _, times = fault.partition(":")
        if line.split(" ")[1].endswith("/models") and name.startswith(("good", "s_good", "slow")):
            models = {"data": [{"id": "m"}, {"id": "other"}]}
            writer.write(whole(json.dumps(models).encode()))
        elif times and self.calls[fault] > int(times):
            writer.write(ANSWERS["s_good" if name.startswith("s_") else "good"])
        elif name.startswith("slow_"):
            await asyncio.sleep(float(name.removeprefix("slow_")))
            name = "good"
            writer.write(ANSWERS[name])
        elif name in _FLOWS:
            flow = asyncio.ensure_future(_FLOWS[name](writer))
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait({flow, gone}, return_when=asyncio.FIRST_COMPLETED)
            flow.cancel()
            gone.cancel()
            await asyncio.gather(flow, gone, return_exceptions=True)
        else:
            writer.write(ANSWERS[name])
        await writer.drain()
        answer = ANSWERS.get(name, b"")
        if answer and name not in _LIARS and b"connection: close" not in answer:
            return True
        if not writer.is_closing():
            writer.write_eof()
            await asyncio.sleep(0.05)
        return False
