"""Time and memory of a report's numbers by rows of verdicts, and what the curve says of 10^8.

    python -m benchmarks.scale.reading [steps=100] [runs=16]

Planted studies of 1, 2, 4 ... ``runs`` runs (`benchmarks/analysis/report.py`; each of ``steps`` x
256 rollouts and eight verdicts a rollout) are read by every estimator of the report, in a process
of its own. Memory is that of all processes together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.analysis import report
from benchmarks.race import read_sizes
from study.cell import study_file

LOOK_S = 0.1
"""Between two looks at the memory."""


@dataclass(frozen=True)
class Reading:
    verdicts: int
    wall_s: float
    cpu_s: float
    memory: int
    """Bytes that all processes hold at most, together."""


def readings(folder: Path, steps: int, runs: int) -> list[Reading]:
    """Of 1, 2, 4 ... ``runs`` runs; each study is larger than the last by new runs."""
    report.STEPS = steps
    study = folder / "large"
    study.mkdir(parents=True)
    study_file.write_study(study, {"study": study.name, "factors": ["judge", "seed"]})
    took, written, size = [], 0, 1
    while size <= runs:
        for number in range(written, size):
            report.write_run((study, number))
        written = size
        took.append(_read(study, size * steps * report.GROUPS * report.MEMBERS * report.JUDGES))
        size *= 2
    return took


def _read(study: Path, verdicts: int) -> Reading:
    before, started, most = os.times(), time.perf_counter(), 0
    words = [sys.executable, "-m", "benchmarks.analysis.report", f"numbers={study}"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        most = max(most, report.memory(process.pid))
        time.sleep(LOOK_S)
    if process.returncode:
        raise RuntimeError(f"the numbers of {study} ended with {process.returncode}")
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return Reading(verdicts, wall, cpu, most)


def main() -> None:
    sizes = read_sizes(steps=100, runs=16)
    with tempfile.TemporaryDirectory() as folder:
        for each in readings(Path(folder), sizes["steps"], sizes["runs"]):
            print(each)


if __name__ == "__main__":
    main()
