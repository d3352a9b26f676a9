"""Leases of this machine's GPUs, between all cells and judge servers that a user has here.

    lease = take(usable_gpus(), 0.5)    # None while others have them
    lease.variables                     # of the process that is to compute there

A GPU is a file in a folder of this host, cut into `PARTS`; a lease is a lock of the kernel on some
of them. It holds while any process has the lease's files open, and lapses with the last of them.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import stat
import struct
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, TypedDict

from study.errors import UserError
from study.system import locks
from study.system.machine import Gpu

PARTS = 60
"""Of a GPU; a cell that shares one takes some of them."""
HOST = Path("/tmp")
"""Where the folder of leases is: of this host alone, which a user's home may not be."""


class _State(TypedDict):
    variables: dict[str, str]
    files: list[Any]


class Lease:
    """GPUs, or a share of one. A child process that is given it has it too, and keeps it when this
    one closes it."""

    def __init__(self, variables: dict[str, str], files: list[int]) -> None:
        self.variables = variables
        self._files = files

    @property
    def files(self) -> tuple[int, ...]:
        """What a child process must have open to have the lease too."""
        return tuple(self._files)

    def close(self) -> None:
        """Let go of it in this process."""
        for file in self._files:
            os.close(file)
        self._files = []

    def __getstate__(self) -> _State:
        return {"variables": self.variables, "files": [DupFd(file) for file in self._files]}

    def __setstate__(self, state: _State) -> None:
        self.variables = state["variables"]
        self._files = [file.detach() for file in state["files"]]


def parts_of(wanted: float) -> int:
    """Parts of each GPU that a lease of ``wanted`` GPUs takes."""
    return min(PARTS, math.ceil(round(wanted * PARTS, 6)))


def take(usable: Sequence[Gpu], wanted: float, share: float = 1.0) -> Lease | None:
    """A lease of ``wanted`` of the ``usable`` GPUs, whole ones or a share of one; None while others
    have too many of them.

    Args:
        share: of each of several GPUs.

    Raises:
        UserError: the folder of leases is not this user's own.
    """
    if not wanted:
        return Lease({}, [])
    parts, count = parts_of(min(wanted, share)), max(1, int(wanted))
    folder = _folder()
    files: dict[str, int] = {}
    leased: list[Gpu] = []
    try:
        with locks.held(folder / "gate"):
            free: dict[str, list[int]] = {}
            for gpu in usable:
                place = folder / re.sub("[^A-Za-z0-9-]", "_", gpu.id)
                files[gpu.name] = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
                free[gpu.name] = [n for n in range(PARTS) if _lock(files[gpu.name], n)]
            fitting = [gpu for gpu in usable if len(free[gpu.name]) >= parts]
            emptiest = sorted(fitting, key=lambda gpu: -len(free[gpu.name]))[:count]
            if len(emptiest) == count:
                leased = [gpu for gpu in usable if gpu in emptiest]
            for gpu in leased:
                for part in free[gpu.name][parts:]:
                    _lock(files[gpu.name], part, fcntl.F_UNLCK)
    finally:
        for gpu in usable:
            if gpu not in leased and gpu.name in files:
                os.close(files[gpu.name])
    names = ",".join(gpu.name for gpu in leased)
    variables = {"CUDA_VISIBLE_DEVICES": names, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return Lease(variables, [files[gpu.name] for gpu in leased]) if leased else None


def left_by(count: int, wants: Sequence[tuple[int, float]]) -> list[int] | None:
    """Parts that are left of each of ``count`` GPUs where so many of them are leased by a share of
    each, one lease after the other; None where they do not fit."""
    free_parts = [PARTS] * count
    for several, share in wants:
        emptiest = sorted(range(count), key=lambda gpu: -free_parts[gpu])[:several]
        if len(emptiest) < several or free_parts[emptiest[-1]] < parts_of(share):
            return None
        for gpu in emptiest:
            free_parts[gpu] -= parts_of(share)
    return free_parts


def _lock(file: int, part: int, kind: int = fcntl.F_WRLCK) -> bool:
    """Lock a part, of this opening of the file rather than of this process; whether it was free."""
    try:
        request = struct.pack("hhqqi4x", kind, os.SEEK_SET, part, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, request)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _folder() -> Path:
    folder = HOST / f"judgedrift-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise UserError(
            f"{folder} should hold your leases of this machine's GPUs, but it is another user's or"
            " not a folder. Move it away, or ask its owner to."
        )
    return folder
