"""Clocks in seconds: one that all processes of a host share and that never goes back, and one that
all hosts share that share a folder."""

from __future__ import annotations

import os
import re
import tempfile
import time
from functools import cache
from pathlib import Path


def now() -> float:
    """Seconds since the host was started, sleep included; setting the clock does not move them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@cache
def boot() -> str:
    """32 hex digits that name this start of the host: `now` of another one means nothing here."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, ValueError):
        text = ""
    return re.sub(r"[^0-9a-f]", "", text)[:32].ljust(32, "0")


def of_folder(folder: Path) -> float:
    """Seconds since 1970 by the clock that stamps the files of ``folder``.
    Raises OSError: it cannot be written."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
