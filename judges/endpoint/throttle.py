"""Limits what is asked of one endpoint: requests at once, and rates per minute.

A request needs a slot; how many there are adapts to the endpoint (`Concurrency`), and so does the
pace (`judges.endpoint.pace`). Rates, the pace, and ``shared`` slots hold for all processes of a
sweep: they are kept in a folder beside the store. A killed process blocks nothing: the kernel drops
its locks, and a rate is a point in time, counted from the start of the host, that passes by itself.

    async with throttle.slot() as slot:
        permit = await throttle.permit(prompt_tokens)
        sent = throttle.send()
        ...
        throttle.end(sent, refused=False)
        throttle.settle(permit, tokens_in, tokens_out)
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

from judges.endpoint.at_once import AtOnce, Sent
from judges.endpoint.failures import Fault
from judges.endpoint.numbers import Numbers
from judges.endpoint.pace import Pace
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
HELD_S = 5.0
"""A process in which no request waited for its turn for so long is held back by nothing."""
LOOK_S = 2.0
"""How often a turn that is too late is asked for again."""
POLL_S = 0.02
"""How often a process looks for what another one has left."""
PATIENCE_S = 0.01
"""A request has passed if it is not refused for so much, and a fourth, longer than others were."""
WORSE = 1.5
"""A window of replies this much slower than the one before takes slots away."""
WINDOW = 16
"""Fewest replies that are compared with as many others."""

T = TypeVar("T")


class Concurrency(AbstractAsyncContextManager[None]):
    """Slots for requests of this process: ``most`` at first, fewer where more gain nothing.

    A window of replies that is ``WORSE`` than the one before leaves four fifths: with all slots
    taken throughput is slots over seconds per reply, so nothing was gained. Any other window in
    which all slots were taken adds one."""

    def __init__(self, most: int, adaptive: bool = True) -> None:
        self.most = most
        self.limit = float(most)
        self.taken = 0
        self._adaptive = adaptive
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.seconds = 0.0
        """That a reply takes, of late; 0 if none has come."""
        self._peak = 0
        self._seconds: list[float] = []
        self._before: float | None = None

    async def __aenter__(self) -> None:
        await self.enter()

    async def enter(self, first: bool = False) -> None:
        """Wait for a slot, before all others if ``first``."""
        if not self._waiting and self.taken < int(self.limit):
            self._take()
            return
        turn = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if first else self._waiting.append)(turn)
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

    def answered(self, seconds: float) -> None:
        """Note the seconds that a reply took."""
        self.seconds += (0.1 if self.seconds else 1.0) * (seconds - self.seconds)
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

    def __init__(
        self,
        requests_per_min: float | None,
        tokens_per_min: float | None,
        file: Path | None = None,
        clock: Callable[[], float] = host.now,
        boot: str | None = None,
    ) -> None:
        self._seconds_each = [
            (60.0 + BURST_S) / limit if limit else 0.0
            for limit in (requests_per_min, tokens_per_min)
        ]
        self._clock = clock
        self._until = Numbers((0.0, 0.0), file, boot)

    def reserve(self, requests: float, tokens: float) -> float:
        """Add to what is used and return the seconds until the turn; negative gives back.
        Raises UserError: the file cannot be used."""
        return self._until.change(lambda until: self._reserved(until, (requests, tokens)))

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


class Slot:
    """A slot for one verdict's requests, one after the other, while the block is entered."""

    def __init__(self, concurrency: Concurrency, shared: SharedConcurrency | None) -> None:
        self._concurrency, self._shared = concurrency, shared
        self._held = AsyncExitStack()

    async def __aenter__(self) -> Slot:
        await self.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def enter(self, first: bool = False) -> None:
        """Wait for a slot."""
        await self._concurrency.enter(first)
        self._held.push_async_exit(self._concurrency)
        if self._shared is not None:
            await self._held.enter_async_context(self._shared.slot())

    async def leave(self) -> None:
        """Give the slot to another request."""
        await self._held.aclose()

    @asynccontextmanager
    async def left(self) -> AsyncGenerator[None]:
        """Within the block another request may have the slot; before all others after it."""
        await self.leave()
        yield
        await self.enter(first=True)


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
        self._adaptive = endpoint.adaptive
        self._pace_file = mine and mine / "pace"
        self._pace = Pace()
        """Of this process, until there is a file."""
        self._shared_pace: Numbers | None = None
        self._clock: Callable[[], float] | None = None
        self._number = 0.0
        self._sent: deque[Sent] = deque()
        """Requests that have not been counted, oldest first."""
        self._refusal_s = 0.0
        self._at_once = AtOnce(self._now)
        self._ended = asyncio.Event()
        self._rate_per_s = math.inf
        """The pace when it was last looked at; 0 while nothing may be sent."""
        self._held_at = -math.inf
        """When a request last waited for its turn."""

    def slot(self) -> Slot:
        """A slot for one verdict's requests, one after the other."""
        return Slot(self.concurrency, self._shared)

    def send(self) -> Sent:
        """Note that a request is sent now; `end` must follow."""
        sent = Sent(self._now(), self._number, *self._at_once.begin())
        if self._adaptive:
            patience_s = 1.25 * self._refusal_s + PATIENCE_S
            sent.counted_at = sent.at + patience_s
            self._sent.append(sent)
            asyncio.get_running_loop().call_later(patience_s, self._count_next)
        return sent

    def end(self, sent: Sent, refused: bool | None = None, asked_s: float = 0.0) -> None:
        """Note how a request ended: refused since the endpoint is asked too much, with the seconds
        that it asks to wait; answered; or, None, in a way that says nothing of this. What is noted
        first counts."""
        if sent.ended:
            return
        self._at_once.under_way.change(-1)
        self._ended.set()
        sent.ended, sent.refused, sent.asked_s = True, refused, asked_s
        if refused:
            took_s = self._now() - sent.at
            if sent.counted:  # as one that passed
                self._count(sent)
            for younger in self._sent:
                younger.ahead -= younger.at > sent.at  # the endpoint did not work on this one
            self._refusal_s = max(took_s, 0.9 * self._refusal_s)

    def uncounted_s(self, sent: Sent) -> float:
        """Seconds until the pace is told of a request, and of those sent right after it."""
        return max(0.0, sent.counted_at + PATIENCE_S - self._now())

    def _count_next(self) -> None:
        self._count(self._sent.popleft())

    def _count(self, sent: Sent) -> None:
        """Tell the pace of a request, one after the other in the order in which they were sent."""
        sent.counted = True
        if sent.ended and sent.refused is None:
            return
        now, refused = self._now(), bool(sent.refused)
        with suppress(UserError):  # which the next one that waits for its turn is told
            if refused:
                self._share()
            if self._at_once.explains(sent, now):
                self._ended.set()
                return
            self._change(
                lambda pace: pace.note(now, sent.number, refused, sent.asked_s, sent.at), sent.at
            )

    def _share(self) -> None:
        """Share the pace by a file. Most endpoints refuse nothing, and need none."""
        if self._pace_file is not None and self._shared_pace is None:
            self._shared_pace = Numbers(_values(Pace()), self._pace_file)
            self._change(lambda pace: pace.add(self._pace))
            self._at_once.share(self._pace_file.parent)

    def _change(self, work: Callable[[Pace], T], began: float = math.inf) -> T:
        now = self._now()

        def change(pace: Pace) -> tuple[Pace, T]:
            if not pace.is_of(now):
                pace = Pace.beginning(min(began, now))
            result = work(pace)
            self._number = pace.number
            self._rate_per_s = 0.0 if pace.closed_until > now else pace.rate
            return pace, result

        def change_numbers(numbers: tuple[float, ...]) -> tuple[tuple[float, ...], T]:
            pace, result = change(Pace(*numbers))
            return _values(pace), result

        if self._shared_pace is not None:
            return self._shared_pace.change(change_numbers)
        self._pace, result = change(self._pace)
        return result

    def throttled(self) -> tuple[float, float] | None:
        """Calls a second that the endpoint allows, to all processes, and those that this one could
        send; None if it holds nothing back now. To be called from any thread."""
        seconds = self.concurrency.seconds
        if not seconds or self._now() - self._held_at > HELD_S:
            return None
        allowed_per_s = min(self._rate_per_s, self._at_once.most / seconds)
        possible_per_s = self.concurrency.limit / seconds
        return None if allowed_per_s >= possible_per_s else (allowed_per_s, possible_per_s)

    async def _room(self) -> None:
        """Wait until the endpoint works on one request more, or until that is tried."""
        while (wait_s := self._at_once.enter(self._now())) > 0:
            self._held_at = self._now()
            self._ended.clear()
            if self._shared_pace is not None:
                wait_s = min(wait_s, POLL_S)  # another process may end one
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._ended.wait()

    def _now(self) -> float:
        """Seconds by a clock that all processes have in common, if there are others."""
        if self._pace_file is not None:
            return host.now()
        if self._clock is None:
            self._clock = asyncio.get_running_loop().time
        return self._clock()

    async def _turn(self, within_s: float) -> None:
        """Wait for this process's next turn at the pace that the endpoint allows.
        Raises Fault: it is closed for longer."""
        if not self._adaptive:
            return
        if self._pace_file is not None and self._pace_file.exists():
            self._share()
        while (wait_s := self._change(lambda pace: pace.wait_s(self._now()))) > 0:
            self._held_at = self._now()
            if wait_s >= within_s:
                reason = (
                    f"the endpoint refuses more, and this request's turn is {wait_s:.1f} s away,"
                    f" past the deadline of {within_s:g} s"
                )
                raise Fault(Outcome.rate_limited, reason, again=False)
            await asyncio.sleep(wait_s)

    async def permit(self, prompt_tokens: float, within_s: float = math.inf) -> float:
        """Wait until a request of about so many tokens may be sent, at the pace that the endpoint
        allows and within the limits that were set; returns the tokens reserved.

        The requests of this process queue for it, so that the file holds at most one turn of each
        process. Time in the queue does not count.
        Raises Fault: not within so many seconds from the head of the queue."""
        async with self._line:
            await self._turn(within_s)
            expected = await self._rated(prompt_tokens, within_s)
            try:
                await self._room()
            except BaseException:
                self._give_back(expected)
                raise
            return expected

    def unused(self, permit: float) -> None:
        """A permit is not needed: nothing is sent."""
        self._at_once.leave()
        self._give_back(permit)
        self._ended.set()

    def _give_back(self, permit: float) -> None:
        if self._rate is not None:
            self._rate.reserve(-1, -permit)

    async def _rated(self, prompt_tokens: float, within_s: float) -> float:
        """Wait for a turn within the limits that were set; the tokens reserved.
        Raises Fault: not within so many seconds."""
        rate = self._rate
        if rate is None:
            return 0.0
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


def _values(pace: Pace) -> tuple[float, ...]:
    return tuple(vars(pace).values())


def address(endpoint: Endpoint) -> str:
    """The name of a limit, shared by all that use the same model, URL and key."""
    who = "\0".join((endpoint.url, endpoint.model, endpoint.api_key_env or ""))
    return hashlib.blake2b(who.encode(), digest_size=8).hexdigest()
