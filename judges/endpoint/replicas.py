"""Several servers of one model behind one ``Wire``: each request goes to the least loaded one.

A server that accepts no connection is left alone for a while; otherwise, having nothing to do, it
would look like the least loaded one and draw every request.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from judges.endpoint.transport import Answer, Asgi, AsgiWire, HttpWire, Unreachable, Wire
from study.errors import UserError
from study.schema import Endpoint

REST_S = 5.0


class Replicas:
    """Wires to the replicas, one each; ties go to the one that was asked longest ago."""

    def __init__(self, wires: Sequence[Wire], clock: Callable[[], float] = time.monotonic) -> None:
        self._wires = list(wires)
        self._clock = clock
        self.in_flight = [0] * len(wires)
        """Requests that each replica is working on for this process."""
        self._asked = [0] * len(wires)
        self._rests_until = [float("-inf")] * len(wires)
        self._turn = 0

    def choose(self) -> int:
        """The replica for the next request; one that rests only where all do."""
        now = self._clock()
        return min(
            range(len(self._wires)),
            key=lambda i: (self._rests_until[i] > now, self.in_flight[i], self._asked[i]),
        )

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[Answer, None]:
        """Send one request to the replica that has the least to do."""
        chosen = self.choose()
        self._turn += 1
        self._asked[chosen] = self._turn
        self.in_flight[chosen] += 1
        try:
            async with self._wires[chosen].exchange(method, path, headers, body) as answer:
                self._rests_until[chosen] = float("-inf")
                yield answer
        except Unreachable:
            self._rests_until[chosen] = self._clock() + REST_S
            raise
        finally:
            self.in_flight[chosen] -= 1

    async def close(self) -> None:
        """Close every connection to every replica."""
        for wire in self._wires:
            await wire.close()


def open_wire(endpoint: Endpoint, app: Asgi | None = None) -> Wire:
    """The wire that the scheme of ``endpoint.url`` asks for; one to each of several replicas.
    Raises UserError: another scheme than http, https or asgi, or asgi without an application."""
    if endpoint.replicas:
        single = dataclasses.replace(endpoint, replicas=[])
        urls = (endpoint.url, *endpoint.replicas)
        return Replicas([open_wire(dataclasses.replace(single, url=url), app) for url in urls])
    parts = urlsplit(endpoint.url)
    if parts.scheme in ("http", "https") and parts.hostname:
        return HttpWire(endpoint)
    if parts.scheme == "asgi" and app is not None:
        return AsgiWire(endpoint, app)
    raise UserError(
        f"judge.endpoint.url={endpoint.url!r} is not an address that a judge can have; give "
        "http://host:port/v1, https://host/v1, or asgi://simulated for a judge that has "
        "`simulated` settings."
    )
