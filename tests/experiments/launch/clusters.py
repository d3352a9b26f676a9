"""Real clusters of Ray on this host: a head and workers, each with processes of its own."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO

from study.system.stopping import end_with_parent
from tests.conftest import ROOT, free_port
from tests.waiting import wait_for

MARK = "CLUSTER_OF_A_TEST"
"""Environment variable by which every process of a cluster is known, cells too."""
UP = b"Ray runtime started"
STARTS = 4
"""Ray gives a node 30 s to come up, which on a busy machine may be too short."""
GRACE_S = 60.0
"""How long what is stopped may take to end by itself."""
NODE = ("--object-store-memory=80000000", "--include-log-monitor=false", "--disable-usage-stats")


class Cluster:
    """A head at ``address``. `environment` is what its drivers need; it ends with `stop`."""

    def __init__(self, folder: Path, token: bool = True, **resources: float | str) -> None:
        """``token``: whether it lets in only who has its token; a process that had imported Ray
        before it was set never has it."""
        self.mark = uuid.uuid4().hex
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.environment = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "0",  # a process for each CPU before there is work
            "RAY_prestart_worker_first_driver": "0",
            "RAY_worker_niceness": "0",  # at Ray's 15 other tests would let cells starve
            "RAY_ADDRESS": self.address,
            MARK: self.mark,
        }
        if token:
            self.environment["RAY_AUTH_MODE"] = "token"
            self.environment["RAY_AUTH_TOKEN"] = uuid.uuid4().hex + uuid.uuid4().hex
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._drivers: list[subprocess.Popen[str]] = []
        self.log = folder / "ray.log"
        # sockets of Unix have short names
        self.folder = Path("/tmp") / f"ray-{self.mark[:8]}"
        head = ["--head", f"--port={port}", "--include-dashboard=false"]
        with ExitStack() as begun:
            begun.callback(self.stop)
            words = [*head, f"--temp-dir={self.folder}"]
            self.head = self._start(words, resources, {"NODE": "head"})
            begun.pop_all()

    def add(
        self, name: str, path: Path = ROOT, **resources: float | str
    ) -> subprocess.Popen[bytes]:
        """One more node: cells find its name in NODE, Python looks into ``path`` first."""
        environment = {"NODE": name, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"}
        return self._start([f"--address={self.address}"], resources, environment)

    def _start(
        self, words: list[str], resources: dict[str, float | str], more: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        asked = {"num-cpus": 1, "num-gpus": 0, "memory": 2**30} | resources
        log = self.log.with_name(f"node-{len(self.nodes)}.log")
        for _ in range(STARTS):
            with log.open("wb") as file:
                node = self._popen(words, asked, file, more)
            self.nodes.append(node)
            wait_for(partial(_begun, node, log), f"{log} says that the node is up")
            if node.poll() is None:
                return node
        raise AssertionError(f"no node can be started; see {log}")

    def _popen(
        self, words: list[str], asked: dict[str, float | str], file: IO[bytes], more: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *NODE, *words),
                *(f"--{name}={amount}" for name, amount in asked.items()),
                "--node-ip-address=127.0.0.1",
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment, **more},
            preexec_fn=end_with_parent,
        )

    def run(
        self, *words: str, out: int | IO[str] = subprocess.PIPE, **environment: str
    ) -> subprocess.Popen[str]:
        """A Python process that may join the cluster, and ends with it at the latest."""
        driver = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment, **environment},
            preexec_fn=end_with_parent,
        )
        self._drivers.append(driver)
        return driver

    def raylet(self, node: subprocess.Popen[bytes]) -> int:
        """The process that is a node."""
        return next(pid for pid in children(node.pid) if "raylet" in name_of(pid))

    def processes(self) -> set[int]:
        """Everything that was started within the environment of this cluster and lives."""
        wanted = f"{MARK}={self.mark}".encode()
        return {
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and wanted in read(entry / "environ").split(b"\0")
        }

    def stop(self) -> set[int]:
        """End every process; those that had to be killed one by one."""
        for driver in self._drivers:
            driver.kill()
            with driver:  # closes its pipe
                driver.wait()
        for node in reversed(self.nodes):
            node.terminate()
        for node in self.nodes:
            try:
                node.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
        limit = time.monotonic() + GRACE_S
        while (left := self.processes()) and time.monotonic() < limit:
            time.sleep(0.2)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.processes(), "no process of the cluster is left")
        shutil.rmtree(self.folder, ignore_errors=True)
        return left


def _begun(node: subprocess.Popen[bytes], log: Path) -> bool:
    """Whether a node is up, or has given up."""
    return node.poll() is not None or UP in read(log)


def children(pid: int) -> list[int]:
    """Processes that a process started and that live."""
    return [int(word) for word in read(Path(f"/proc/{pid}/task/{pid}/children")).split()]


def name_of(pid: int) -> str:
    """A process's name, at most 15 characters."""
    return read(Path(f"/proc/{pid}/comm")).decode().strip()


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
