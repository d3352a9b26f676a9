"""A monitor of 64 cells of 500 steps: first screen, and its share of a core while they run.

    python -m benchmarks.monitor [cells=64] [steps=500] [seconds=60]

A study is made in a temporary folder: metrics lines as the recorder writes them, of three domains.
``once=true`` is run into a pipe in a process of its own, five times, and so is an empty Python, for
the ratio. Then every cell writes its status each second and a step each ten, and a monitor on a
terminal of 120 x 40 watches them; its CPU seconds are those that the kernel counts.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pty
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.race import read_sizes
from study.cell import cells
from study.cell.folder import CellFolder
from study.cell.records import METRICS
from study.cell.study_file import write_study
from study.config.schema import Study
from study.features import FEATURES
from study.system.files import append_line
from study.verdict import Outcome

DOMAINS = ("math", "qa", "code")
OF_DOMAIN = (
    *("n", "truth", "judge", "gap", "tpr", "fpr", "unscored_frac", "frac_zero_std"),
    *("nominal_share", "realised_share", "effective_share", "rule_effective_share"),
    *("reward", "tokens"),
)
POLICY = "loss grad_norm learning_rate length_tokens truncated_frac entropy".split()
NAMES = (
    *(f"judge/unscored/{outcome}" for outcome in Outcome),
    *("judge/unscored_frac", "judge/latency_s", "cost/tokens_in", "cost/tokens_out", "cost/usd"),
    *("cost/calls", "cost/cache_hits", "time/judge_s", "time/reward_s", "time/step_s"),
    *("truth/mean", "judge/mean", "bias/judge_minus_truth", "reward/mean", "reward/std"),
    *("reward/frac_zero_std", *(f"policy/{name}" for name in (*POLICY, *FEATURES))),
    *(f"domain/{domain}/{name}" for domain in DOMAINS for name in OF_DOMAIN),
)
"""Metrics of a step of a mixed study."""


def metrics_line(step: int, began: float, draw: random.Random) -> str:
    """One step as `study.cell.records.Recorder` writes it; every tenth has a held-out
    evaluation."""
    metrics = {name: draw.random() for name in NAMES}
    if step % 10 == 0:
        metrics |= {f"eval/averages/{domain}": draw.random() for domain in DOMAINS}
    return json.dumps(
        {"step": step, "time_ms": int(1000 * (began + 10 * step)), "metrics": metrics}
    )


def lay(study_dir: Path, count: int, steps: int, draw: random.Random) -> list[CellFolder]:
    """Cells that have made ``steps`` of twice as many steps; their folders."""
    default = dataclasses.asdict(Study())
    write_study(
        study_dir, {"study": study_dir.name, "factors": ["judge", "seed"], "base": {}, "mlflow": {}}
    )
    folders = []
    for number in range(count):
        data: dict[str, Any] = default | {
            "study": study_dir.name,
            "runs_dir": str(study_dir.parent),
            "seed": number // 8,
            "judge": default["judge"] | {"name": f"judge-{number % 8}"},
            "trainer": default["trainer"] | {"steps": 2 * steps},
        }
        cell = cells.make_cell(data)
        cell.folder.path.mkdir(parents=True)
        cells.save_config(cell)
        began = time.time() - 10 * steps
        lines = [metrics_line(step, began, draw) for step in range(1, steps + 1)]
        (cell.folder / METRICS).write_text("\n".join(lines) + "\n", encoding="utf-8")
        live(cell.folder, steps, 2 * steps)
        folders.append(cell.folder)
    return folders


def live(folder: CellFolder, step: int, steps: int) -> None:
    """A status of a cell that runs."""
    folder.set_status(
        **{"state": "running", "phase": "judging", "step": step, "steps": steps},
        **{"beat": time.time(), "tokens": 1000 * step, "pid": os.getpid(), "host": os.uname()[1]},
    )


def timed(*words: str) -> tuple[float, float]:
    """Wall and CPU seconds of a command whose output nobody prints."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def drained(handle: int) -> None:
    """Take what a terminal is given until it is gone."""
    try:
        while os.read(handle, 1 << 16):
            pass
    except OSError:
        pass


def share_of_a_core(words: list[str], folders: list[CellFolder], steps: int, seconds: int) -> float:
    """CPU seconds of a monitor on a terminal by wall seconds, its start left out."""
    draw = random.Random(1)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color"}
    monitor = subprocess.Popen(
        [sys.executable, *words], stdout=theirs, stdin=theirs, env=environment
    )
    os.close(theirs)
    threading.Thread(target=drained, args=(ours,), daemon=True).start()
    end = time.monotonic() + seconds + 4
    used, since, place = 0.0, 0.0, 0
    while time.monotonic() < end:
        tick = time.monotonic()
        for folder in folders:
            live(folder, steps + place // 10, 2 * steps)
            if place % 10 == 0:
                line = metrics_line(steps + 1 + place // 10, time.time() - 10 * steps, draw)
                append_line(folder / METRICS, line)
        place += 1
        if place == 4:
            used, since = cpu_of(monitor.pid), time.monotonic()
        time.sleep(max(0.0, 1 - (time.monotonic() - tick)))
    share = (cpu_of(monitor.pid) - used) / (time.monotonic() - since)
    monitor.terminate()
    monitor.wait()
    os.close(ours)
    return share


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    sizes = read_sizes(cells=64, steps=500, seconds=60)
    with tempfile.TemporaryDirectory() as name:
        study_dir = Path(name) / "many"
        folders = lay(study_dir, sizes["cells"], sizes["steps"], random.Random(0))
        size = sum((folder / METRICS).stat().st_size for folder in folders)
        print(f"{len(folders)} cells of {sizes['steps']} steps, {size / 1e6:.0f} MB of metrics")
        words = ["-m", "experiments.monitor", "study=many", f"runs_dir={name}"]
        timed(*words, "once=true")
        first = [timed(*words, "once=true") for _ in range(5)]
        empty = [timed("-c", "") for _ in range(5)]
        wall, cpu = (statistics.median(each[place] for each in first) for place in (0, 1))
        python = statistics.median(each[0] for each in empty)
        print(f"first screen {wall:.2f} s ({cpu:.2f} s of CPU), {wall / python:.0f} x empty Python")
        share = share_of_a_core(words, folders, sizes["steps"], sizes["seconds"])
        print(f"while all run: {share:.2%} of a core")


if __name__ == "__main__":
    main()
