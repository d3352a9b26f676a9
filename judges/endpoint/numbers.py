"""Some numbers that the processes of a host share in a file."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from study.errors import UserError
from study.system import clock as host
from study.system import locks

T = TypeVar("T")


class Numbers:
    """Some numbers of this process, or in a ``file`` that the processes of a host share; those of
    another start of the host are void."""

    def __init__(
        self, start: tuple[float, ...], file: Path | None = None, boot: str | None = None
    ) -> None:
        self._boot = (host.boot() if boot is None else boot).encode()
        self._start = self._here = start
        self._form = struct.Struct(f"<32s{len(start)}d")
        self.file = file
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def change(self, work: Callable[[tuple[float, ...]], tuple[tuple[float, ...], T]]) -> T:
        """Replace the numbers by what ``work`` makes of them, and return its second result.
        Raises UserError: the file cannot be used."""
        if self.file is None:
            self._here, result = work(self._here)
            return result
        try:
            file = locks.take(self.file, math.inf)
            assert file is not None
            with file:
                data = os.pread(file.fileno(), self._form.size, 0)
                current = len(data) == self._form.size and data.startswith(self._boot)
                numbers, result = work(self._form.unpack(data)[1:] if current else self._start)
                os.pwrite(file.fileno(), self._form.pack(self._boot, *numbers), 0)
                return result
        except OSError as error:
            raise UserError(
                f"The request limits that all processes share cannot be written to {self.file}"
                f" ({error}). Free space or correct the folder's permissions, then rerun the"
                " command. The file may be removed while no sweep runs."
            ) from error
