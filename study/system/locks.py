"""File locks between processes; the kernel frees a lock when its holder dies."""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

POLL_S = 0.05


class LockTimeout(TimeoutError):
    """Somebody else held a lock for as long as one could wait."""


def take(path: Path, wait_s: float = 0.0) -> IO[str] | None:
    """Hold ``path`` for the life of the returned file, or None where somebody else does for longer
    than ``wait_s``; ``math.inf`` waits in the kernel. The file is made if it is missing, and left
    where it is: a process that waits has it open."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    try:
        if wait_s == math.inf:
            fcntl.flock(file, fcntl.LOCK_EX)
            return file
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if time.monotonic() >= end:
                    file.close()
                    return None
                time.sleep(POLL_S)
    except BaseException:
        file.close()
        raise


@contextmanager
def held(path: Path, wait_s: float = math.inf) -> Generator[None]:
    """Wait for ``path`` and hold it within the block; a second `held` inside would wait for ever.
    Raises LockTimeout: another process held it all of ``wait_s``."""
    file = take(path, wait_s)
    if file is None:
        raise LockTimeout(f"{path} is held by another process")
    with file:
        yield


def is_held(path: Path) -> bool:
    """Whether a process holds ``path``; nothing is made, written or waited for. False where it is
    missing or may not be read, and where the file system has no locks."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
