"""A cluster of Ray as a sweep sees it: reached within a limit, its nodes examined one by one."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.launch import node
from experiments.plan.memory import memory_per_cell
from experiments.train import PACKAGES
from experiments.trainer.processes import gpus_per_cell
from study.cell.cells import Cell
from study.config.schema import Study
from study.errors import UserError
from study.finding import stop_at_problem
from study.system.files import first_line
from study.system.machine import cpus, gpus
from study.system.secrets import redact

CONNECT_S = 10.0
"""How long a host may take to accept a connection."""
ANSWER_S = 180.0
"""How long a cluster may take to let a first process in: it starts one, which on nodes that are
busy takes minutes."""
PAUSE_S = 1.0
"""How long a sweep stops for nodes that have not answered, at each look."""
TOLD_S = 30.0
"""How long it stops for the clock and the GPUs of a node that has answered."""
STORE = 80_000_000
"""Bytes of the object store of a cluster of our own: almost nothing passes through it."""
PROBE = (
    "import sys, ray\nray.init(address=sys.argv[1], log_to_driver=False, logging_level='error')\n"
)
_ADDRESS = re.compile(r"auto|(?P<host>[^:/\s]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
RAY = (*PACKAGES, "ray")
"""Packages whose versions every node must have."""


@contextmanager
def connected(address: str) -> Generator[Any]:
    """Within the block this process is a driver of a cluster; gives the module ``ray``.

    Args:
        address: HOST:PORT, auto for the one that runs here, empty to start one for the block.

    Raises:
        UserError: nothing answers in time.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():  # by a service that the sweep has joined
        yield ray
        return
    if address:
        check_address(address)
    options: dict[str, Any] = {"address": address}
    if not address:
        options = {"address": "local", "num_cpus": cpus(), "include_dashboard": False}
        options["object_store_memory"] = STORE
        os.environ.setdefault("RAY_worker_niceness", "0")  # else cells get what other work leaves
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        for number, handler in handlers.items():  # Ray would end this process without a word
            signal.signal(number, handler)
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Let another process join first: Ray's own attempt takes minutes and ends the process.
    Raises UserError: none could in time."""
    remedy = (
        "Start the cluster, on this machine too: ray start --head on the first one, and ray"
        " start --address=HOST:PORT on every other. Or leave sweep.ray.address out to start one"
        " here."
    )
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise UserError(
            f"sweep.ray.address={address[:80]} is not an address. Legal are HOST:PORT, and auto"
            f" for the cluster that runs on this machine. {remedy}"
        )
    if match["host"]:
        try:
            place = (match["host"].strip("[]"), int(match["port"]))
            socket.create_connection(place, CONNECT_S).close()
        except OSError as error:
            raise UserError(
                f"No Ray cluster answers at sweep.ray.address={address} ({error}). {remedy}"
            ) from None
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE, address],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"within {ANSWER_S:g} s"
    else:
        if probe.returncode == 0:
            return
        why = f"({redact((probe.stderr.strip().splitlines() or ['no reason given'])[-1][:400])})"
    raise UserError(
        f"No Ray cluster accepted a process at sweep.ray.address={address} {why}. {remedy}"
    )


def living(ray: Any) -> dict[str, dict[str, float]]:
    """Nodes that live now -> what they have in all, by Ray's names of resources."""
    return {item["NodeID"]: item["Resources"] for item in ray.nodes() if item["Alive"]}


def needs(configs: Sequence[Study], nodes: dict[str, dict[str, float]]) -> dict[str, float]:
    """What any cell of these configs takes of a node: CPU, GPU, memory in bytes. Where any node has
    GPUs, a cell takes one if nothing else is said."""
    config, sweep = configs[0], configs[0].sweep
    most = max((int(node.get("GPU", 0)) for node in nodes.values()), default=0)
    available = 0 if config.device == "cpu" else max(most, math.ceil(sweep.gpus_per_cell))
    share = gpus_per_cell(config, available)
    amounts = {
        "CPU": sweep.cpus_per_cell or sweep.threads or 1,
        "GPU": share,
        "memory": memory_per_cell(configs, share > 0),
    }
    return {name: amount for name, amount in amounts.items() if amount}


def capacity(resources: dict[str, float], needed: dict[str, float]) -> int:
    """How many cells a node holds at once; one that shares a GPU lies on a single one."""
    counts = {name: int(resources.get(name, 0) / amount + 1e-9) for name, amount in needed.items()}
    if 0 < needed.get("GPU", 0) < 1:
        counts["GPU"] = int(resources.get("GPU", 0)) * int(1 / needed["GPU"] + 1e-9)
    return min(counts.values())


def on_node(node_id: str) -> Any:
    """Where a task or an actor of Ray has to run."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


class Examiner:
    """Asks nodes what they are, and says why no cell may run there. A node that does not answer is
    asked on: it may be busy, and nobody waits for it while others work."""

    def __init__(self, ray: Any, todo: Sequence[Cell], sign: Path) -> None:
        self._ray, self._todo, self._sign = ray, todo, sign
        self._here = node.describe(RAY, str(sign))
        self._requests: dict[str, Any] = {}
        """Node that has not answered -> what it was asked."""
        ray.cloudpickle.register_pickle_by_value(node)  # a node may have nothing of ours
        self._describe, self._time, self._gpus = (
            ray.remote(num_cpus=0, max_retries=0)(function)
            for function in (node.describe, _now, gpus)
        )

    def refusals(self, nodes: Sequence[str], share: float) -> dict[str, str]:
        """Why no cell may run on each of these nodes, nothing where one may; only of those that
        have answered.

        Args:
            nodes: their ids, the same ones again until they have answered.
            share: of a GPU that a cell takes.
        """
        self._requests = {name: self._requests.get(name) or self._ask(name) for name in nodes}
        refs = list(self._requests.values())
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=PAUSE_S)
        examined = {
            name: self._refusal(name, ref, share)
            for name, ref in self._requests.items()
            if ref in ready
        }
        return {name: why for name, why in examined.items() if why is not None}

    def _ask(self, name: str) -> Any:
        where = on_node(name)
        return self._describe.options(scheduling_strategy=where).remote(RAY, str(self._sign))

    def _refusal(self, name: str, ref: Any, share: float) -> str | None:
        """Why no cell may run on a node that has said what it is; None where it fell silent."""
        where = on_node(name)
        try:
            there = self._ray.get(ref)
            stop_at_problem(node.check_node(self._here, there, self._sign))
            ask = self._time.options(scheduling_strategy=where)
            offset_s, within_s = node.clock_offset(
                lambda: self._ray.get(ask.remote(), timeout=TOLD_S), time.time
            )
            stop_at_problem(node.check_clock(there["host"], offset_s, within_s))
            if share:
                listed = self._gpus.options(scheduling_strategy=where).remote()
                gpus_there = self._ray.get(listed, timeout=TOLD_S)
                stop_at_problem(node.check_gpus(self._todo, there["host"], gpus_there, share))
        except UserError as error:
            return str(error)
        except self._ray.exceptions.GetTimeoutError:
            return None
        except self._ray.exceptions.RayError as error:
            return f"The node {name[:12]} of the cluster cannot run tasks ({first_line(error)})."
        return ""


def _now() -> float:
    return time.time()
