"""Peaks of memory that are a process's own, and None where the system does not tell them.

`getrusage` alone is not enough: a program begins with the peak of the process that started it, so a
small child of a large parent seems as large as its parent.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import NamedTuple

UNKNOWN = "not to be had here"


def peak_mib() -> float | None:
    """MiB of this process at its largest; None where the kernel does not count them."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(match[1]) / 1024 if match else None


def largest_child_mib() -> float | None:
    """MiB of the largest child that has ended; None where that may be this process's own peak."""
    own, child = (
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return child / 1024 if child > own else None


class Held(NamedTuple):
    """Bytes that processes hold together."""

    shared_once: int
    """Pages that several hold counted once (PSS)."""
    each: int
    """Counted for each that holds them (RSS)."""


def held(pid: int) -> Held:
    """What a process and those it started hold now; nothing of one that is gone."""
    try:
        threads = Path(f"/proc/{pid}/task").glob("*/children")
        children = " ".join(path.read_text(encoding="utf-8") for path in threads).split()
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return Held(0, 0)
    own = dict(re.findall(r"^(Pss|Rss):\s+(\d+) kB$", text, re.MULTILINE))
    below = [held(int(child)) for child in children]
    return Held(
        1024 * int(own.get("Pss", 0)) + sum(each.shared_once for each in below),
        1024 * int(own.get("Rss", 0)) + sum(each.each for each in below),
    )


def in_mib(amount: float | None) -> str:
    """An amount of memory in words."""
    return UNKNOWN if amount is None else f"{amount:.0f} MiB"
