"""All that a sweep on Ray stands on is killed at random, and every record compared with an unbroken
run: ``python -m tests.faults.chaos kills=200``.

A judge behind a real socket, an MLflow server and a cluster of three nodes serve a sweep of small
cells. At random times, by a seed, one of `KINDS` gets kill -9 and is started again; a sweep that
died is the same command again. Exits 1 where a record differs.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from study.cell.folder import study_cells
from study.system.stopping import end_with_parent
from tests.conftest import ROOT, free_port, listens
from tests.experiments.launch.clusters import Cluster, read
from tests.faults import lives
from tests.waiting import wait_for

KINDS = ("worker", "cell", "driver", "judge", "mlflow", "node")
"""An actor that holds a slot, the process that trains in it, the sweep, two servers, a raylet."""
JUDGE = "sim-verbose"
"""Without noise: a served judge draws it anew each time that it is asked the same question."""
PATIENT = (
    "judge.endpoint.attempts=1000",
    "judge.endpoint.deadline_s=900",
    "judge.endpoint.backoff_s=0.1",
)
"""A verdict that is not had would be a missing one, and on record."""
STILL_S = 45.0
"""How long every second kill waits for a step since the one before: else most would meet a sweep
that is being started."""
OF_THE_WIRE = ("attempts",)
"""Columns of a verdict that say how often its endpoint was asked."""


class Servers:
    """The judge and MLflow, on ports that stay when they are killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports = {name: free_port() for name in ("judge", "mlflow")}
        self._words = {
            "judge": ["judges.serve", f"judge={JUDGE}", f"port={self.ports['judge']}"],
            "mlflow": [
                *("mlflow", "server", "--host", "127.0.0.1", "--workers", "1"),
                *("--port", str(self.ports["mlflow"])),
                *("--backend-store-uri", f"sqlite:///{folder / 'server.db'}"),
                *("--default-artifact-root", str(folder / "artifacts")),
            ],
        }
        self._running = {name: self._start(name) for name in self._words}

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *self._words[name]],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # MLflow's server is several processes
                preexec_fn=end_with_parent,
            )

    def kill(self, name: str) -> None:
        """Kill a server and its processes, and start it again."""
        self._end(name)
        self._running[name] = self._start(name)

    def _end(self, name: str) -> None:
        os.killpg(self._running[name].pid, signal.SIGKILL)
        self._running[name].wait()

    def wait(self) -> None:
        """Until both listen."""
        wait_for(lambda: all(map(listens, self.ports.values())), f"see {self._folder}/*.log")

    def stop(self) -> None:
        for name in self._running:
            self._end(name)

    def settings(self) -> list[str]:
        """Of a sweep that asks them."""
        return [
            f"judge={JUDGE}",
            f"judge.endpoint.url=http://127.0.0.1:{self.ports['judge']}/v1",
            f"tracking.uri=http://127.0.0.1:{self.ports['mlflow']}",
            *PATIENT,
        ]


