"""How tests wait: for an event, with one limit that only a hang reaches, or on a clock of theirs.

A test that sleeps and hopes that something has happened by then fails on a busy machine. One whose
work is all in one event loop runs it with `on_own_clock`: there an hour takes no time, and a
deadline of two seconds is kept to the microsecond.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

GENEROUS_S = 900.0
"""The limit of every wait: many times what the slowest takes on a busy machine."""
LOOK_S = 0.02
"""Between two looks at what is waited for."""


def wait_for(happened: Callable[[], T], what: str = "what is waited for") -> T:
    """What ``happened`` returns, once that is true; the test fails where it never is."""
    limit = time.monotonic() + GENEROUS_S
    while not (found := happened()):
        assert time.monotonic() < limit, f"never: {what}"
        time.sleep(LOOK_S)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def come(happened: Callable[[], T], what: str = "what is waited for") -> T:
    """`wait_for` of an event loop that goes on meanwhile."""
    clock = asyncio.get_running_loop().time
    limit = clock() + GENEROUS_S
    while not (found := happened()):
        assert clock() < limit, f"never: {what}"
        await asyncio.sleep(0.001)
    return found


class _Skipping(selectors.DefaultSelector):
    """Where a loop would sleep, its clock goes on instead."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


class _OwnClock(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def on_own_clock(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that waits for nothing outside its event loop.

    The loop's clock stands while the work does something, and is at the next timer when all of it
    waits: what a test reads from it does not depend on the machine."""
    with asyncio.Runner(loop_factory=_OwnClock) as runner:
        return runner.run(work)
