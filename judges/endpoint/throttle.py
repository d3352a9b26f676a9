"""Limits what is asked of one endpoint: requests at once, and rates per minute.

A request needs a slot; how many there are adapts to the endpoint (`Concurrency`). Rates, and
``shared`` slots, hold for all processes of a sweep: they are kept in a folder beside the store.
A killed process blocks nothing: the kernel drops its locks, and a rate is a point in time, counted
from the start of the host, that passes by itself.

    async with throttle.slot():
        permit = await throttle.permit(prompt_tokens)
        ...
        throttle.settle(permit, tokens_in, tokens_out)
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import random
import struct
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from judges.endpoint.failures import Fault
from study.config.schema import Endpoint
from study.errors import UserError
from study.system import clock as host
from study.system import locks
from study.verdict import Outcome

BURST_S = 1.0
"""How much of a minute's allowance may be used at once, in seconds of it."""
HORIZON_S = 600.0
"""A rate used up further ahead is damaged, since a process asks for one turn at a time; it counts
as unused, as one of another start of the host does."""
LOOK_S = 2.0
"""How often a turn that is too late is asked for again."""
POLL_S = 0.02
"""How often a process looks for a slot that another one has left."""
WORSE = 1.5
"""A window of replies this much slower than the one before takes slots away."""
WINDOW = 16
"""Fewest replies that are compared with as many others."""


