"""An endpoint that refuses requests by chance, or by one of four limits; and what got through.

A limit is named by what it is and how much: ``bucket-10`` (requests a second, with a bucket of one
second's), ``requests-600`` and ``tokens-132000`` (a minute, which begins with its first request),
``at_once-8`` (requests that it works on), ``random-0.083`` (share of requests, whatever is asked).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from unittest import mock

from judges.endpoint.client import Channel, ask
from judges.endpoint.replicas import open_wire
from judges.endpoint.transport import Asgi
from judges.fault_injection.server import GOOD
from study.config.schema import Endpoint
from study.system import clock as host
from tests.waiting import on_own_clock

MINUTE_S = 60.0
WAIT_S = 1.0
"""What a refusal asks to wait that does not know how long."""
REFUSED_S = 0.005
"""How long a refusal takes where a case does not say it."""
WARM_UP_S = 10.0
"""Refusals count after this."""
CALLERS = 12
"""So many times the calls that may be in flight want to be asked at once."""
PROMPT = "Say how good this is. " * 40
TOKENS = len(PROMPT) / 4


class Limit(Protocol):
    """Decides on requests; ``now`` is in seconds by any clock that does not go back."""

    def refuse(self, now: float) -> float | None:
        """None if the request may pass, else the seconds that it is asked to wait."""
        ...

    def end(self) -> None:
        """A request that had passed has its answer."""
        ...


@dataclass
class Bucket:
    """Holds ``per_s`` tokens at most, as many as come in a second; each request takes one."""

    per_s: float
    _level: float = math.inf
    _at: float = 0.0

    def refuse(self, now: float) -> float | None:
        self._level = min(max(1.0, self.per_s), self._level + (now - self._at) * self.per_s)
        self._at = now
        if self._level < 1:
            return (1 - self._level) / self.per_s
        self._level -= 1
        return None

    def end(self) -> None:
        pass


@dataclass
class Minute:
    """Admits ``most`` requests, or tokens, in each minute; who comes later waits for its end."""

    most: float
    each: float = 1.0
    _ends: float = -math.inf
    _used: float = 0.0

    def refuse(self, now: float) -> float | None:
        if now >= self._ends:
            self._ends, self._used = now + MINUTE_S, 0.0
        if self._used + self.each > self.most:
            return self._ends - now
        self._used += self.each
        return None

    def end(self) -> None:
        pass


@dataclass
class AtOnce:
    """Works on ``most`` requests at once."""

    most: float
    _working: int = 0

    def refuse(self, now: float) -> float | None:
        if self._working >= self.most:
            return WAIT_S
        self._working += 1
        return None

    def end(self) -> None:
        self._working -= 1


@dataclass
class Chance:
    """Refuses a share of all requests."""

    share: float
    _draws: random.Random = field(default_factory=lambda: random.Random(0))

    def refuse(self, now: float) -> float | None:
        return WAIT_S if self._draws.random() < self.share else None

    def end(self) -> None:
        pass


LIMITS: dict[str, Callable[[float], Limit]] = {
    "bucket": Bucket,
    "requests": Minute,
    "tokens": lambda most: Minute(most, TOKENS),
    "at_once": AtOnce,
    "random": Chance,
}


@dataclass(frozen=True)
class Case:
    """One endpoint and how it is asked."""

    limit: str
    latency_s: float
    in_flight: int
    """Requests at once that all processes together may have."""
    tells: bool = True
    """Whether a refusal says how long to wait."""
    spread: float = 0.0
    """Latencies are within this share of ``latency_s``, as likely shorter as longer."""
    refused_s: float = REFUSED_S
    """How long a refusal takes."""

    @property
    def amount(self) -> float:
        return float(self.limit.partition("-")[2])

    @property
    def possible_per_s(self) -> float:
        """Calls a second that could come through; without refusals where they are random."""
        limits = {
            "bucket": self.amount,
            "requests": self.amount / MINUTE_S,
            "tokens": self.amount / TOKENS / MINUTE_S,
            "at_once": self.amount / self.latency_s,
        }
        undisturbed = self.in_flight / self.latency_s
        return min(undisturbed, limits.get(self.limit.partition("-")[0], math.inf))


@dataclass
class Counts:
    """What came of the requests, by whole seconds from the first one."""

    passed: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)

    def used(self, case: Case, seconds: float) -> float:
        """Share of what could come through; what a minute holds may pass in its first seconds."""
        if case.limit.startswith(("requests", "tokens")):
            window_s = math.ceil(seconds / MINUTE_S) * MINUTE_S
            return self.passed.total() / (window_s * case.possible_per_s)
        return _later(self.passed) / ((seconds - WARM_UP_S) * case.possible_per_s)

    def refused_share(self) -> float:
        """Share of requests that were refused after the first seconds."""
        refused = _later(self.refused)
        return refused / max(1, refused + _later(self.passed))


def _later(counter: Counter[int]) -> int:
    return sum(count for second, count in counter.items() if second >= WARM_UP_S)


def limited(case: Case, counts: Counts) -> Asgi:
    """An application that answers each request after its latency, or refuses it."""
    kind, _, _ = case.limit.partition("-")
    limit = LIMITS[kind](case.amount)
    start: float | None = None
    draws = random.Random(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal start
        clock = asyncio.get_running_loop().time
        start = clock() if start is None else start
        wait_s = limit.refuse(clock())
        headers = [(b"content-type", b"application/json")]
        if wait_s is not None:
            counts.refused[int(clock() - start)] += 1
            await asyncio.sleep(case.refused_s)
            if case.tells:
                headers.append((b"retry-after", b"%d" % max(1, math.ceil(wait_s))))
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": {"message": "slow"}}'})
            return
        try:
            await asyncio.sleep(case.latency_s * draws.uniform(1 - case.spread, 1 + case.spread))
        finally:
            limit.end()
        counts.passed[int(clock() - start)] += 1
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": GOOD})

    return app


async def ask_without_pause(channel: Channel, seconds: float) -> None:
    """Ask for so long, from more callers than may be in flight."""

    async def caller() -> None:
        while True:
            await ask(channel, {"model": "m", "messages": [{"role": "user", "content": PROMPT}]})

    tasks = [
        asyncio.create_task(caller()) for _ in range(CALLERS * channel.endpoint.max_concurrency)
    ]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def measure(case: Case, seconds: float, processes: int = 1) -> Counts:
    """What comes through on a clock of its own; ``processes`` share what they learn in a folder, as
    the cells of a sweep do."""
    counts = Counts()

    async def work() -> None:
        app = limited(case, counts)
        with ExitStack() as stack:
            folder = None
            if processes > 1:
                stack.enter_context(mock.patch.object(host, "now", asyncio.get_running_loop().time))
                folder = Path(stack.enter_context(TemporaryDirectory()))
            endpoint = Endpoint("asgi://limited", "m", max_concurrency=case.in_flight // processes)
            channels = [
                Channel(
                    endpoint, open_wire(endpoint, app), "", folder, jitter=random.Random(number)
                )
                for number in range(processes)
            ]
            await asyncio.gather(*(ask_without_pause(channel, seconds) for channel in channels))

    on_own_clock(work())
    return counts
