"""What the commands that read a study cost as it grows, and a sweep as it has more cells.

    python -m benchmarks.scale.growth [rounds=2] [decades=7]

Studies of 4 cells and 10^4, 10^5 ... 10^``decades`` verdicts, and of 1, 4 and 16 cells with some
50,000 verdicts each, are written by the product's recorder (`benchmarks.scale.written`); of two
runs the numbers of a report are compared with data frames of every row first. Then each command
runs in a process of its own, ``rounds`` times (once on the largest study); likewise a sweep of 1, 4
and 16 tiny cells, two at once. Memory is that of all processes together, what they share counted
once (PSS).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records.frames import rollouts_frame, runs_frame, verdicts_frame
from analysis.report.evidence import gather
from benchmarks.memory import Held, held
from benchmarks.race import read_sizes
from benchmarks.scale.fits import Power, exponent, line
from benchmarks.scale.written import Size, write

LOOK_S = 0.05
"""Between two looks at the memory."""
BY_VERDICTS = {
    4: Size(2, 2, steps=10, groups=8),
    5: Size(2, 2, steps=40, groups=20),
    6: Size(2, 2, steps=125, groups=64),
    7: Size(2, 2, steps=400, groups=200),
}
"""Power of ten -> a study of so many verdicts, in 4 cells."""
BY_CELLS = (
    Size(1, 1, steps=100, groups=16),
    Size(2, 2, steps=100, groups=16),
    Size(4, 4, steps=100, groups=16),
)
MANY = 5_000_000
"""A study of more verdicts is read once: each round takes a quarter of an hour of processors."""
LEAST = Size(1, 1, steps=2, groups=2)
"""What a command takes of this study is its start."""
COMMANDS = {
    "list": ("list",),
    "status": ("status", "study={study}"),
    "ledger": ("ledger", "study={study}"),
    "report": ("report", "study={study}"),
    "report, nothing changed": ("report", "study={study}"),
}
AT_ONCE = (1, 2, 4, 9)
"""Of nine cells."""


@dataclass(frozen=True)
class Spent:
    """By one command and what it started."""

    command: str
    series: str
    """least, verdicts, cells, or at once."""
    cells: int
    verdicts: int
    wall_s: float
    cpu_s: float
    memory: Held


def run(words: Sequence[str], command: str, series: str, size: Size) -> Spent:
    """Raises RuntimeError: the command fails."""
    before, started, most = os.times(), time.perf_counter(), Held(0, 0)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "judgedrift", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        while process.poll() is None:
            most = max(most, held(process.pid))
            time.sleep(LOOK_S)
        wall, after = time.perf_counter() - started, os.times()
        if process.returncode:
            errors.seek(0)
            message = errors.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}: {message}")
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return Spent(command, series, size.cells, size.verdicts, wall, cpu, most)


def read(runs: Path, name: str, series: str, size: Size) -> Iterator[Spent]:
    """Each command once, the report as if it had never been written."""
    shutil.rmtree(runs / name / "report", ignore_errors=True)
    for command, words in COMMANDS.items():
        filled = [word.format(study=name) for word in words]
        yield run([*filled, f"runs_dir={runs}"], command, series, size)


def swept(folder: Path, seeds: int, workers: int, series: str) -> Spent:
    """A sweep of tiny cells with its report, in a study of its own."""
    size = Size(1, seeds, steps=16, groups=8)
    words = [
        *("sweep", "experiment=quickstart", "judge=sim-fair", f"seed=range(0,{seeds})"),
        *(f"trainer.steps={size.steps}", f"sweep.workers={workers}", f"runs_dir={folder}"),
        f"study=swept-{seeds}-{workers}-{time.monotonic_ns()}",
    ]
    return run(words, f"sweep, {workers} at once", series, size)


def equal(runs: Path) -> None:
    """Two runs by data frames of every row: step means, and counts of what is missing."""
    study = write(runs, "equal", Size(2, 1, steps=6, groups=4))
    evidence = gather(study)
    table = runs_frame(study)
    rollouts, verdicts = rollouts_frame(study, runs=table), verdicts_frame(study, runs=table)
    gap = (rollouts["judge_score"] - rollouts["truth"]).groupby(
        [rollouts["cell"].astype("str"), rollouts["step"]]
    )
    ours = evidence.scores[evidence.scores["metric"] == "gap"].set_index(["cell", "step"])["value"]
    assert len(ours) == 12
    assert np.allclose(gap.mean().reindex(ours.index), ours, rtol=0, atol=1e-12)
    counts = pd.crosstab(verdicts["judge"], verdicts["outcome"]).reindex(columns=["scored"])
    failures = evidence.failures.groupby("judge")[["scored", "verdicts"]].sum()
    assert counts["scored"].equals(failures["scored"])
    assert failures["verdicts"].sum() == len(verdicts)


def measure(rounds: int, decades: int) -> list[Spent]:
    """All that was spent. The first sweep teaches the tiny policy, and is not counted."""
    spent: list[Spent] = []
    with tempfile.TemporaryDirectory(prefix="judgedrift-") as name:
        folder = Path(name)
        equal(folder / "equal")
        studies = [("least", LEAST)]
        studies += [("verdicts", size) for power, size in BY_VERDICTS.items() if power <= decades]
        studies += [("cells", size) for size in BY_CELLS]
        for place, (series, size) in enumerate(studies):
            started, study = time.perf_counter(), f"study-{place}"
            write(folder / study, study, size)
            print(f"{size.verdicts:,} verdicts in {time.perf_counter() - started:.0f} s", end=":")
            for _ in range(rounds if size.verdicts < MANY else 1):
                spent += read(folder / study, study, series, size)
                took = (f"{each.cpu_s:.2f}" for each in spent[-len(COMMANDS) :])
                print("", *took, end=";", flush=True)
            print()
            shutil.rmtree(folder / study)
        swept(folder / "sweeps", 1, 1, "")
        spent += (
            swept(folder / "sweeps", seeds, 2, "cells")
            for seeds in (1, 4, 16)
            for _ in range(rounds)
        )
        spent += (swept(folder / "sweeps", 9, workers, "at once") for workers in AT_ONCE)
    return spent


def series_of(spent: Sequence[Spent], command: str, series: str) -> tuple[list[float], list[float]]:
    """Sizes of a series, and CPU seconds of a command beyond its start: what it takes of the least
    study, or for a sweep, at 0 cells of the line through all."""
    members = [each for each in spent if (each.command, each.series) == (command, series)]
    sizes = [float(getattr(each, series)) for each in members]
    seconds = [each.cpu_s for each in members]
    least = [each.cpu_s for each in spent if (each.command, each.series) == (command, "least")]
    start = float(np.mean(least)) if least else line(sizes, seconds).start
    return sizes, [each - start for each in seconds]


def powers(spent: Sequence[Spent], series: str) -> dict[str, Power | None]:
    """Command -> exponent of its CPU seconds beyond its start; None where they are not all above 0,
    as nothing grows then."""
    fitted: dict[str, Power | None] = {}
    for command in dict.fromkeys(each.command for each in spent if each.series == series):
        sizes, seconds = series_of(spent, command, series)
        fitted[command] = exponent(sizes, seconds) if min(seconds) > 0 else None
    return fitted


def main() -> None:
    sizes = read_sizes(rounds=2, decades=7)
    spent = measure(sizes["rounds"], sizes["decades"])
    for each in spent:
        print(each)
    for series in ("verdicts", "cells"):
        for command, power in powers(spent, series).items():
            print(f"{command} by {series}: {power.describe() if power else 'no growth'}")


if __name__ == "__main__":
    main()
