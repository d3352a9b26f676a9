"""How many requests are under way to one endpoint, from all processes that share a folder.

Each process keeps its number in a file of its own, which it holds locked: that of a killed one no
longer counts, as the kernel drops its lock.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from study.system import clock as host
from study.system import locks

LOOK_S = 0.5
"""How often it is seen which other processes there are."""
MOST = 256
"""Processes that are counted."""
MOST_EACH = 1_000_000
"""More than this is damaged, and counts as none."""
_FORM = struct.Struct("<q")


class UnderWay:
    """Requests of this process, and once there is a folder those of the others too."""

    def __init__(self, clock: Callable[[], float] = host.now) -> None:
        self.own = 0
        self._clock = clock
        self._folder: Path | None = None
        self._mine: tuple[int, Path] | None = None
        """Descriptor and path of the own file."""
        self._others: list[int] = []
        self._looked_at = 0.0
        self._own_file, self._other_files = ExitStack(), ExitStack()
        for files in (self._own_file, self._other_files):
            weakref.finalize(self, files.close)

    def share(self, folder: Path) -> None:
        """Count with all processes that share ``folder``; where that cannot be written, alone."""
        self._folder = folder
        with suppress(OSError):
            for path in (folder / f"under-way-{number:03d}" for number in range(MOST)):
                file = locks.take(path)
                if file is not None:
                    self._own_file.enter_context(file)
                    self._mine = file.fileno(), path
                    break
        self.change(0)
        self._look()

    def change(self, by: int) -> None:
        """One more of this process, or one fewer."""
        self.own += by
        if self._mine is not None:
            with suppress(OSError):  # a full disk: others count fewer for a while
                os.pwrite(self._mine[0], _FORM.pack(self.own), 0)

    def total(self) -> int:
        """Of all processes."""
        if self._clock() - self._looked_at > LOOK_S:
            self._look()
        return self.own + sum(map(_number_in, self._others))

    def _look(self) -> None:
        """See which other processes there are."""
        if self._folder is None:
            return
        self._other_files.close()
        self._others, self._looked_at = [], self._clock()
        for path in self._folder.glob("under-way-*"):
            if (self._mine is None or path != self._mine[1]) and locks.is_held(path):
                with suppress(OSError):
                    file = self._other_files.enter_context(path.open("rb", buffering=0))
                    self._others.append(file.fileno())


def _number_in(descriptor: int) -> int:
    """What another process wrote."""
    data = os.pread(descriptor, _FORM.size, 0)
    number = _FORM.unpack(data)[0] if len(data) == _FORM.size else 0
    return number if 0 < number <= MOST_EACH else 0