class Concurrency(AbstractAsyncContextManager[None]):
    """Slots for requests of this process: ``most`` at first, fewer while the endpoint is overrun.

    A 429 halves them, at most once per the time of a reply. A window of replies that is ``WORSE``
    than the one before leaves four fifths: with all slots taken throughput is slots over seconds
    per reply, so nothing was gained. Any other window in which all slots were taken adds one."""

    def __init__(
        self, most: int, adaptive: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self.limit = float(most)
        self.taken = 0
        self._adaptive = adaptive
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._peak = 0
        self._seconds: list[float] = []
        self._before: float | None = None
        self._calm_from = float("-inf")

    async def __aenter__(self) -> None:
        if not self._waiting and self.taken < int(self.limit):
            self._take()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if not turn.cancelled():  # the slot came just when nobody wanted it any more
                self.taken -= 1
            with suppress(ValueError):
                self._waiting.remove(turn)
            self._admit()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.taken -= 1
        self._admit()

    def overrun(self) -> None:
        """The endpoint said that it is asked too much."""
        now = self._clock()
        if self._adaptive and now >= self._calm_from:
            self.limit = max(1.0, self.limit / 2)
            recent = self._seconds[-1] if self._seconds else self._before or 1.0
            self._calm_from = now + recent  # what is under way was sent before this was known
            self._open_window(None)

    def answered(self, seconds: float) -> None:
        """Note the seconds that a reply took."""
        if not self._adaptive:
            return
        self._seconds.append(seconds)
        if len(self._seconds) < max(WINDOW, 2 * int(self.limit)):
            return
        mean = sum(self._seconds) / len(self._seconds)
        if self._peak >= int(self.limit):
            if self._before is not None and mean > WORSE * self._before:
                self.limit = max(1.0, self.limit * 0.8)
            else:
                self.limit = min(float(self.most), self.limit + 1)
        self._open_window(mean)
        self._admit()

    def _open_window(self, before: float | None) -> None:
        self._before, self._seconds, self._peak = before, [], self.taken

    def _take(self) -> None:
        self.taken += 1
        self._peak = max(self._peak, self.taken)

    def _admit(self) -> None:
        while self._waiting and self.taken < int(self.limit):
            turn = self._waiting.popleft()
            if not turn.done():
                self._take()
                turn.set_result(None)


class RateLimit:
    """Requests and tokens per minute, None for no limit, as two points in time up to which each is
    used.

    A request adds to them under a lock and so learns its turn at once. No minute holds more than
    the limit and one request. The ``file`` is shared with other processes; ``clock`` counts seconds
    from the start ``boot`` of the host."""

    _FORM = struct.Struct("<32s2d")

    def __init__(
        self,
        requests_per_min: float | None,
        tokens_per_min: float | None,
        file: Path | None = None,
        clock: Callable[[], float] = host.now,
        boot: str | None = None,
    ) -> None:
        self._boot = (host.boot() if boot is None else boot).encode()
        self._seconds_each = [
            (60.0 + BURST_S) / limit if limit else 0.0
            for limit in (requests_per_min, tokens_per_min)
        ]
        self._clock = clock
        self._here: tuple[float, ...] = (0.0, 0.0)
        self._file = file
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def reserve(self, requests: float, tokens: float) -> float:
        """Add to what is used and return the seconds until the turn; negative gives back.
        Raises UserError: the file cannot be used."""
        amounts = (requests, tokens)
        if self._file is None:
            self._here, wait = self._reserved(self._here, amounts)
            return wait
        try:
            file = locks.take(self._file, math.inf)
            assert file is not None
            with file:
                data = os.pread(file.fileno(), self._FORM.size, 0)
                current = len(data) == self._FORM.size and data.startswith(self._boot)
                until = self._FORM.unpack(data)[1:] if current else (0.0, 0.0)
                until, wait = self._reserved(until, amounts)
                os.pwrite(file.fileno(), self._FORM.pack(self._boot, *until), 0)
                return wait
        except OSError as error:
            raise UserError(
                f"The request limits that all processes share cannot be written to {self._file}"
                f" ({error}). Free space or correct the folder's permissions, then rerun the"
                " command. The file may be removed while no sweep runs."
            ) from error

    def _reserved(
        self, until: tuple[float, ...], amounts: tuple[float, float]
    ) -> tuple[tuple[float, ...], float]:
        """The two points in time after the amounts were added, and the seconds to wait."""
        now = self._clock()
        starts = [end if end <= now + HORIZON_S else now for end in until]  # NaN becomes now
        starts = [
            max(start, now) if amount > 0 else start
            for start, amount in zip(starts, amounts, strict=True)
        ]
        used = tuple(
            start + each * amount
            for start, each, amount in zip(starts, self._seconds_each, amounts, strict=True)
        )
        return used, max(0.0, max(starts) - BURST_S - now)


class SharedConcurrency:
    """``most`` slots for all processes together; each is the lock on a file."""

    def __init__(self, most: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._files = [folder / f"place-{number:04d}" for number in range(most)]
        self._turn = asyncio.Lock()
        self._random = random.Random()

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None, None]:
        """Wait for a slot and keep it."""
        async with self._turn:  # one request of this process looks at a time
            while (place := self._try()) is None:
                await asyncio.sleep(POLL_S)
        with place:
            yield

    def _try(self) -> IO[str] | None:
        start = self._random.randrange(len(self._files))
        places = map(locks.take, self._files[start:] + self._files[:start])
        return next((place for place in places if place is not None), None)


class Throttle:
    """All that holds back requests to one endpoint; its limits are shared with other processes by
    way of ``folder``, or kept to this one."""

    def __init__(self, endpoint: Endpoint, folder: Path | None = None) -> None:
        self.concurrency = Concurrency(endpoint.max_concurrency, endpoint.adaptive)
        mine = None if folder is None else folder / address(endpoint)
        self._rate = None
        if endpoint.requests_per_min or endpoint.tokens_per_min:
            self._rate = RateLimit(
                endpoint.requests_per_min, endpoint.tokens_per_min, mine and mine / "rate"
            )
        shared = endpoint.shared and mine is not None
        self._shared = SharedConcurrency(endpoint.max_concurrency, mine) if shared else None
        self._reply_tokens = 0.0
        self._most_tokens = endpoint.tokens_per_min or math.inf
        self._line = asyncio.Lock()

    def slot(self) -> AbstractAsyncContextManager[None]:
        """A slot for one verdict's requests, one after the other."""
        return self.concurrency if self._shared is None else self._both(self._shared)

    @asynccontextmanager
    async def _both(self, shared: SharedConcurrency) -> AsyncGenerator[None, None]:
        async with self.concurrency, shared.slot():
            yield

    async def permit(self, prompt_tokens: float, within_s: float = math.inf) -> float:
        """Wait until a request of about so many tokens may be sent; returns the tokens reserved.

        The requests of this process queue for it, so that the file holds at most one turn of each
        process. Time in the queue does not count.
        Raises Fault: not within so many seconds from the head of the queue."""
        rate = self._rate
        if rate is None:
            return 0.0
        async with self._line:
            clock = asyncio.get_running_loop().time
            end = clock() + within_s
            while True:
                expected = min(prompt_tokens + self._reply_tokens, self._most_tokens)
                wait = rate.reserve(1, expected)
                remaining_s = end - clock()
                if wait <= remaining_s:
                    try:
                        await asyncio.sleep(wait)
                    except BaseException:
                        rate.reserve(-1, -expected)
                        raise
                    return expected
                rate.reserve(-1, -expected)
                if remaining_s <= 0:
                    reason = (
                        f"this request's turn is {wait:.0f} s away, past the deadline of "
                        f"{within_s:g} s: others use up the requests_per_min or tokens_per_min"
                    )
                    raise Fault(Outcome.rate_limited, reason, again=False)
                await asyncio.sleep(min(remaining_s, LOOK_S))

    def settle(self, set_aside: float, tokens_in: int | None, tokens_out: int | None) -> None:
        """Correct the reservation by what the endpoint says that the request took."""
        if self._rate is None or tokens_in is None or tokens_out is None:
            return
        # At most one minute's worth: a wrong count must not block all processes.
        took = min(tokens_in + tokens_out, self._most_tokens)
        self._rate.reserve(0, took - set_aside)
        self._reply_tokens += 0.2 * (min(tokens_out, self._most_tokens) - self._reply_tokens)


def address(endpoint: Endpoint) -> str:
    """The name of a limit, shared by all that use the same model, URL and key."""
    who = "\0".join((endpoint.url, endpoint.model, endpoint.api_key_env or ""))
    return hashlib.blake2b(who.encode(), digest_size=8).hexdigest()
