"""The number of requests at once that an endpoint works on, learned from what it refuses.

A pace (`judges.endpoint.pace`) does not help where more at once are refused than one process may
have under way: there the refused requests are those that were sent while the most were.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

CROWD, FEW = 64, 2
"""Requests that are looked at for the number at once, and how many of them must be refused."""
FIRST_TRY_S, LONGEST_TRY_S = 1.0, 64.0
"""When one request more at once is tried; four times later after each refusal."""
WIDER = 1.25
"""So many times the requests at once may be under way where one more was taken."""


@dataclass(eq=False)
class Sent:
    """A request that is under way."""

    at: float
    """When it was sent."""
    number: float
    """Of the pace at which it was sent."""
    ahead: int
    """Requests of this process that the endpoint worked on then."""
    refused: bool | None = None
    """None if it ended in another way than by a reply or a refusal, or has not ended."""
    asked_s: float = 0.0
    ended: bool = False
    counted: bool = False


class AtOnce:
    """The most requests of this process that the endpoint works on at once, where it refuses more.

    That is so where each of the last requests that was refused was sent while more were worked on
    than when any was sent that passed. One more is tried now and then."""

    def __init__(self) -> None:
        self.most = math.inf
        self._last: deque[Sent] = deque(maxlen=CROWD)
        self._try_s = FIRST_TRY_S
        self.try_at = math.inf
        """When one more may be tried."""

    def tries(self, now: float) -> None:
        """One more than ``most`` is sent."""
        self._try_s = min(4 * self._try_s, LONGEST_TRY_S)
        self.try_at = now + self._try_s

    def explains(self, sent: Sent, now: float) -> bool:
        """Take account of a request; whether it says nothing about the pace."""
        if sent.ahead >= self.most:
            if not sent.refused:
                self._set(math.ceil(WIDER * self.most), now)
            return True
        self._last.append(sent)
        if not sent.refused:
            return False
        refused = [each.ahead for each in self._last if each.refused]
        passed = [each.ahead for each in self._last if not each.refused]
        is_so = len(refused) >= FEW and max(passed, default=math.inf) < min(refused)
        self._set(min(refused) if is_so else math.inf, now)
        return is_so

    def _set(self, most: float, now: float) -> None:
        if most != self.most:
            self.most, self._try_s, self.try_at = most, FIRST_TRY_S, now + FIRST_TRY_S
