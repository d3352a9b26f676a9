"""Several servers of one model behind one ``Wire``: each request goes to the least loaded one.

A server that accepts no connection is left alone for a while; otherwise, having nothing to do, it
would look like the least loaded one and draw every request.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from judges.endpoint.address import check_address
from judges.endpoint.transport import Answer, Asgi, AsgiWire, HttpWire, Unreachable, Wire
from study.config.schema import Endpoint

REST_S = 5.0


Addresses = tuple[str, ...]
MOVED: dict[Addresses, Addresses] = {}
"""Addresses that a service had when it was found -> those it has now; who uses it keeps this."""


@dataclass
class _Way:
    """A wire to one replica, and what is known of it."""

    wire: Wire
    in_flight: int = 0
    """Requests that it is working on for this process."""
    last_turn: int = 0
    """The turn of its last request."""
    rests_until: float = float("-inf")


class Replicas:
    """Wires to the replicas, one each; ties go to the one that was asked longest ago."""

    def __init__(self, wires: Sequence[Wire], clock: Callable[[], float] = time.monotonic) -> None:
        self._ways = [_Way(wire) for wire in wires]
        self._clock = clock
        self._turn = 0

    @property
    def in_flight(self) -> list[int]:
        """Requests that each replica is working on for this process."""
        return [way.in_flight for way in self._ways]

    def choose(self) -> int:
        """The replica for the next request; one that rests only where all do."""
        now, ways = self._clock(), self._ways
        return min(
            range(len(ways)),
            key=lambda i: (ways[i].rests_until > now, ways[i].in_flight, ways[i].last_turn),
        )

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[Answer, None]:
        """Send one request to the replica that has the least to do."""
        index = self.choose()  # first: a service that has moved has other ways then
        way = self._ways[index]
        self._turn += 1
        way.last_turn = self._turn
        way.in_flight += 1
        try:
            async with way.wire.exchange(method, path, headers, body) as answer:
                way.rests_until = float("-inf")
                yield answer
        except Unreachable:
            way.rests_until = self._clock() + REST_S
            raise
        finally:
            way.in_flight -= 1

    async def close(self) -> None:
        """Close every connection to every replica."""
        for way in self._ways:
            await way.wire.close()


class Following(Replicas):
    """Replicas of a service that may move: the list is looked up for every request."""

    def __init__(self, urls: Addresses, opens: Callable[[str], Wire]) -> None:
        self._first, self._current, self._opens = urls, urls, opens
        self._by_url = {url: _Way(opens(url)) for url in urls}
        super().__init__([])
        self._ways = list(self._by_url.values())

    def choose(self) -> int:
        """As of all replicas, among those that there are now."""
        current = MOVED.get(self._first, self._first)
        if current != self._current:
            for url in current:
                if url not in self._by_url:
                    self._by_url[url] = _Way(self._opens(url))
            self._ways = [self._by_url[url] for url in current]
            self._current = current
        return super().choose()

    async def close(self) -> None:
        """Close every connection, those to replicas that are gone too."""
        self._ways = list(self._by_url.values())
        await super().close()


def open_wire(endpoint: Endpoint, app: Asgi | None = None) -> Wire:
    """The wire that the scheme of ``endpoint.url`` asks for; one to each of several replicas.
    Raises UserError: an address as `check_address` refuses it."""
    urls = (endpoint.url, *endpoint.replicas)

    def opens(url: str) -> Wire:
        return _open_one(dataclasses.replace(endpoint, url=url, replicas=[]), app)

    if urls in MOVED:
        return Following(urls, opens)
    return Replicas([opens(url) for url in urls]) if endpoint.replicas else opens(endpoint.url)


def _open_one(endpoint: Endpoint, app: Asgi | None) -> Wire:
    check_address(endpoint.url, in_process=app is not None)
    if app is not None and endpoint.url.startswith("asgi"):
        return AsgiWire(endpoint, app)
    return HttpWire(endpoint)
