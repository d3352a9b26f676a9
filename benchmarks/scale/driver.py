"""What it costs a sweep to hand out cells: overhead per cell, memory and CPU of its own process.

    python -m benchmarks.scale.driver [cells=1000] [steps=1000] [at_once=2] [engines=local,ray]

The cells are laid in a temporary folder and write steps without training, with the lock, the status
and the exit code of real ones. Each engine runs them in a sweep of its own, which shows its live
table. Overhead is what a slot did between cells: time from the first cell's begin to the last one's
end, times slots, less what the cells took themselves. ``submitit`` runs each cell as a job of this
machine, in a new interpreter, and ``ray`` starts a cluster here.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from study.cell.cells import Cell
from study.config.schema import Sweep
from study.config.slurm import Slurm
from tests.experiments.launch import fakes

SETTINGS = {
    "local": Sweep(),
    "ray": Sweep(engine="ray"),
    "submitit": Sweep(engine="slurm", slurm=Slurm(cluster="local")),
}
ROOT = Path(__file__).parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 2**20


@dataclass
class Cost:
    """What one engine took."""

    first_s: float
    """From the command to the first cell's begin."""
    wall_s: float
    """From there to the last cell's end."""
    overhead_ms: float
    """Of a slot per cell."""
    driver_ms: float
    """CPU of the sweep's process per cell, without its start."""
    memory: list[int]
    """Bytes of the sweep's process after a tenth, a half and all of the cells."""


def measured(name: str, folder: Path, cells: int, steps: int, at_once: int) -> Cost:
    """Run the cells by one engine. Raises RuntimeError: some are not done at the end."""
    sweep = Sweep(**{**vars(SETTINGS[name]), "workers": at_once, "threads": 1})
    judges = [f"judge-{number}" for number in range(10)]
    laid = fakes.lay(folder, sweep, judges, -(-cells // len(judges)), steps)[:cells]
    began = time.time()
    with (folder / "said.txt").open("w") as log:
        driver = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.experiments.launch.fakes",
                *(str(c.folder) for c in laid),
            ],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={**os.environ, "FORCE_COLOR": "1", "PYTHONPATH": str(ROOT)},
        )
        samples = watched(driver, folder / "said.txt")
    if driver.returncode or not all(cell.folder.is_done() for cell in laid):
        raise RuntimeError((folder / "said.txt").read_text()[-2000:])
    return cost_of(laid, samples, began, at_once)


def watched(driver: subprocess.Popen[bytes], log: Path) -> list[tuple[int, float, int]]:
    """Cells that ended, seconds of CPU and bytes of the driver, as long as it runs."""
    samples = []
    while driver.poll() is None:
        stat = Path(f"/proc/{driver.pid}/stat")
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            break
        ended = log.read_text(errors="replace").count(": done after ")
        resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        samples.append((ended, (int(fields[11]) + int(fields[12])) / TICKS, resident))
        time.sleep(0.2)
    driver.wait()
    return samples


def cost_of(
    laid: list[Cell], samples: list[tuple[int, float, int]], began: float, at_once: int
) -> Cost:
    """What the samples and the records of the cells come to."""
    spans = []
    for cell in laid:
        status = cell.folder.status()
        spans.append((status["started"], status["ended"]))
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    inside = sum(end - start for start, end in spans)
    overhead = ((last - first) * at_once - inside) / len(laid)
    ready = next((cpu for ended, cpu, _ in samples if ended), samples[-1][1])
    parts = [0.1, 0.5, 1.0]
    memory = [
        max((size for ended, _, size in samples if ended <= part * len(laid)), default=0)
        for part in parts
    ]
    driver = (samples[-1][1] - ready) / len(laid)
    return Cost(first - began, last - first, 1e3 * overhead, 1e3 * driver, memory)


def main(arguments: list[str]) -> int:
    options = {"cells": "1000", "steps": "1000", "at_once": "2", "engines": "local,ray"}
    options |= dict(word.split("=", 1) for word in arguments)
    cells, steps, at_once = (int(options[name]) for name in ("cells", "steps", "at_once"))
    engines = options["engines"].split(",")
    costs = {}
    for name in engines:
        folder = Path(tempfile.mkdtemp(prefix=f"driver-{name}-"))
        costs[name] = measured(name, folder, cells, steps, at_once)
        shutil.rmtree(folder)
    base = costs[engines[0]]
    print(f"{cells} cells of {steps} steps, {at_once} at once")
    print("| engine | first cell s | all s | overhead ms/cell | ratio | CPU ms/cell | driver MiB |")
    print("|---|---|---|---|---|---|---|")
    for name, cost in costs.items():
        ratio = cost.wall_s / base.wall_s
        memory = " -> ".join(f"{size / MIB:.0f}" for size in cost.memory)
        print(
            f"| {name} | {cost.first_s:.1f} | {cost.wall_s:.1f} | {cost.overhead_ms:.1f}"
            f" | {ratio:.2f} | {cost.driver_ms:.2f} | {memory} |"
        )
    growth = statistics.mean(cost.memory[2] - cost.memory[0] for cost in costs.values())
    print(f"driver's memory grew by {growth / MIB:.1f} MiB in the mean from a tenth to all cells")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
