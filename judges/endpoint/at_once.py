"""The number of requests at once that an endpoint works on, learned from what it refuses.

A pace (`judges.endpoint.pace`) does not help where more at once are refused than one process may
have under way: there the refused requests are those that were sent while the most were.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TypeVar

from judges.endpoint.numbers import Numbers
from judges.endpoint.pace import KEPT_S, SHORTEST_S
from judges.endpoint.under_way import UnderWay

CROWD, FEW = 64, 2
"""Requests that are looked at for the number at once, and how many of them must be refused."""
FIRST_TRY_S, LONGEST_TRY_S = 1.0, 64.0
"""When one request more at once is tried; four times later after each refusal."""
WIDER = 1.25
"""So many times the requests at once may be under way where one more was taken."""
STRAY = 4
"""Refused ones among the last that change nothing: what another process sends may overtake."""
MANY = 8
"""Refused ones for each that does not fit: a request of another process that is refused itself may
have been counted as one that the endpoint worked on."""
T = TypeVar("T")


@dataclass(eq=False)
class Sent:
    """A request that is under way."""

    at: float
    """When it was sent."""
    number: float
    """Of the pace at which it was sent."""
    ahead: int
    """Requests that the endpoint worked on then."""
    tries: bool = False
    """Whether it was one more than the most."""
    refused: bool | None = None
    """None if it ended in another way than by a reply or a refusal, or has not ended."""
    asked_s: float = 0.0
    ended: bool = False
    counted_at: float = -math.inf
    """When the pace is told of it, if it is."""
    counted: bool = False


@dataclass(frozen=True)
class Known:
    """What processes share; all fields are numbers, times are seconds of one clock."""

    most: float = math.inf
    try_s: float = FIRST_TRY_S
    """Seconds from one try to the next."""
    try_at: float = math.inf
    """When one more than ``most`` may be tried."""
    seen_at: float = -math.inf

    def is_of(self, now: float) -> bool:
        """Whether it is known and not long ago; what lies far ahead is damaged."""
        recent = now - KEPT_S <= self.seen_at <= now + KEPT_S
        tries = self.most == math.inf or self.try_at <= now + KEPT_S
        return recent and tries and self.most >= 1 and 0 < self.try_s <= LONGEST_TRY_S


class AtOnce:
    """The most requests that the endpoint works on at once, where it refuses more.

    That is so where the last requests that were refused were sent while more were worked on than
    when any was sent that passed. One more is tried now and then. What is known is shared by all
    processes of a folder, and so is what is under way."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.most = math.inf
        """When it was last looked at."""
        self.under_way = UnderWay(clock)
        self._numbers = Numbers(astuple(Known()))
        self._last: deque[Sent] = deque(maxlen=CROWD)
        self._of = math.inf
        """The most when these were sent."""
        self._entered: deque[tuple[int, bool]] = deque()

    def share(self, folder: Path) -> None:
        """Share with all processes of ``folder``."""
        self._numbers = Numbers(astuple(Known()), folder / "at-once")
        self.under_way.share(folder)

    def enter(self, now: float) -> float:
        """Take a place for one more request, and return 0; else the seconds until that may be
        possible, if none ends. `begin` or `leave` must follow. No two processes take one place.
        Raises UserError: the file cannot be used."""

        def turn(known: Known) -> tuple[Known, float]:
            ahead = self.under_way.total()
            tries = ahead == known.most and known.try_at - now < SHORTEST_S
            if ahead >= known.most and not tries:
                return known, math.inf if ahead > known.most else known.try_at - now
            self.under_way.change(1)
            self._entered.append((ahead, tries))
            if tries:
                try_s = min(4 * known.try_s, LONGEST_TRY_S)
                known = replace(known, try_s=try_s, try_at=now + try_s)
            return known, 0.0

        return self._change(turn, now)

    def begin(self) -> tuple[int, bool]:
        """A request is sent: how many were under way before it, and whether it is a try."""
        if self._entered:
            return self._entered.popleft()
        ahead = self.under_way.total()
        self.under_way.change(1)
        return ahead, False

    def leave(self) -> None:
        """The place that was taken last is not needed."""
        if self._entered:
            self._entered.pop()
            self.under_way.change(-1)

    def explains(self, sent: Sent, now: float) -> bool:
        """Take account of a request; whether it says nothing about the pace.
        Raises UserError: the file cannot be used."""
        if self._of != self.most:
            self._of = self.most
            self._last.clear()
        if sent.ahead >= self.most:
            if sent.tries and not sent.refused:
                self._set(math.ceil(WIDER * self.most), now)
            return True
        self._last.append(sent)
        if not sent.refused:
            return False
        if self.most < math.inf and sum(bool(each.refused) for each in self._last) <= STRAY:
            return True
        most = self._most_of_last()
        self._set(most, now)
        return most < math.inf

    def _most_of_last(self) -> float:
        """The number that best parts the last requests that passed from those that were refused;
        infinite where none does."""
        refused = [each.ahead for each in self._last if each.refused]
        passed = [each.ahead for each in self._last if not each.refused]
        if not passed or len(refused) < FEW:
            return math.inf
        misfits = {
            most: sum(ahead < most for ahead in refused) + sum(ahead >= most for ahead in passed)
            for most in sorted(set(refused))
        }
        most = min(misfits, key=misfits.__getitem__)
        return most if misfits[most] <= len(refused) / MANY else math.inf

    def _set(self, most: float, now: float) -> None:
        if most != self.most:
            known = Known(most, FIRST_TRY_S, now + FIRST_TRY_S)
            self._change(lambda _: (known, None), now)

    def _change(self, work: Callable[[Known], tuple[Known, T]], now: float) -> T:
        def change(numbers: tuple[float, ...]) -> tuple[tuple[float, ...], T]:
            known = Known(*numbers)
            known, result = work(known if known.is_of(now) else Known())
            self.most = known.most
            return astuple(replace(known, seen_at=now)), result

        return self._numbers.change(change)
