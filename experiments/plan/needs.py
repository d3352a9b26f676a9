"""What each engine needs to be there, and what it refuses before anything is laid or trained."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from experiments.plan.shard import share_of
from experiments.slurm.submission import executor_of
from study.cell.cells import Cell
from study.finding import Finding, problem

HERE = ("local", "shard")
"""Engines that train on this machine: what it lacks is refused before they begin."""
PACKAGES = {"ray": "ray", "slurm": "submitit"}
"""Engine -> the package that it needs; the extra that brings it is called as the engine."""


def check_engine(todo: Sequence[Cell], launcher: Sequence[str] = ()) -> Iterator[Finding]:
    """Refuse an engine that is not installed, settings that it does not take, several engines, or
    one beside Hydra's ``launcher``. A plan asks only what concerns no other machine."""
    config, sweep = todo[0].config, todo[0].config.sweep
    if launcher and sweep.engine != "local":
        yield problem(
            "engine",
            f"sweep.engine={sweep.engine} and {launcher[0]} both choose where cells run. Leave one"
            " of them out.",
        )
    for key in ("engine", "shard"):
        values = list(dict.fromkeys(getattr(cell.config.sweep, key) for cell in todo))
        if len(values) > 1:
            yield problem(
                "engine",
                f"sweep.{key}= is one value for all cells of a sweep, but {','.join(values)} are"
                " given. Type one of them.",
            )
    share_of(todo)
    if (package := PACKAGES.get(sweep.engine)) and importlib.util.find_spec(package) is None:
        yield problem(
            "engine",
            f"sweep.engine={sweep.engine} needs {package}, which is not installed here. Type"
            f" pip install -e .[{sweep.engine}], or leave sweep.engine out to run the cells on this"
            " machine.",
        )
    if sweep.engine != "slurm":
        return
    if sweep.slurm.cluster == "slurm" and not config.plan and shutil.which("sbatch") is None:
        yield problem(
            "engine",
            "sweep.engine=slurm submits cells by sbatch, which is not on the PATH here. Type the"
            " command on a login node of the cluster; or sweep.slurm.cluster=local, which runs"
            " the jobs on this machine; or leave sweep.engine out.",
        )
    if sweep.gpus_per_cell != int(sweep.gpus_per_cell):
        yield problem(
            "engine",
            f"sweep.gpus_per_cell={sweep.gpus_per_cell:g} shares a GPU, but Slurm gives each job"
            " whole ones. Type sweep.gpus_per_cell=1",
        )
    if sweep.slurm.cluster == "slurm" and config.plan:
        return
    with tempfile.TemporaryDirectory() as folder:
        executor_of(config, folder)
