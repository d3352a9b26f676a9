"""Runs a part of `make gpu` in a process of its own, and says how it ended in a line.

Nothing here needs more than Python, so the page is written where torch cannot even be imported.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import Part

PASSED, FAILED, ABSENT = "passed", "failed", "not to be had here"
MOST_LINES = 8
"""Lines of a part that the page shows; its log has all."""
NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
OURS = ("judgedrift", "experiments", "analysis", "judges", "study", "benchmarks")


@dataclass(frozen=True)
class Outcome:
    """How a part ended."""

    part: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)

    @property
    def record(self) -> dict[str, Any]:
        """As the JSON has it."""
        return asdict(self)

    @property
    def text(self) -> str:
        """As the page has it: one line, and below it what the part printed."""
        took = f"{self.seconds:.0f} s" if self.seconds else ""
        head = f"{self.outcome:<19}{self.part:<12}{took:>6}  {self.reason}".rstrip()
        return "\n".join([head, *(f"{'':21}{line}" for line in self.lines)])


def lacking(part: Part, gpus: int, cpu: bool) -> str:
    """Why a part cannot be tried on this machine; empty where it can."""
    if cpu and part.on_cpu is None:
        return "it has no rehearsal on a CPU"
    if not cpu and gpus < part.gpus:
        return f"it needs {part.gpus} GPUs, and this process may use {gpus}"
    absent = [name for name in part.modules if importlib.util.find_spec(name) is None]
    if absent:
        return f"there is no {', '.join(absent)}"
    beside = Path(sys.executable).parent
    programs = [n for n in part.programs if not (shutil.which(n) or (beside / n).exists())]
    return f"there is no command {', '.join(programs)}" if programs else ""


def run_part(part: Part, gpus: int, cpu: bool, logs: Path, left_s: float) -> Outcome:
    """Try one part.

    Args:
        gpus: how many this process may use.
        cpu: rehearse it without any.
        logs: folder for all that it prints.
        left_s: seconds that are left for all parts.
    """
    if reason := lacking(part, gpus, cpu):
        return Outcome(part.name, ABSENT, reason)
    if left_s <= 0:
        return Outcome(part.name, ABSENT, "the time is up; type part= or a larger minutes=")
    words = part.on_cpu if cpu and part.on_cpu else part.command
    limit_s = min(part.limit_s, left_s)
    logs.mkdir(parents=True, exist_ok=True)
    paths = [logs / f"{part.name}.{kind}" for kind in ("out", "err")]
    started = time.monotonic()
    with paths[0].open("wb") as out, paths[1].open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=out, stderr=err, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - started
    printed, errors = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    lines = _shown(part, printed)
    if code == 0:
        return Outcome(part.name, PASSED, "", seconds, lines)
    if code is None:
        why = f"no end after {limit_s:.0f} s"
        return Outcome(part.name, FAILED, f"{why}; {paths[1]} has more", seconds, lines)
    absent = [name for name in NO_MODULE.findall(errors) if name.partition(".")[0] not in OURS]
    if absent:
        return Outcome(part.name, ABSENT, f"there is no {absent[-1]}", seconds, lines)
    last = (errors.strip() or printed.strip() or f"exit code {code}").splitlines()[-1]
    return Outcome(part.name, FAILED, f"{last[:200]}; {paths[1]} has more", seconds, lines)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what a part has left running: its servers and their GPUs' memory."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _shown(part: Part, printed: str) -> list[str]:
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    wanted: Sequence[str] = [line for line in lines if re.search(part.shows, line)]
    return [line[:160] for line in wanted[-MOST_LINES:]]
