"""The pace at which an endpoint is asked, learned from what it refuses.

A refusal by chance comes as often however slowly one asks; one by a limit does not come below it.
So where refusals become more than usual, `Pace` asks as fast as requests came through, and looks
again. If they end, that is the pace, and now and then a faster one is tried. If as many go on at
the third slower pace, they come by chance: nothing is held back. Where all are refused, nothing is
sent for as long as the endpoint asks.

That refusals have become more is Page's cumulative sum (E. S. Page, Continuous inspection schemes,
Biometrika 41, 1954); whether they go on is Wald's sequential test (A. Wald, Sequential tests of
statistical hypotheses, Ann. Math. Stat. 16, 1945).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LONGEST_PAUSE_S = 60.0
"""The longest pause that an endpoint's wish imposes on all requests, however long it asks for."""
FIRST_PAUSE_S, LONGEST_BACKOFF_S = 0.5, 8.0
"""The pause where none is asked for; it doubles while nothing comes through."""
KEPT_S = 600.0
"""A pace that nobody has used for so long is forgotten."""
MEMORY_S = 120.0
"""What came through is counted over half of this, at least."""
IDLE_S = 1.0
"""Time in which nobody asks counts for no pace if it is longer than this."""
SLACK_S = 0.05
"""A turn that was taken late by less moves no later turn."""
SHORTEST_S = 1e-5
"""A turn that is less ahead is now: a clock may be too coarse for the rest."""
SAFETY = 0.97
"""Share of the pace of what came through that is asked at."""
FIRST_RATE, SLOWEST = 1.0, 1 / LONGEST_PAUSE_S
"""Requests a second where none came through."""
USUAL, EXCESS = 0.005, 0.05
"""A share of refusals that is nothing, and so much more than usual that it is an alarm soon."""
ALARM, SURER = math.log(200), 2
"""Evidence that more are refused; so many times as much where some are refused by chance."""
CALM = 1.0
"""With more evidence that more are refused than usual no faster pace is tried."""
DECIDED = math.log(50)
SLOWER = 3
"""Slower paces at which refusals go on if they come by chance."""
BY_CHANCE = 0.5
"""More are refused by a limit."""
MOST_LOOKED = 150
"""Requests at a slower pace after which refusals that have not ended go on."""
SOME = 20
"""Requests that a share of refusals is measured by, at least."""
FEWEST_IN_A_ROW, UNLIKELY = 3, math.log(5e3)
"""Refusals in a row that are no chance: at least so many, and so unlikely."""
PRIOR_REFUSED, PRIOR = 4, 40
"""What refusals in a row are held against is as if so many of so many had been refused before."""
FIRST_GAP, MOST_GAP = 10.0, 2000.0
"""Requests that pass at one pace before a faster one is tried: 2.5 times as many each time that
this was too fast, four times with the least step, half as many after each other one."""
FIRST_STEP, LEAST_STEP, MOST_STEP = 1.5, 1.06, 2.0
"""So many times the present pace is tried: half of the step each time that this was too fast."""
USED = 0.7
"""Share of a pace that must be asked for before a faster one is tried."""


