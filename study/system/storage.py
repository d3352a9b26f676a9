"""Errors of a full or read-only disk, explained: the cause, what was lost and what to do."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from pathlib import Path

from study.errors import UserError, chain
from study.system.tables import table

EXIT = 74
"""Exit code of a cell that could not write (EX_IOERR)."""
_TABLE = table(__file__)
CAUSES = {getattr(errno, name): cause for name, cause in _TABLE.items()}
"""Error number -> what is ``said`` of it, its ``remedy``, and the ``words`` of libraries that hide
the number."""
_TORCH = ("pytorchstreamwriter failed", "file write failed", "unexpected pos", "iostream error")
"""Words of a write that failed, which name no cause."""
TRIED = 8 << 20
"""Bytes."""


class DiskError(UserError):
    """Nothing more can be written; what had been recorded is kept."""


def explained(error: BaseException, folder: Path) -> DiskError | None:
    """The paragraph for an error that the disk is to blame for, and None for any other. ``folder``
    is where the run writes; an error that names its own file speaks for that one."""
    for link in chain(error):
        if isinstance(link, DiskError):
            return link
        cause = _cause(link, folder)
        if cause is not None:
            file_name = link.filename if isinstance(link, OSError) and link.filename else None
            place = Path(os.fsdecode(file_name)) if isinstance(file_name, str | bytes) else folder
            return DiskError(paragraph(cause, place))
    return None


def paragraph(cause: int | None, place: Path) -> str:
    """One paragraph on the file system of ``place``; ``cause`` is an error number of `CAUSES`, and
    None looks for itself."""
    there = place.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    stats = os.statvfs(there)
    free = stats.f_bavail * stats.f_frsize
    if cause is None:
        cause = errno.EROFS if stats.f_flag & os.ST_RDONLY else errno.ENOSPC
    problem, remedy = CAUSES[cause]["said"], CAUSES[cause]["remedy"]
    if cause == errno.ENOSPC and stats.f_files and not stats.f_favail:
        problem = "it has no room for another file (no free inodes)"
    return (
        f"{place} cannot be written: of its file system, mounted at {_mount(there)}, {problem}; "
        f"{free} bytes are free. Steps up to the last checkpoint are kept; a rerun remakes later"
        f" ones. {remedy}, then rerun the command to resume."
    )


def _cause(error: BaseException, folder: Path) -> int | None:
    if isinstance(error, OSError) and error.errno in CAUSES:
        return error.errno
    text = str(error).lower()
    if isinstance(error, OSError | sqlite3.Error | RuntimeError | UserError) or (
        type(error).__name__ in ("Exception", "SafetensorError", "OperationalError", "ArrowInvalid")
    ):
        for number, cause in CAUSES.items():
            if any(words in text for words in cause["words"]):
                return number
    return _met(folder) if any(words in text for words in _TORCH) else None


def _met(folder: Path) -> int | None:
    """The error of `CAUSES` that a new file of `TRIED` bytes meets there now; none of it stays."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(TRIED))
    except OSError as error:
        return error.errno if error.errno in CAUSES else None
    return None


def _mount(path: Path) -> Path:
    path = path.resolve()
    while not os.path.ismount(path) and path != path.parent:
        path = path.parent
    return path
