"""Jobs of Slurm: submitted by the settings of a sweep, asked about by Slurm's own commands, ended.

Slurm's accounting is not asked: not every cluster has it. On one machine, processes stand for jobs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.slurm import jobs as queue
from study.config.schema import Study
from study.errors import UserError

EVERY_S = {"slurm": 5.0, "local": 0.5}
"""How often the queue is asked, by cluster."""
ALIVE = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SIGNALING", "STAGE_OUT"),
    *("RESV_DEL_HOLD", "UNKNOWN"),
}
CANCELLED = "CANCELLED"
GONE = "GONE"
"""A job that the queue does not know any more."""
COMMON = ("None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency", "")
"""Reasons of a waiting job that nobody need be told."""
MOST = 10_000
COMMAND_S = 60.0
_KEPT: dict[str, Any] = {}
"""Jobs of this machine by id: only their parent can wait for them."""


@dataclass(frozen=True)
class States:
    """States of jobs as the queue has them."""

    of: dict[str, str]
    """Id -> state; `GONE` where it is not among them."""
    notices: set[str] = field(default_factory=set)
    """What somebody should be told, once."""


def states(ids: Sequence[str], local: bool) -> States:
    """The states of jobs. Where the queue does not answer, each is UNKNOWN."""
    if local:
        return States({id: "RUNNING" for id in ids if _lives(id)})
    arrays = sorted({id.partition("_")[0] for id in ids})
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r"]
    code, out, err = _run_command([*command, f"--jobs={','.join(arrays)}"])
    if code and "Invalid job id" not in err:
        notices = f"Slurm's queue does not answer ({err[:200]}); asking again"
        return States(dict.fromkeys(ids, "UNKNOWN"), {notices})
    lines = [line.split("|") for line in out.splitlines()]
    rows = [line for line in lines if len(line) == 3]
    reasons = {reason for _, state, reason in rows if state == "PENDING"} - set(COMMON)
    notices = {f"Slurm lets jobs of this study wait: {reason}" for reason in reasons}
    return States({id: state for id, state, _ in rows}, notices)


def cancel(ids: Sequence[str], local: bool) -> None:
    """Tell jobs to end. Slurm kills what does not."""
    if not local:
        for start in range(0, len(ids), 500):
            _run_command(["scancel", *ids[start : start + 500]])
        return
    for id in ids:
        if _lives(id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(id), signal.SIGTERM)  # which it passes on


def kill(ids: Sequence[str]) -> None:
    """Kill what jobs of this machine still run."""
    for id in ids:
        for child in _run_command(["ps", "-o", "pid=", "--ppid", id])[1].split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)


def keep(job: Any) -> None:
    """Have a job of this machine waited for by its parent."""
    _KEPT[job.job_id] = job


def _lives(id: str) -> bool:
    if id in _KEPT:
        return not _KEPT[id].done()
    _, out, _ = _run_command(["ps", "-o", "command=", "-p", id])
    return "submitit" in out


def log(folder: Path, id: str) -> Path:
    """Where a job's output goes until the cell has a log of its own."""
    return folder / f"{id}_0_log.err"


def clear(folder: Path, id: str) -> None:
    """Remove what submitit wrote for a job that came to a good end."""
    for name in ("submitted.pkl", "0_result.pkl", "0_log.out", "0_log.err"):
        (folder / f"{id}_{name}").unlink(missing_ok=True)
    _KEPT.pop(id, None)


def most_of_an_array() -> int:
    """The most jobs that this cluster takes as one array."""
    _, out, _ = _run_command(["scontrol", "show", "config"])
    match = re.search(r"MaxArraySize\s*=\s*([0-9]{1,9})", out)
    return max(1, min(int(match[1]), MOST)) if match else 1000


def has_gpus(partition: str) -> bool:
    """Whether the nodes of a partition, or of any where it is not named, have GPUs."""
    options = [f"--partition={partition}"] if partition else []
    return "gpu" in _run_command(["sinfo", "--noheader", "--format=%G", *options])[1]


def _run_command(command: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command; 127 where it cannot be run or does not answer."""
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        return process.returncode, process.stdout, " ".join(process.stderr.split())
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, "", str(error)


def executor_of(config: Study, folder: str | Path) -> Any:
    """What submits jobs by the settings of a sweep; their files are in ``folder``.
    Raises UserError: ``sweep.slurm.more`` has a setting that submitit does not take."""
    import submitit

    sweep, slurm = config.sweep, config.sweep.slurm
    executor = submitit.AutoExecutor(folder, cluster=slurm.cluster)
    gpus = int(sweep.gpus_per_cell)
    if slurm.cluster == "slurm" and not gpus and config.device != "cpu":
        gpus = int(queue.has_gpus(slurm.partition))
    options = {
        "partition": slurm.partition,
        "account": slurm.account,
        "constraint": slurm.constraint,
        "setup": slurm.setup,
        "array_parallelism": sweep.workers,
    }
    slurm_settings = {key: value for key, value in options.items() if value} | slurm.more
    settings: dict[str, Any] = {
        "name": f"judgedrift-{config.study}",
        "timeout_min": slurm.time_min,
        "cpus_per_task": sweep.cpus_per_cell or sweep.threads or 1,
        "gpus_per_node": gpus or None,
        "mem_gb": sweep.memory_per_cell_gb or None,
        "slurm_array_parallelism": queue.MOST,
    }
    try:
        executor.update_parameters(
            **settings | {f"slurm_{key}": value for key, value in slurm_settings.items()}
        )
    except (ValueError, TypeError, NameError) as error:
        why = " ".join(str(error).split()).partition(" Known executors")[0].replace("slurm_", "")
        raise UserError(
            f"sweep.slurm.more={slurm.more} is not legal for submitit: {why[:900]}. Type one of"
            " its settings, for example: sweep.slurm.more.qos=NAME"
        ) from error
    return executor
