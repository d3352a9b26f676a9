"""Where a process spends its time: seconds and processor seconds of each thing that it does.

    spent = Spent("starting")
    spent.turn("generating")            # from now on it does this
    with spent.within("recording"):     # in between, and then the former again
        ...
    spent.accounts()["generating"].seconds

One thread turns; any may read. A turn takes two clocks to be read: `cost_of_a_turn` measures that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from study.system import clock

MEASURED = 2_000
"""Turns that their cost is measured on."""


class Account(NamedTuple):
    """Seconds by the clock and of processors (those of child processes are not among them), and
    how often it was turned to."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    times: int = 0


class Spent:
    """The accounts of a process, from its start on.

    Args:
        first: what it has done since it was started.
        earlier: accounts of the processes that it goes on from, as `plain` has them.
        from_start: whether what the process did before now is counted, its imports among it.
    """

    def __init__(
        self, first: str, earlier: Mapping[str, object] | None = None, from_start: bool = True
    ) -> None:
        self._accounts = accounts_of(earlier)
        self._now = first
        self._at = clock.now() - (_age_s() if from_start else 0.0)
        self._cpu = 0.0 if from_start else time.process_time()

    def turn(self, name: str) -> None:
        """Do something else from now on."""
        self._add(1)
        self._now = name

    @contextmanager
    def within(self, name: str) -> Generator[None]:
        """Do something else within the block."""
        before = self._now
        self.turn(name)
        try:
            yield
        finally:
            self._add(1)
            self._now = before

    def _add(self, times: int) -> None:
        at, cpu = clock.now(), time.process_time()
        seconds, cpu_s, count = self._accounts.get(self._now, Account())
        self._accounts[self._now] = Account(
            seconds + at - self._at, cpu_s + cpu - self._cpu, count + times
        )
        self._at, self._cpu = at, cpu

    def accounts(self) -> dict[str, Account]:
        """What was spent by now, without what is under way."""
        return dict(self._accounts)

    def plain(self) -> dict[str, list[float]]:
        """The accounts as a status holds them."""
        return plain_of(self.accounts())


def added(accounts: Mapping[str, Account], more: Mapping[str, Account]) -> dict[str, Account]:
    """The sums of two sets of accounts."""
    sums = dict(accounts)
    for name, account in more.items():
        seconds, cpu_s, times = sums.get(name, Account())
        sums[name] = Account(
            seconds + account.seconds, cpu_s + account.cpu_s, times + account.times
        )
    return sums


def plain_of(accounts: Mapping[str, Account]) -> dict[str, list[float]]:
    """Accounts as a file holds them, which `accounts_of` reads."""
    return {
        name: [round(each.seconds, 4), round(each.cpu_s, 4), each.times]
        for name, each in accounts.items()
    }


def accounts_of(plain: Mapping[str, object] | None) -> dict[str, Account]:
    """The accounts of a status; none of what is not like one."""
    accounts = {}
    for name, numbers in (plain or {}).items():
        if not isinstance(numbers, list) or len(numbers) != 3:
            continue
        if all(isinstance(each, int | float) and 0 <= each < 1e12 for each in numbers):
            accounts[name] = Account(float(numbers[0]), float(numbers[1]), int(numbers[2]))
    return accounts


def _age_s() -> float:
    """Seconds since this process was started; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, clock.now() - started)


def cost_of_a_turn() -> float:
    """Seconds that a turn takes here."""
    spent = Spent("a")
    began = time.perf_counter()
    for _ in range(MEASURED):
        spent.turn("a")
    return (time.perf_counter() - began) / MEASURED
