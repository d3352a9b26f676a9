"""What folders take on the disk."""

from __future__ import annotations

import os
from pathlib import Path

UNITS = ("B", "kB", "MB", "GB", "TB")


def size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links are not followed, what goes away
    meanwhile counts as nothing."""
    if not path.is_dir() or path.is_symlink():
        return _bytes(path)
    return sum(_bytes(Path(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def format_size(count: float) -> str:
    """Bytes in three digits, such as 1.24 GB."""
    for unit in UNITS:
        if count < 999.5 or unit == UNITS[-1]:
            break
        count /= 1000
    return f"{count:.3g} {unit}"
