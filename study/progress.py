"""Says that work goes on. A terminal has one line that is redrawn: what is done, how much of it, at
what rate, and what remains. Elsewhere such a line is printed now and then.

    with progress.alive("judgedrift probe"):      # whoever runs a command
        with progress.work("verdicts of sim-fair", total=320) as work:
            ...
            work.advance()

The line is on the standard error, and on a terminal the first output on it ends it. Nothing is said
within the first second, nor outside of `alive`, nor where ``JUDGEDRIFT_PROGRESS=off``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO, TypeVar

from study.screen import columns, duration, visible

FIRST_S, REDRAWN_S = 1.0, 0.25
"""On a terminal: after how long the line is drawn, and how often."""
PRINTED_S = (15.0, 15.0, 15.0, 15.0)
"""Elsewhere: the seconds before each of the first lines of `work`."""
LATER_S = 60.0
"""Elsewhere: the seconds before each of all further lines."""
BAR = 20
"""Characters of a bar."""
CLEARED = "\r\x1b[K"
"""Takes the line away from a terminal."""

T = TypeVar("T")


@dataclass
class Work:
    """One piece of work: what it is, and how much of it is done; a total of 0 is not known."""

    what: str
    total: int = 0
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def advance(self, count: int = 1) -> None:
        """Note that so much more is done."""
        self.done += count

    def line(self, now: float, bar: bool = False) -> str:
        """``reading runs 12 of 90, 3.1 a second, 25s to go``"""
        seconds = max(now - self.began, 1e-9)
        if not self.total:
            return f"{self.what}, {duration(seconds)}"
        share = min(1.0, self.done / self.total)
        drawn = f" {'█' * round(share * BAR):░<{BAR}}" if bar else ""
        text = f"{self.what}{drawn} {self.done:,} of {self.total:,}"
        if not self.done:
            return f"{text}, {duration(seconds)}"
        rate = self.done / seconds
        pace = f"{rate:.3g} a second" if rate >= 1 else f"{duration(1 / rate)} each"
        return f"{text}, {pace}, {duration((self.total - self.done) / rate)} to go"


class Display:
    """The line of a process, which says the innermost work of those that go on."""

    def __init__(self, what: str) -> None:
        self._works = [Work(what)]
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._drawn = False
        self._out, self._err = sys.stdout, sys.stderr
        self._on_terminal = _is_terminal(self._err)
        if self._on_terminal:
            sys.stderr = _Watched(self._err, self._clear)
            if _is_terminal(self._out):
                sys.stdout = _Watched(self._out, self.end)
        threading.Thread(target=self._say, daemon=True).start()

    @contextlib.contextmanager
    def work(self, what: str, total: int) -> Generator[Work]:
        """The line is about this within the block."""
        work = Work(what, total)
        self._works.append(work)
        try:
            yield work
        finally:
            self._works.remove(work)

    @property
    def has_ended(self) -> bool:
        """Whether the line was taken away."""
        return self._ended.is_set()

    def end(self) -> None:
        """Take the line away; no other comes."""
        self._ended.set()
        self._clear()

    def close(self) -> None:
        """`end`, and leave the streams as they were. Not while one of them writes: Python's print
        does not keep the stream that it writes to."""
        self.end()
        for name, stream in (("stdout", self._out), ("stderr", self._err)):
            if isinstance(getattr(sys, name), _Watched):
                setattr(sys, name, stream)

    def _say(self) -> None:
        waits: Iterable[float] = itertools.chain(PRINTED_S, itertools.repeat(LATER_S))
        if self._on_terminal:
            waits = itertools.chain([FIRST_S], itertools.repeat(REDRAWN_S))
        for wait in waits:
            if self._ended.wait(wait):
                return
            with self._lock, contextlib.suppress(OSError, ValueError):  # nobody looks any more
                self._write()

    def _write(self) -> None:
        line = visible(self._works[-1].line(time.monotonic(), bar=self._on_terminal))
        if not self._on_terminal:
            if len(self._works) > 1:
                print(line, file=self._err, flush=True)
        elif not self._ended.is_set():
            self._drawn = True
            self._err.write(CLEARED + line[: columns(80) - 1])
            self._err.flush()

    def _clear(self) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._drawn:
                self._drawn = False
                self._err.write(CLEARED)
                self._err.flush()


class _Watched:
    """A stream that says when something is about to be written to it."""

    def __init__(self, stream: TextIO, before: Any) -> None:
        self._stream, self._before = stream, before

    def write(self, text: str) -> int:
        """Write, after whoever watches has been told."""
        self._before()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_display: Display | None = None


@contextlib.contextmanager
def alive(what: str) -> Generator[None]:
    """Within the block of a command a line says that it goes on, until the command prints. Within
    another such block it has the line of that, unless that has printed."""
    global _display
    outer = _display
    goes_on = outer is not None and not outer.has_ended
    if goes_on or os.environ.get("JUDGEDRIFT_PROGRESS") == "off":
        yield
        return
    _display = display = Display(what)
    try:
        yield
    finally:
        display.close()
        _display = outer


@contextlib.contextmanager
def work(what: str, total: int = 0) -> Generator[Work]:
    """A piece of work, which the line is about within the block."""
    if _display is None:
        yield Work(what, total)
        return
    with _display.work(what, total) as of_display:
        yield of_display


def each(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """The items one after the other, as a piece of work."""
    with work(what, total) as of_items:
        for item in items:
            yield item
            of_items.advance()


def _is_terminal(stream: Any) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