class Chaos:
    """One sweep after another on a cluster, until so many kills have been made."""

    def __init__(self, scratch: Path, words: list[str], kills: int, chance: random.Random) -> None:
        self.scratch, self.kills, self.chance = scratch, kills, chance
        with ExitStack() as begun:
            self.servers = Servers(scratch)
            begun.callback(self.servers.stop)
            self.servers.wait()
            self.words = [*words, *self.servers.settings()]
            self.whole = lives.unbroken(scratch / "whole", *self.words)
            self.cluster = Cluster(scratch)
            begun.callback(self.cluster.stop)
            self.nodes = [self.cluster.add(f"node-{number}") for number in range(2)]
            self.stop = begun.pop_all().close
        self.killed: Counter[str] = Counter()
        self.drivers = self.begun = self.redone = self.studies = 0
        self.wrong: list[str] = []

    def run(self, between_s: float) -> None:
        """Sweeps until the kills are made; each has to come to its end.

        Args:
            between_s: mean seconds between two kills.
        """
        while self.killed.total() < self.kills:
            runs_dir = self.scratch / f"study-{self.studies}"
            shutil.copytree(self.whole[0].parent.parent / ".cache", runs_dir / ".cache")
            self._sweep(runs_dir, between_s)
            self.studies += 1
            self._compare(runs_dir)
            shutil.rmtree(runs_dir)

    def _driver(self, runs_dir: Path) -> subprocess.Popen[str]:
        self.drivers += 1
        engine = ["sweep.engine=ray", f"sweep.ray.address={self.cluster.address}"]
        limits = ["sweep.retries=100", "sweep.threads=1", f"runs_dir={runs_dir}"]
        words = ("-m", "experiments.sweep", *lives.TINY, *self.words, *engine, *limits)
        with (self.scratch / "sweeps.log").open("a") as log:
            return self.cluster.run(*words, out=log)

    def _sweep(self, runs_dir: Path, between_s: float) -> None:
        driver = self._driver(runs_dir)
        first, before = self.drivers, self.killed.total()
        due, steps = self._next(between_s), self._steps(runs_dir)
        kind = self.chance.choice(KINDS)
        while True:
            if driver.poll() is not None:
                made = study_cells(runs_dir / "debug")
                if len(made) == len(self.whole) and all(folder.is_done() for folder in made):
                    return
                often = self.drivers - first > 5 * (1 + self.killed.total() - before)
                assert not often, f"sweeps end and nobody killed them: {self.scratch}/sweeps.log"
                driver = self._driver(runs_dir)
            now, count = time.monotonic(), self.killed.total()
            still = count % 2 and now < due + STILL_S and self._steps(runs_dir) == steps
            if now >= due and count < self.kills and not still:
                due = now + 1.0  # where there is none to kill now
                if self._kill(kind, driver, runs_dir):
                    self.killed[kind] += 1
                    print(f"{self.killed.total()} of {self.kills}: {kind}", flush=True)
                    kind = self.chance.choice(KINDS)
                    due, steps = self._next(between_s), self._steps(runs_dir)
            time.sleep(0.05)

    def _next(self, between_s: float) -> float:
        return time.monotonic() + self.chance.expovariate(1 / between_s)

    def _steps(self, runs_dir: Path) -> int:
        """Steps on record in all cells."""
        return sum(path.status().get("step", 0) for path in study_cells(runs_dir / "debug"))

    def _kill(self, kind: str, driver: subprocess.Popen[str], runs_dir: Path) -> bool:
        """Whether there was one to be killed."""
        if kind in ("judge", "mlflow"):
            self.servers.kill(kind)
            return True
        if kind == "driver":
            driver.kill()
            driver.wait()
            return True
        if kind == "node":
            number = self.chance.randrange(len(self.nodes))
            os.kill(self.cluster.raylet(self.nodes[number]), signal.SIGKILL)
            self.nodes[number].wait(timeout=60)
            self.nodes[number] = self.cluster.add(f"node-{number}")
            return True
        there = self.cluster.processes()
        if kind == "cell":
            folders = study_cells(runs_dir / "debug")
            running = [folder for folder in folders if folder.state() == "running"]
            pids = [folder.status().get("pid") for folder in running]
        else:
            pids = [pid for pid in there if b"::Slot" in title(pid)]
        ours = sorted(pid for pid in pids if pid in there)
        if not ours:
            return False
        os.kill(self.chance.choice(ours), signal.SIGKILL)
        return True

    def _compare(self, runs_dir: Path) -> None:
        made = study_cells(runs_dir / "debug")
        if [folder.name for folder in made] != [folder.name for folder in self.whole]:
            self.wrong.append(f"{runs_dir.name}: other cells")
            return
        for folder, template in zip(made, self.whole, strict=True):
            found = lives.differences(folder.path, template, OF_THE_WIRE)
            self.wrong += [f"{folder.name}: {kind} differ" for kind in found]
            log = (folder / "log.txt").read_text()
            self.begun += len(re.findall(r"^--- .* pid \d+ ---$", log, re.MULTILINE))
            lines = re.findall(r"^step (\d+)/", log, re.MULTILINE)
            self.redone += len(lines) - len(set(lines))

    def table(self, seconds: float) -> list[str]:
        """What was killed how often, and what came of it."""
        return [
            "| killed | times |",
            "|---|---|",
            *(f"| {kind} | {self.killed[kind]} |" for kind in KINDS),
            "",
            f"{self.killed.total()} kills in {seconds:.0f} s; {self.studies} studies of"
            f" {len(self.whole)} cells. Sweeps begun {self.drivers} times, cells {self.begun};"
            f" {self.redone} recorded steps done again, {len(self.wrong)} differences",
            *self.wrong,
        ]


def title(pid: int) -> bytes:
    """How a process calls itself."""
    return read(Path(f"/proc/{pid}/cmdline"))


def main(arguments: list[str]) -> int:
    """Options: ``kills``, ``seed`` of the random times, ``between_s``, ``steps``, ``seeds``."""
    given = {"kills": 200, "seed": 0, "between_s": 8, "steps": 8, "seeds": 3}
    given |= {name: int(value) for name, value in (word.split("=", 1) for word in arguments)}
    scratch = Path(tempfile.mkdtemp(prefix="chaos-"))
    seeds = ",".join(map(str, range(given["seeds"])))
    words = [f"seed={seeds}", f"trainer.steps={given['steps']}"]
    chaos = Chaos(scratch, words, given["kills"], random.Random(given["seed"]))
    began = time.monotonic()
    try:
        chaos.run(given["between_s"])
    finally:
        chaos.stop()
        print(*chaos.table(time.monotonic() - began), sep="\n", flush=True)
    shutil.rmtree(scratch)
    return 1 if chaos.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
