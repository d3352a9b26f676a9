"""What the benchmarks share: sizes from the command line, a race in turns, and CPU of a program."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


def read_sizes(**defaults: int) -> dict[str, int]:
    """The ``name=number`` words of the command line over the defaults; ends on any other word."""
    sizes = dict(defaults)
    for word in sys.argv[1:]:
        name, _, text = word.partition("=")
        if name not in sizes or not text.isdecimal() or int(text) < 2:
            sys.exit(f"{word}: legal are {', '.join(sizes)}, whole numbers of 2 or more")
        sizes[name] = int(text)
    return sizes


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long a call takes."""
    started = clock()
    call()
    return clock() - started


def spent(*arguments: str) -> float:
    """CPU seconds, user and system, of a Python of its own with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def race(
    ours: Callable[[], Any],
    peers: Mapping[str, Callable[[], Any]],
    rounds: int,
    repeats: int = 3,
    scale: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Let ours and each peer take turns, and print medians and the ratios of the rounds.

    Args:
        repeats: calls of ours before every call of a peer, of which the median counts.
        scale: how many times the work of a peer's call ours does; its time is multiplied by it.
        clock: ``time.process_time`` counts CPU seconds of this process, on any number of threads.
    """
    own: dict[str, list[float]] = {name: [] for name in peers}
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, peer in peers.items():
            own[name].append(statistics.median(seconds(ours, clock) for _ in range(repeats)))
            times[name].append(scale * seconds(peer, clock))
    for name, taken in times.items():
        ratios = [theirs / mine for theirs, mine in zip(taken, own[name], strict=True)]
        print(
            f"{name:<36}{statistics.median(taken):>9.3f} s, ours "
            f"{statistics.median(own[name]):.3f} s   ratio: "
            f"median {statistics.median(ratios):.1f}, smallest {min(ratios):.1f}"
        )
