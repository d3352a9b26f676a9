"""Programs that ask while they run: several at once on one event loop, a sandbox for each.

A program says lines, and the loop's owner answers each of them, when it likes. Workers that end
clean are kept for the next program.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from typing import Self

from study.sandbox import tiers
from study.sandbox.calls import Limits
from study.sandbox.inside.frames import Frame
from study.sandbox.worker import GRACE_S, REPLY_ROOM, Broken, Worker

ROLE = "program"
WINDOW = 16
"""Lines of a program's that are taken before one is answered."""
Hear = Callable[["Talk", str], None]


class Talk:
    """One conversation with a program, by the event loop that runs.

    Attributes:
        ended: how it ended, as the worker's replies say it, once it has.
    """

    def __init__(self, worker: Worker, hear: Hear, most: int) -> None:
        assert worker.process.stdin is not None and worker.process.stdout is not None
        self.worker, self.hear, self.most = worker, hear, most
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Frame] = self.loop.create_future()
        self.left = False
        self.into, self.out = worker.process.stdin.fileno(), worker.process.stdout.fileno()
        self.unsent, self.begun = bytearray(), bytearray()
        os.set_blocking(self.into, False)
        self.loop.add_reader(self.out, self._read)

    def say(self, message: Mapping[str, object]) -> None:
        """Answer one line; after `leave` no one reads it."""
        if not self.left:
            self._send(json.dumps(message).encode() + b"\n")

    def leave(self) -> None:
        """End the program where it stands."""
        if not self.left:
            self.left = True
            self._send(b"\n")

    def close(self) -> None:
        """Leave the worker's pipes to others."""
        self.loop.remove_reader(self.out)
        self.loop.remove_writer(self.into)
        os.set_blocking(self.into, True)

    def _send(self, data: bytes) -> None:
        self.unsent += data
        self._write()

    def _write(self) -> None:
        try:
            self.unsent = self.unsent[os.write(self.into, self.unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._break(str(error))
        if self.unsent and not self.ended.done():
            self.loop.add_writer(self.into, self._write)
        else:
            self.loop.remove_writer(self.into)

    def _read(self) -> None:
        chunk = os.read(self.out, 1 << 16)
        *lines, rest = (bytes(self.begun) + chunk).split(b"\n")
        self.begun = bytearray(rest)
        try:
            for line in lines:
                reply = self.worker.read(line)
                if reply["end"] == "line":
                    if not self.left:
                        self.hear(self, reply["data"])
                    continue
                self.leave()
                if not self.ended.done():
                    self.ended.set_result(reply)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._break(str(error))
        if not chunk:
            self._break("it ended")
        elif len(self.begun) > self.most:
            self._break(f"a line of more than {self.most} bytes")

    def _break(self, why: str) -> None:
        self.loop.remove_reader(self.out)
        if not self.ended.done():
            self.ended.set_exception(Broken(why))


class Stage:
    """Up to ``at_once`` programs at a time, on the best tier of this machine; use it as a context
    of the event loop that it serves. A sandbox dies with the thread that made it: so keep to one.

    Attributes:
        tier: how programs are isolated.
    """

    def __init__(self, at_once: int = 2, tier: tiers.Tier | None = None) -> None:
        """Raises SandboxUnavailable: no tier is given, and none withstands its canary here."""
        self.tier = tier or tiers.find()
        self._places = asyncio.Semaphore(at_once)
        self._idle: list[Worker] = []

    async def run(self, request: Mapping[str, object], limits: Limits, hear: Hear) -> Frame:
        """Run one program, hand each of its lines to ``hear``, and return how it ended.
        Raises Broken: the sandbox failed, not the program."""
        async with self._places:
            worker = self._idle.pop() if self._idle else tiers.start(self.tier)
            whole = False
            try:
                reply = await _run(worker, request, limits, hear)
                whole = not worker.dirty
                return reply
            finally:
                if whole:
                    self._idle.append(worker)
                else:
                    worker.close()

    def close(self) -> None:
        """End every sandbox that is idle."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _run(worker: Worker, request: Mapping[str, object], limits: Limits, hear: Hear) -> Frame:
    talk = Talk(worker, hear, 4096 + REPLY_ROOM * limits.reply_bytes)
    try:
        talk.say({**request, "role": ROLE, "window": WINDOW, "limits": vars(limits)})
        async with asyncio.timeout(limits.wall_s + GRACE_S):
            reply = await talk.ended
            while talk.unsent:
                await asyncio.sleep(0.001)
            return reply
    except TimeoutError as error:
        raise Broken("no end in time") from error
    finally:
        talk.close()
