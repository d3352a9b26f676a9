"""The signs of life of a running cell: phase, beat and tokens in its ``status.json``.

    with Heartbeat(folder) as heart:
        with heart.waiting("judging"):
            ...                         # for others: beats by itself
        heart.phase("updating")
        heart.beat()                    # something was done

To beat is to note the time: a thread of its own writes what was noted, at most once a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from study.cell.folder import CellFolder, Status
from study.errors import UserError
from study.system.spent import Spent

EVERY_S = 1.0


class Heartbeat:
    """What a cell is doing, when it last did something, and how many tokens its policy has drawn.

    Args:
        folder: of the cell, whose lock the caller holds; without one nothing is written.
        tokens: those drawn before, by the records that the run goes on from.
        spent: where the process spends its time; what is done is turned to there too.
        every_s: seconds between two writes.
    """

    def __init__(
        self,
        folder: CellFolder | None = None,
        tokens: int = 0,
        spent: Spent | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._folder = folder
        self.spent = spent or Spent("starting")
        self._every_s = every_s
        self._signs: Status = {"phase": "", "beat": time.time(), "tokens": tokens}
        self._written = self._signs.copy()
        self._waits = False
        self.throttled: Callable[[], str] = str
        """What the judges' endpoints hold back now, in words; empty if nothing."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def phase(self, name: str) -> None:
        """The cell now does something else: warming, generating, judging, updating, saving or
        evaluating. How it ends is the phase after that: done, failed or killed."""
        self._signs["phase"] = name
        self.spent.turn(name)
        self.beat()

    def beat(self, tokens: int = 0) -> None:
        """Something was done, ``tokens`` more are drawn."""
        self._signs["tokens"] += tokens
        self._signs["beat"] = time.time()

    @contextmanager
    def waiting(self, phase: str) -> Generator[None]:
        """Within the block the cell waits for other processes, with limits of their own: that is no
        standstill, so it beats by itself."""
        self.phase(phase)
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
            self.beat()

    def __enter__(self) -> Heartbeat:
        if self._folder is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            if self._waits:
                self.beat()
            self._write()

    def _write(self) -> None:
        signs = self._signs.copy()
        if words := self.throttled():
            signs["throttled"] = words
        elif "throttled" in self._written:
            signs["throttled"] = ""
        if self._folder is not None and signs != self._written:
            self._written = signs.copy()
            # A disk that is full, or gone, stops the run itself where it records.
            with contextlib.suppress(OSError, UserError):
                signs["spent"] = self.spent.plain()
                self._folder.set_status(**signs)
