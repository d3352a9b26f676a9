"""A judge's endpoint in a process of its own that breaks each answer as the question wants it.

The first line of a question is ``NUMBER FAULT TIMES``: the fault of `soak_faults` holds for so many
answers, and after that the number comes back as it should.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress

from tests.faults.soak_faults import PLAIN, STREAM, Call


class Server:
    """Counts what was asked; ``elsewhere`` is where redirects lead."""

    def __init__(self) -> None:
        self.requests = 0
        self.strays = 0
        self.met: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        other = await asyncio.start_server(self._strayed, "127.0.0.1", 0)
        self.elsewhere = other.sockets[0].getsockname()[1]
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        print(json.dumps({"requests": self.requests, "strays": self.strays, "met": self.met}))
        sys.stdout.flush()
        os._exit(0)

    def _strayed(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.strays += 1
        writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while await self._answered(reader, writer):
                pass
        with suppress(OSError):
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in head)
        }
        body = json.loads(await reader.readexactly(int(fields.get("content-length", "0"))))
        self.requests += 1
        number, fault, times = body["messages"][0]["content"].split("\n")[0].split()
        self._asked[number] += 1
        streams = bool(body.get("stream"))
        call = Call(number, streams, fields["authorization"], self.elsewhere, reader, writer)
        if fault == "-" or self._asked[number] > int(times):
            writer.write(call.good())
            await writer.drain()
            return True
        self.met[fault] += 1
        made = (STREAM if streams else PLAIN)[fault][0](call)
        if isinstance(made, bytes):
            writer.write(made)
            await writer.drain()
            return True
        return await self._until_gone(made, reader)

    async def _until_gone(self, flow: Awaitable[bool], reader: asyncio.StreamReader) -> bool:
        """What a fault does over time, which ends when nobody listens."""
        doing = asyncio.ensure_future(flow)
        gone = asyncio.ensure_future(_ended(reader))
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not doing.done():
            doing.cancel()
        results = await asyncio.gather(doing, gone, return_exceptions=True)
        return results[0] is True


async def _ended(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(Server().serve())
