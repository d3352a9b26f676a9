"""Broken answers of a chat-completions endpoint: as bytes, or as actions on the connection.

Names that begin with ``s_`` are streams; the others are plain answers or faults of the connection.
Each answer contains the word ``met`` if it can, so a reader that is fooled makes a grade of it.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import zlib
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from study.system.files import read_yaml

COUNTED = {
    "prompt_tokens": 100,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 40},
}
MODEL = "m"
"""The model that answers name."""


def choice(
    content: object = "met", finish: str | None = "stop", **message: object
) -> dict[str, object]:
    """A choice of a completion, with ``message`` merged into its turn."""
    turn = {"role": "assistant", "content": content, **message}
    return {"index": 0, "message": turn, "finish_reason": finish, "logprobs": None}


def completion(*choices: Mapping[str, object]) -> bytes:
    """The JSON of a chat completion with ``choices``."""
    return json.dumps(
        {"id": "x", "model": MODEL, "choices": list(choices), "usage": COUNTED}
    ).encode()


def chunk(delta: Mapping[str, object] | None, finish: str | None = None, index: int = 0) -> bytes:
    """One event of a stream; without a delta the last one, which brings the usage."""
    if delta is None:
        rest: dict[str, object] = {"choices": [], "usage": COUNTED}
    else:
        rest = {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps({'id': 'x', 'model': MODEL} | rest)}\n\n".encode()


def head(status: int = 200, length: int | None = None, **headers: Any) -> bytes:
    """The status line and headers of an HTTP response."""
    lines = [f"HTTP/1.1 {status} Status"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if length is not None:
        lines.append(f"content-length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(body: bytes, status: int = 200, kind: str = "application/json", **headers: Any) -> bytes:
    """An HTTP response with a body of announced length."""
    return head(status, len(body), content_type=kind, **headers) + body


def error(status: int, message: str = "broken", **headers: Any) -> bytes:
    """An HTTP response with an error object as its JSON body."""
    return whole(json.dumps({"error": {"message": message}}).encode(), status, **headers)


def events(body: bytes, **headers: Any) -> bytes:
    """A stream that ends when the connection does."""
    return head(200, content_type="text/event-stream", connection="close", **headers) + body


DONE = b"data: [DONE]\n\n"
ROLE = chunk({"role": "assistant", "content": ""})
MET = chunk({"content": "met"})
STOP = chunk({}, "stop")
GOOD = completion(choice())
GOOD_STREAM = b": hello\n\n" + ROLE + chunk({"content": "m"}) + chunk({"content": "et"})
GOOD_STREAM += STOP + chunk(None) + DONE


def bomb(megabyte: bytes) -> bytes:
    """300 MB in some 300 kB: after a full flush the same compressed piece fits again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(megabyte) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + piece * 300


def _listed(entry: Mapping[str, Any]) -> bytes:
    """The answer that an entry of ``answers.yaml`` describes; its first lines say how."""
    headers = entry.get("headers", {})
    if "raw" in entry:
        return entry["raw"].encode()
    if "error" in entry:
        return error(entry["error"], entry.get("message", "broken"), **headers)
    if "choices" in entry:
        return whole(completion(*(choice(**fields) for fields in entry["choices"])))
    if "stream" in entry:
        return events(b"".join(map(_event, entry["stream"])))
    kind = entry.get("kind", "application/json")
    return whole(entry["body"].encode(), entry.get("status", 200), kind, **headers)


def _event(event: Any) -> bytes:
    if isinstance(event, str):
        return {"role": ROLE, "done": DONE}.get(event) or f"{event}\n\n".encode()
    delta = dict(event)
    return chunk(index=delta.pop("index", 0), finish=delta.pop("finish", None), delta=delta)