@dataclass
class Pace:
    """All fields are numbers, so that processes can share them; times are seconds of one clock."""

    rate: float = math.inf
    """Requests a second."""
    turn: float = -math.inf
    """When the next request may be sent."""
    last: float = -math.inf
    """When something was last sent or counted."""
    number: float = 0.0
    """Of the present pace: requests that were sent at another one say nothing about it."""
    began: float = -math.inf
    """When the present pace did, moved on by idle time; so are the other beginnings."""
    passed: float = 0.0
    refused: float = 0.0
    """Requests at the present pace."""
    row: float = 0.0
    """The last ones that were all refused."""
    evidence: float = 0.0
    """Page's sum, or Wald's while a slower pace is looked at."""
    usual: float = USUAL
    """Share of refusals that no pace changes."""
    slower: float = 0.0
    """Slower paces that have been looked at since refusals became more, with the present one."""
    before: float = 0.0
    """Share of refusals that was the reason for it."""
    looked: float = 0.0
    looked_refused: float = 0.0
    """Requests at all these slower paces."""
    tried_from: float = 0.0
    """The pace to return to while a faster one is tried; else 0."""
    gap: float = FIRST_GAP
    step: float = FIRST_STEP
    closed_until: float = -math.inf
    pause_s: float = 0.0
    """The last pause, while nothing has come through since."""
    came: float = 0.0
    came_since: float = -math.inf
    """Requests that passed since the last pause, whatever the pace was."""

    @property
    def count(self) -> float:
        """Requests at the present pace."""
        return self.passed + self.refused

    @classmethod
    def beginning(cls, now: float) -> Pace:
        """Of an endpoint of which nothing is known."""
        return cls(last=now, began=now, came_since=now)

    def is_of(self, now: float) -> bool:
        """Whether it is known and not long ago; what lies far ahead is damaged."""
        ahead = max(self.last, self.turn, self.closed_until)
        return self.last >= now - KEPT_S and ahead <= now + KEPT_S and self.rate > 0

    def wait_s(self, now: float) -> float:
        """Seconds until the next request may be sent; 0 takes that turn."""
        due = max(self.turn, self.closed_until)
        if due - now > SHORTEST_S:
            return due - now
        idle_s = now - max(self.last, due)
        if idle_s > IDLE_S:
            self.began += idle_s
            self.came_since += idle_s
        self.last = now
        if self.came_since < self.closed_until:  # the first one after a pause
            rate = self._as_came(self.came, self.closed_until - self.came_since)
            self.came, self.came_since = 0.0, self.closed_until
            self._set(rate, now)
        if self.rate < math.inf:
            self.turn = max(due, now - SLACK_S) + 1 / self.rate
        return 0.0

    def note(
        self,
        now: float,
        number: float,
        refused: bool,
        asked_s: float = 0.0,
        sent_at: float | None = None,
    ) -> None:
        """Count one request that was sent at pace ``number``, and set another one if that says so.
        ``asked_s`` is what a refusal asks to wait. Requests are counted in the order in which they
        were sent, ``sent_at``, some time after that: those that were counted were sent until then.
        """
        self.last = max(self.last, now)
        if not refused:
            self.came += 1
            self.pause_s = 0.0
        if now - self.came_since > MEMORY_S:
            self.came, self.came_since = self.came / 2, self.came_since + MEMORY_S / 2
        if number != self.number:
            return
        self.passed += not refused
        self.refused += refused
        self.row = self.row + 1 if refused else 0.0
        last_sent_at = now if sent_at is None else sent_at
        turns_s = last_sent_at - self.began + 1 / self.rate  # with the turn of the last one
        if self._all_are_refused():
            self._close(now, asked_s)
        elif self.slower:
            self._look_again(now, refused, asked_s, turns_s)
        else:
            self._watch(now, refused, asked_s, turns_s)

    def add(self, other: Pace) -> None:
        """Count what came through before the numbers were shared."""
        if other.came:
            self.came += other.came
            self.came_since = min(self.came_since, other.came_since)
        if self.rate == other.rate == math.inf and not self.slower:
            self.passed += other.passed
            self.began = min(self.began, other.began)

    def _all_are_refused(self) -> bool:
        if self.pause_s and self.row and not self.passed:
            return True  # the first one after a pause
        others = self.count - self.row
        of_others = (PRIOR_REFUSED + self.refused - self.row) / (PRIOR + others)
        seen = max(EXCESS, self.usual, of_others, self.before if self.slower else 0.0)
        share = min(BY_CHANCE, seen)
        return self.row >= max(FEWEST_IN_A_ROW, UNLIKELY / -math.log(share))

    def _close(self, now: float, asked_s: float) -> None:
        """Send nothing for a while, and then as fast as requests had come through until then."""
        pause_s = max(asked_s, FIRST_PAUSE_S)
        if self.pause_s:
            pause_s = max(pause_s, min(2 * self.pause_s, LONGEST_BACKOFF_S))
        self.pause_s = min(pause_s, LONGEST_PAUSE_S)
        self.closed_until = now + self.pause_s
        share = self.refused / self.count
        if self.tried_from:
            self.came, self.came_since = 0.0, self.closed_until
            self._return(self.closed_until)
        elif self.usual > 2 * USUAL and share < self.usual + EXCESS:
            self.came, self.came_since = 0.0, self.closed_until
            self._set(self.rate, self.closed_until)  # by chance, for once
        else:
            self._look_slower(1)
            self._set(self.rate, self.closed_until)

    def _watch(self, now: float, refused: bool, asked_s: float, turns_s: float) -> None:
        """See whether clearly more are refused than usual; try a faster pace while none are."""
        more = min(0.9, self.usual + EXCESS)
        self.evidence = max(0.0, self.evidence + _ratio(refused, more, self.usual))
        known = self.usual > 2 * USUAL and not self.tried_from
        if self.evidence > (SURER if known else 1) * ALARM:
            if self.tried_from:
                self._return(now)
            else:
                self._slow_down(now, asked_s, turns_s, 1)
        elif self.rate < math.inf and self.evidence < CALM and self.passed >= self.gap:
            if self.passed < USED * self.rate * turns_s:
                self.passed, self.began = 0.0, now
            elif self.tried_from:
                self.tried_from = 0.0
                self.gap = max(FIRST_GAP, self.gap / 2)
                self.step = min(MOST_STEP, 2 * self.step - 1)
                self._set(self.rate, now)
            else:
                if self.count >= MOST_LOOKED:
                    self.usual = max(USUAL, min(self.usual, self.refused / self.count))
                self.tried_from = self.rate
                self._set(self.rate * self.step, now)

    def _look_again(self, now: float, refused: bool, asked_s: float, turns_s: float) -> None:
        """See whether refusals have ended at the slower pace, or go on."""
        fewer = max(2 * USUAL, self.usual)
        more = min(0.9, fewer + max(EXCESS, (self.before - fewer) / 2))
        self.evidence += _ratio(refused, more, fewer)
        share = self.refused / self.count
        self.looked += 1
        self.looked_refused += refused
        if self.evidence < -DECIDED:
            self.slower = 0.0
            if self.count >= SOME:
                self.usual = max(USUAL, min(self.usual, share))
            self._set(self.rate * (SAFETY * (1 - share) if self.refused else 1), now)
        elif self.count >= (SOME if self.evidence > DECIDED else MOST_LOOKED):
            at_all = self.looked_refused / self.looked
            if at_all / 2 <= share <= BY_CHANCE and self.slower >= SLOWER:
                self.slower, self.usual = 0.0, at_all
                self.gap, self.step = FIRST_GAP, FIRST_STEP
                self._set(math.inf, now)
            elif share <= BY_CHANCE and self.slower < SLOWER:
                self._slow_down(now, asked_s, turns_s, self.slower + 1)
            else:  # not by chance so far: the next one is the first that is looked at
                self._slow_down(now, asked_s, turns_s, 1)

    def _slow_down(self, now: float, asked_s: float, turns_s: float, number: float) -> None:
        """Ask as fast as requests came through at this pace in ``turns_s``; that is the slower pace
        of such a ``number`` that is looked at."""
        if not self.passed:
            self._close(now, asked_s)
            return
        if self.rate == math.inf and self.count < SOME:
            rate = self._as_came(self.came, now - self.came_since)
        else:
            rate = self._as_came(self.passed, turns_s)
        if self.rate < math.inf:
            rate = max(rate, self.rate / 2)  # it may be a guess from few requests
        self._look_slower(number)
        self._set(rate, now)

    def _look_slower(self, number: float) -> None:
        if number == 1:
            self.before = self.refused / self.count
            self.looked = self.looked_refused = 0.0
        if not self.slower:
            self._be_patient()
        self.slower = number

    def _return(self, now: float) -> None:
        """The faster pace that was tried is too fast."""
        rate, self.tried_from = self.tried_from, 0.0
        self._be_patient()
        self._set(rate, now)

    def _be_patient(self) -> None:
        if self.rate < math.inf:
            self.gap = min(MOST_GAP, self.gap * (2.5 if self.step > LEAST_STEP else 4))
            self.step = max(LEAST_STEP, (1 + self.step) / 2)

    def _set(self, rate: float, now: float) -> None:
        """Count anew from now on."""
        self.number += 1
        self.rate, self.turn, self.began = rate, now, now
        self.passed = self.refused = self.row = self.evidence = 0.0

    def _as_came(self, passed: float, seconds: float) -> float:
        """The pace of so many that came through, which is no faster than the present one."""
        if passed:
            return min(self.rate, SAFETY * passed / max(seconds, SHORTEST_S))
        return FIRST_RATE if self.rate == math.inf else max(SLOWEST, self.rate / 2)


def _ratio(refused: bool, share: float, other: float) -> float:
    """The logarithm of how much likelier what came is under one share than under another."""
    return math.log(share / other) if refused else math.log((1 - share) / (1 - other))
