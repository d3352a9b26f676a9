"""Serves a simulated judge that breaks some of its answers, to see what a study does then.

``python -m judges.faults judge=sim-fair share=0.1`` breaks one answer in ten at ``/v1``. Below the
path ``/FAULT/v1`` every answer has the named fault; ``FAULT:2`` breaks only the first two answers,
and ``mix_0.1`` one in ten.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from judges.endpoint.loop import Loop, cancel
from judges.endpoint.transport import AsgiWire
from judges.fault_injection.server import ANSWERS, FLOWS, LIARS, MIXED, head, whole
from judges.scorers.app import computed_app
from judges.serving.server import ANY_PORT, listen
from study.cli import command, option, overrides, preset
from study.config.bounds import Choice, Number
from study.config.compose import load_presets
from study.config.schema import Endpoint
from study.errors import UserError
from study.tasks import oracle

if TYPE_CHECKING:
    from judges.endpoint.transport import Wire

Good = Callable[[bytes], Awaitable[bytes]]
"""Request body -> a whole HTTP answer."""


def mixed(body: bytes, nth: int, share: float, faults: Sequence[tuple[str, str]]) -> str:
    """The fault of a request made for the n-th time; empty for a good answer. A request meets the
    same faults in every run."""
    digest = hashlib.blake2b(body + b" %d" % nth, digest_size=8).digest()
    draw = int.from_bytes(digest, "big") / 2**64
    if draw >= share:
        return ""
    return faults[int(draw / share * len(faults))][b'"stream": true' in body]


class FaultServer:
    """The server, in a thread of its own; a context manager.
    Raises UserError: the port is taken.

    Args:
        good: makes the answers that are not broken; None answers ``met``.
        share, faults: how many answers the path ``/v1`` breaks, and how.
        port: 0 takes any free one.
    """

    def __init__(
        self,
        good: Good | None = None,
        share: float = 0.0,
        faults: Sequence[tuple[str, str]] = MIXED,
        port: int = 0,
    ) -> None:
        self.calls: Counter[str] = Counter()
        """Requests per first part of the path."""
        self.broken: Counter[str] = Counter()
        """Answers of a mix per fault."""
        self.bodies: dict[str, list[Mapping[str, Any]]] = {}
        self.headers: list[bytes] = []
        self.keep = True
        """Whether bodies and headers are kept; a long run has no room for them."""
        self.connections = 0
        self.port = port
        self._good = good
        self._share, self._faults = share, tuple(faults)
        self._request_counts: Counter[bytes] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = Loop(self._shut)

    def url(self, fault: str) -> str:
        """The endpoint's address for this fault."""
        return f"http://127.0.0.1:{self.port}/{fault}/v1"

    def __enter__(self) -> FaultServer:
        listener = listen("127.0.0.1", self.port, ANY_PORT)
        self.port = listener.getsockname()[1]
        self._loop.run(self._start(listener))
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()

    async def _start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._connected, sock=listener)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _shut(self) -> None:
        self._server.close()
        await cancel(self._tasks)
        await self._server.wait_closed()
        await asyncio.sleep(0.05)  # aborted transports close their sockets in the next rounds

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._request(reader, writer):
                pass

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await reader.readuntil(b"\r\n\r\n")
        line, *headers = request.decode().lower().split("\r\n")
        sizes = [item.split(":")[1] for item in headers if item.startswith("content-length:")]
        body = await reader.readexactly(int(sizes[0])) if sizes else b""
        path = line.split(" ")[1]
        fault = path.split("/")[1]
        self.calls[fault] += 1
        if self.keep:
            self.headers.append(request)
            if body:
                self.bodies.setdefault(fault, []).append(json.loads(body))
        name, _, times = fault.partition(":")
        if path.endswith("/models"):
            if name.startswith(("good", "s_good", "slow", "mix", "v1")):
                models = {"data": [{"id": "m"}, {"id": "other"}]}
                writer.write(whole(json.dumps(models).encode()))
                await writer.drain()
                return True
        elif name == "v1" or name.startswith("mix_"):
            share = self._share if name == "v1" else float(name.removeprefix("mix_"))
            nth = self._request_counts[key := hashlib.blake2b(body, digest_size=16).digest()]
            self._request_counts[key] += 1
            name = mixed(body, nth, share, self._faults)
            self.broken[name or "good"] += 1
            if not name:
                return await self._well(writer, body)
        if times and self.calls[fault] > int(times):
            return await self._well(writer, body, name.startswith("s_"))
        if name.startswith("slow_"):
            await asyncio.sleep(float(name.removeprefix("slow_")))
            return await self._well(writer, body)
        if name in FLOWS:
            racing = [asyncio.create_task(work) for work in (FLOWS[name](writer), reader.read(1))]
            await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            await cancel(racing)
            answer = b""
        else:
            answer = ANSWERS[name]
            writer.write(answer)
        return await self._sent(writer, answer, name in LIARS)

    async def _well(
        self, writer: asyncio.StreamWriter, body: bytes, streamed: bool | None = None
    ) -> bool:
        """A good answer, as it was asked for."""
        if streamed is None:
            streamed = b'"stream": true' in body
        good = ANSWERS["s_good" if streamed else "good"]
        answer = good if self._good is None else await self._good(body)
        writer.write(answer)
        return await self._sent(writer, answer, False)

    async def _sent(self, writer: asyncio.StreamWriter, answer: bytes, lied: bool) -> bool:
        """Whether the connection lives on."""
        await writer.drain()
        if answer and not lied and b"connection: close" not in answer:
            return True
        if not writer.is_closing():
            writer.write_eof()
            await asyncio.sleep(0.05)
        return False


def behind(wire: Wire) -> Good:
    """Good answers from a judge that is asked over ``wire``."""

    async def good(body: bytes) -> bytes:
        kind = {"content-type": "application/json"}
        async with wire.exchange("POST", "/chat/completions", kind, body) as answer:
            data = b"".join([chunk async for chunk in answer.chunks])
            kind = {"content_type": answer.headers.get("content-type", "application/json")}
            return head(answer.status, len(data), **kind) + data

    return good


@dataclass(frozen=True)
class Options:
    """The judge that is served, and how many of its answers are broken in which ways."""

    judge: str = preset("judge")
    task: str = preset("task", "instruct-mini")
    share: float = option("share of answers to break", 0.1, Number(low=0, high=1))
    faults: list[str] = option(
        "faults to draw from; left out, a mix",
        [],
        Choice(tuple(sorted(ANSWERS.keys() | FLOWS.keys()))),
    )
    port: int = option("port to listen on, 0 for any free one", 8100, Number(low=0, high=65535))
    overrides: list[str] = overrides("judge.", "task.")


@command("judges.faults judge=sim-fair share=0.1 faults=hang,server_500", __doc__, Options)
def main(options: Options) -> int:
    """Serve a simulated judge that breaks a share of its answers, until interrupted."""
    judge, task = load_presets(options.judge, options.task, options.overrides)
    if not judge.computed:
        raise UserError(f"judge={judge.name} is not simulated; type for example judge=sim-fair.")
    wire = AsgiWire(Endpoint(), computed_app(judge, oracle(task)))
    faults = [(name, name) for name in options.faults] or MIXED
    with FaultServer(behind(wire), options.share, faults, options.port) as server:
        print(f"it answers at http://127.0.0.1:{server.port}/v1 (stop it with Ctrl-C)", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(dict(server.broken))
    return 0


if __name__ == "__main__":
    sys.exit(main())
