"""Asks once for each key across processes: who leases a key asks, and the others wait.

A lease is renewed while its holder lives and lapses soon after its death; then a waiter takes
over. A failure is shared with those who wait, so that many cells do not ask a dead endpoint one
after the other. Calls of the store are batched: one transaction for all that came up together.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from judges.ask.replies import Accept, Store
from judges.endpoint.loop import cancel

log = logging.getLogger(__name__)

LEASE_S = 15.0
BEAT_S = 4.0
"""How often leases are renewed."""
POLL_S = 0.03
"""How often those who wait look for replies."""
TAKE_OVER_S = 1.0
"""How often they try to take over lapsed leases."""
AT_ONCE = 200
"""Keys that are leased or renewed before replies get a turn again."""
GATHER_S = 0.002
"""How long a reply waits for others to be stored with it."""


Value = dict[str, Any]
"""What the store keeps under a key, or how asking for it failed."""


class SingleFlight:
    """What one session asks for and waits for; lives in the session's event loop. A waiter takes
    over ``lease_s`` after the death of a holder; ``accept`` says whether a stored reply will do."""

    def __init__(
        self, store: Store, lease_s: float = LEASE_S, accept: Accept = lambda _: True
    ) -> None:
        self._store = store
        self._accept = accept
        self._lease_s = lease_s
        self._owner = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._claims: dict[str, asyncio.Future[Value | None]] = {}
        self._waiting: dict[str, tuple[asyncio.Future[Value | None], float]] = {}
        self._held: set[str] = set()
        self._searches: list[tuple[str, asyncio.Future[Value | None]]] = []
        self._puts: dict[str, tuple[Value, asyncio.Future[Value]]] = {}
        self._failures: dict[str, Value | None] = {}
        self._flush_at: asyncio.Handle | None = None
        self._tending: asyncio.Task[None] | None = None

    async def find(self, key: str) -> Value | None:
        """What is stored under a key, if it is accepted."""
        future: asyncio.Future[Value | None] = asyncio.Future()
        self._searches.append((key, future))
        self._soon(0.0)
        return await future

    async def claim(self, key: str) -> Value | None:
        """Lease a key and return None, or wait for what another holder gets for it. `put` or
        `give_up` must end the lease. One claim per key at a time."""
        future: asyncio.Future[Value | None] = asyncio.Future()
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

    async def put(self, key: str, value: Value) -> Value:
        """Store the reply; returns what the store holds then."""
        future: asyncio.Future[Value] = asyncio.Future()
        self._puts[key] = (value, future)
        self._soon(GATHER_S)
        return await future

    def give_up(self, key: str, failure: Value | None = None) -> None:
        """End a claim without a reply; a failure is given to those who wait."""
        self._failures[key] = failure
        self._soon(GATHER_S)

    async def close(self) -> None:
        """End all leases; the requests themselves must have ended."""
        if self._flush_at is not None:
            self._flush_at.cancel()
        if self._tending is not None:
            await cancel([self._tending])
        self._failures |= dict.fromkeys(self._held - self._failures.keys())
        self._flush()

    def _soon(self, seconds: float) -> None:
        if self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().call_later(seconds, self._flush)

    def _flush(self) -> None:
        self._flush_at = None
        if self._searches:
            searches, self._searches = self._searches, []
            keys = [key for key, _ in searches]
            _settle(
                searches, lambda: dict.fromkeys(keys) | self._store.get_many(keys, self._accept)
            )
        if self._puts:
            puts, self._puts = self._puts, {}
            self._held.difference_update(puts)
            values = {key: value for key, (value, _) in puts.items()}
            futures = [(key, future) for key, (_, future) in puts.items()]
            _settle(futures, lambda: self._store.put_many(values, self._accept))
        if self._failures:
            failures, self._failures = self._failures, {}
            self._held.difference_update(failures)
            try:
                self._store.release(failures, self._owner)
            except Exception as error:  # the leases lapse by themselves
                log.warning("leases could not be given back: %s", error)
        if self._claims:
            keys = list(self._claims)[:AT_ONCE]
            now = self._store.clock()
            self._waiting |= {key: (self._claims.pop(key), now) for key in keys}
            try:
                self._lease(keys)
            except Exception as error:
                self._fail(error)
        if self._claims:
            self._soon(0.0)
        if (self._held or self._waiting) and (self._tending is None or self._tending.done()):
            self._tending = asyncio.get_running_loop().create_task(self._tend())

    def _lease(self, keys: list[str]) -> None:
        """Lease what can be leased of the keys waited for, and hand out what is there."""
        granted, stored = self._store.lease(keys, self._owner, self._lease_s, self._accept)
        self._held |= granted
        for key in keys:  # in the order in which they were asked for
            if key in granted or key in stored:
                self._hand_out(key, stored.get(key))

    def _look(self) -> None:
        """Hand out what has come for those who wait."""
        if not self._waiting:
            return
        stored = self._store.get_many(list(self._waiting), self._accept)
        since = min(began for _, began in self._waiting.values())
        failed = self._store.failed(list(self._waiting), since)
        for key, value in {**failed, **stored}.items():
            self._hand_out(key, value)

    def _fail(self, error: Exception) -> None:
        """The store cannot be used: all who wait get the error."""
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(error)

    def _hand_out(self, key: str, shared: Value | None) -> None:
        future, _ = self._waiting.pop(key)
        if not future.done():
            future.set_result(shared)
        elif shared is None:
            self.give_up(key)

    async def _tend(self) -> None:
        """Look for replies while somebody waits; keep the leases up while there are any."""
        clock = asyncio.get_running_loop().time
        beat_s = min(BEAT_S, self._lease_s / 4)
        beat = look = clock()
        while self._held or self._waiting:
            await asyncio.sleep(POLL_S if self._waiting else beat_s)
            now = clock()
            try:
                self._look()
                if self._waiting and now - look >= TAKE_OVER_S:
                    look = now
                    self._lease(list(self._waiting))
                if self._held and now - beat >= beat_s:
                    beat = now
                    keys = list(self._held)
                    for start in range(0, len(keys), AT_ONCE):
                        part = [key for key in keys[start : start + AT_ONCE] if key in self._held]
                        self._store.renew(part, self._owner, self._lease_s)
                        await asyncio.sleep(0)
            except Exception as error:
                self._fail(error)


def _settle(
    futures: Sequence[tuple[str, asyncio.Future[Any]]], work: Callable[[], Mapping[str, Any]]
) -> None:
    """Do the work for all keys, and give each future its value or the error."""
    try:
        values, error = work(), None
    except Exception as failure:
        values, error = {}, failure
    for key, future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(values[key])
        else:
            future.set_exception(error)