_FILE = read_yaml(Path(__file__).with_name("answers.yaml"))
MIXED: tuple[tuple[str, str], ...] = tuple((plain, stream) for plain, stream in _FILE["mixed"])
"""What ``mix`` draws from: faults that pass, for a plain answer and for a stream."""
ANSWERS: dict[str, bytes] = {name: _listed(entry) for name, entry in _FILE["answers"].items()} | {
    "good": whole(GOOD),
    "good_gzip": whole(gzip.compress(GOOD), content_encoding="gzip"),
    "good_deflate": whole(zlib.compress(GOOD), content_encoding="deflate"),
    "short_body": head(200, len(GOOD) + 50, content_type="application/json") + GOOD,
    "cut_json": whole(GOOD[:-20]),
    "non_utf8": whole(GOOD.replace(b"met", b"m\xff\xfet")),
    "utf16": whole(GOOD.decode().encode("utf-16")),
    "deep": whole(b"[" * 100_000),
    "choice_no_message": whole(completion({"index": 0, "finish_reason": "stop"})),
    "status_204": head(204),
    "broken_gzip": whole(b"\x1f\x8b no gzip at all", content_encoding="gzip"),
    "cut_gzip": whole(gzip.compress(GOOD)[:-12], content_encoding="gzip"),
    "brotli": whole(GOOD, content_encoding="br"),
    "huge": whole(completion(choice("met" * 500_000))),
    "s_good": events(GOOD_STREAM),
    "s_good_crlf": events(GOOD_STREAM.replace(b"\n", b"\r\n")),
    "s_good_lost_after_finish": head(200, 9_999, content_type="text/event-stream")
    + GOOD_STREAM.removesuffix(DONE),
    "s_lost_in_usage": head(200, 9_999, content_type="text/event-stream")
    + GOOD_STREAM.removesuffix(DONE)[:-20],
    "s_good_no_last_newline": events(GOOD_STREAM.removesuffix(DONE).rstrip(b"\n")),
    "s_cut_chunk": events(ROLE + MET + STOP[:30]),
    "s_json": whole(GOOD),
    "s_non_utf8": events(ROLE + MET.replace(b"met", b"\xff\xfe") + DONE),
    "s_huge": events(chunk({"content": "met " * 100}) * 5_000),
    "events_for_plain": events(GOOD_STREAM),
}
"""Answers that are bytes; what they do over time is in ``FLOWS``."""
LIARS = {"close", "no_http", "short_body", "s_good_lost_after_finish", "s_lost_in_usage"}
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


async def _drip(writer: asyncio.StreamWriter, first: bytes, rest: bytes) -> None:
    writer.write(first)
    for byte in rest:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.03)


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
FLOWS: dict[str, Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]] = {
    "rst": _rst,
    "rst_body": partial(_rst, first=_LENGTH + GOOD[:30]),
    "hang": _hang,
    "hang_head": partial(_hang, first=b"HTTP/1.1 200 OK\r\nx-part"),
    "hang_body": partial(_hang, first=_LENGTH + GOOD[:30]),
    "drip": partial(_drip, first=_LENGTH, rest=GOOD),
    "drip_head": partial(_drip, first=b"", rest=whole(GOOD)),
    "endless_head": partial(_forever, first=b"HTTP/1.1 200 OK\r\n", again=b"x-more: 1\r\n"),
    "bomb": lambda writer: _fragments(
        writer, whole(bomb(bytes(1_000_000)), content_encoding="gzip"), 65_536
    ),
    "s_rst": partial(_rst, first=_SSE + ROLE + MET),
    "s_stall": partial(_hang, first=_SSE + ROLE + MET),
    "s_lingers": partial(_hang, first=_SSE + GOOD_STREAM),
    "s_stays_open": partial(_hang, first=_SSE + GOOD_STREAM.removesuffix(DONE)),
    "s_stays_awake": partial(_forever, first=_SSE + ROLE + MET + STOP, again=b": alive\n\n"),
    "s_drip": partial(_drip, first=_SSE, rest=GOOD_STREAM),
    "s_comments": partial(_forever, first=_SSE + ROLE, again=b": keep-alive\n\n"),
    "s_empty_deltas": partial(_forever, first=_SSE, again=chunk({"content": ""})),
    "s_slow_words": partial(_forever, first=_SSE, again=chunk({"content": "met "})),
    "s_bomb": lambda writer: _fragments(
        writer, events(bomb(b":" * 1_000_000), content_encoding="gzip"), 65_536
    ),
    "s_fragments": partial(_fragments, data=events(GOOD_STREAM), size=1),
}
"""What the server does to a connection in place of an answer."""
