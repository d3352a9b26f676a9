"""One flight per key across processes: whoever leases a key asks, all others wait for the reply.

A lease is kept up while its holder lives and lapses soon after the holder died, so that a waiter
takes over. A holder that fails says how, and those who waited take that for their own outcome:
eight cells must not knock at a dead endpoint one after the other. All this goes to the store in
batches, one transaction for whatever came up together.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from judges.store import Accept, Store

log = logging.getLogger(__name__)

LEASE_S = 15.0
BEAT_S = 4.0
"""How often leases are kept up."""
POLL_S = 0.03
"""How often those who wait look for replies."""
TAKE_OVER_S = 1.0
"""How often they look for leases that have lapsed."""
AT_ONCE = 200
"""Keys that are leased or kept up before replies get a turn again."""
GATHER_S = 0.002
"""How long a reply waits for others that go to the store with it."""


@dataclass(frozen=True)
class Landed:
    """What somebody else obtained: a stored reply, or how it failed."""

    value: dict[str, Any]
    failed: bool


class SingleFlight:
    """What one session asks for and waits for; lives in the session's event loop.

    Args:
        store: shared with other processes.
        lease_s: how long after the death of a holder a waiter may take over.
        accept: whether a stored reply will do for this session.
    """

    def __init__(
        self, store: Store, lease_s: float = LEASE_S, accept: Accept = lambda _: True
    ) -> None:
        self._store = store
        self._accept = accept
        self._lease_s = lease_s
        self._owner = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._claims: dict[str, asyncio.Future[Landed | None]] = {}
        self._waiting: dict[str, tuple[asyncio.Future[Landed | None], float]] = {}
        self._held: set[str] = set()
        self._searches: list[tuple[str, asyncio.Future[dict[str, Any] | None]]] = []
        self._puts: dict[str, tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        self._failures: dict[str, dict[str, Any] | None] = {}
        self._flush_at: asyncio.Handle | None = None
        self._tending: asyncio.Task[None] | None = None

    async def find(self, key: str) -> dict[str, Any] | None:
        """What is stored under a key, if it will do; asks nobody."""
        future: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._searches.append((key, future))
        self._soon(0.0)
        return await future

    async def claim(self, key: str) -> Landed | None:
        """Wait for the reply that somebody else is asking for; None where it is ours to ask for,
        which `put` or `give_up` must end. One claim per key at a time."""
        future: asyncio.Future[Landed | None] = asyncio.get_running_loop().create_future()
        self._claims[key] = future
        self._soon(0.0)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.result() is None:
                self.give_up(key)
            self._claims.pop(key, None)
            self._waiting.pop(key, None)
            raise

    async def put(self, key: str, value: dict[str, Any]) -> dict[str, Any]:
        """Store the reply; gives back what the store holds afterwards."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._puts[key] = (value, future)
        self._soon(GATHER_S)
        return await future

    def give_up(self, key: str, failure: dict[str, Any] | None = None) -> None:
        """End a claim without a reply. With a failure, those who wait take it for theirs."""
        self._failures[key] = failure
        self._soon(GATHER_S)

    async def close(self) -> None:
        """Give everything back; the flights themselves must have ended."""
        if self._flush_at is not None:
            self._flush_at.cancel()
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        self._failures |= dict.fromkeys(self._held - self._failures.keys())
        self._flush()

    def _soon(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._flush_at is None:
            self._flush_at = loop.call_later(seconds, self._flush)

    def _flush(self) -> None:
        self._flush_at = None
        if self._searches:
            searches, self._searches = self._searches, []
            keys = [key for key, _ in searches]
            _settle(
                [future for _, future in searches],
                lambda: dict.fromkeys(keys) | self._store.get_many(keys, self._accept),
                keys,
            )
        if self._puts:
            puts, self._puts = self._puts, {}
            self._held.difference_update(puts)
            _settle(
                [future for _, future in puts.values()],
                lambda: self._store.put_many(
                    {key: value for key, (value, _) in puts.items()}, self._accept
                ),
                list(puts),
            )
        if self._failures:
            failures, self._failures = self._failures, {}
            self._held.difference_update(failures)
            try:
                self._store.release(failures, self._owner)
            except Exception as error:  # the leases lapse by themselves
                log.warning("leases could not be given back: %s", error)
        if self._claims:
            keys = list(self._claims)[:AT_ONCE]
            claims = {key: self._claims.pop(key) for key in keys}
            now = self._store.clock()
            self._waiting |= {key: (future, now) for key, future in claims.items()}
            try:
                self._try(list(claims))
            except Exception as error:
                self._fail(error)
        if self._claims:
            self._soon(0.0)
        if (self._held or self._waiting) and (self._tending is None or self._tending.done()):
            self._tending = asyncio.get_running_loop().create_task(self._tend())

    def _try(self, keys: list[str]) -> None:
        """Lease what can be leased of the keys waited for, and hand out what is there."""
        granted, stored = self._store.lease(keys, self._owner, self._lease_s, self._accept)
        self._held |= granted
        for key in keys:  # in the order in which they were asked for
            if key in granted:
                self._land(key, None)
        for key, value in stored.items():
            self._land(key, Landed(value, failed=False))

    def _look(self) -> None:
        """Hand out what has come for those who wait."""
        if not self._waiting:
            return
        for key, value in self._store.get_many(list(self._waiting), self._accept).items():
            self._land(key, Landed(value, failed=False))
        since = min((began for _, began in self._waiting.values()), default=0.0)
        for key, value in self._store.failed(list(self._waiting), since).items():
            self._land(key, Landed(value, failed=True))

    def _fail(self, error: Exception) -> None:
        """The store cannot be used: whoever waits is told, and nobody waits for ever."""
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(error)

    def _land(self, key: str, landed: Landed | None) -> None:
        future, _ = self._waiting.pop(key)
        if not future.done():
            future.set_result(landed)
        elif landed is None:
            self.give_up(key)

    async def _tend(self) -> None:
        """Look for replies while somebody waits; keep the leases up while there are any."""
        clock = asyncio.get_running_loop().time
        beat = look = clock()
        while self._held or self._waiting:
            await asyncio.sleep(POLL_S if self._waiting else min(BEAT_S, self._lease_s / 4))
            now = clock()
            try:
                self._look()
                if self._waiting and now - look >= TAKE_OVER_S:
                    look = now
                    self._try(list(self._waiting))
                if self._held and now - beat >= min(BEAT_S, self._lease_s / 4):
                    beat = now
                    held = list(self._held)
                    for start in range(0, len(held), AT_ONCE):
                        part = [key for key in held[start : start + AT_ONCE] if key in self._held]
                        self._store.renew(part, self._owner, self._lease_s)
                        await asyncio.sleep(0)
            except Exception as error:
                self._fail(error)


def _settle(
    futures: Sequence[asyncio.Future[Any]], work: Callable[[], Mapping[str, Any]], keys: list[str]
) -> None:
    """Do the work for all of them, and give each its part or the error."""
    try:
        done = work()
    except Exception as error:
        for future in futures:
            if not future.done():
                future.set_exception(error)
        return
    for key, future in zip(keys, futures, strict=True):
        if not future.done():
            future.set_result(done[key])
