"""What each engine needs to be there, what it refuses, and the shares of ``sweep.engine=shard``.

``sweep.engine=shard sweep.shard=1/2`` here and ``2/2`` there, or shortly ``shard=1/2``. Which cells
are whose depends on the study's cells alone.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from experiments.slurm.jobs import executor_of
from study.cell.cells import Cell
from study.errors import UserError
from study.finding import Finding, problem
from study.system.installed import install

MOST = 10_000
_SHARD = re.compile(r"([0-9]{1,5})/([0-9]{1,5})", re.ASCII)


def share_of(todo: Sequence[Cell]) -> list[Cell]:
    """The cells that are run here, of the study's ``todo``: all but for ``engine=shard``.
    Raises UserError: ``sweep.shard`` is not a share, or is given to another engine."""
    sweep = todo[0].config.sweep
    if sweep.engine != "shard" and not sweep.shard:
        return list(todo)
    match = _SHARD.fullmatch(sweep.shard)
    number, count = (int(text) for text in match.groups()) if match else (0, 0)
    if not 1 <= number <= count <= MOST:
        raise UserError(
            f"sweep.shard={sweep.shard[:80]} is not a share: it must be I/N in whole numbers, with"
            f" N at most {MOST} and I from 1 to N. For the first of two machines, type shard=1/2"
        )
    if sweep.engine != "shard":
        raise UserError(
            f"sweep.shard={sweep.shard} needs sweep.engine=shard, but sweep.engine={sweep.engine}"
            f" is given. Type shard={sweep.shard}, or leave sweep.shard out."
        )
    mine = shares(todo, count)[number - 1]
    return [cell for cell in todo if cell.id in mine]


def shares(todo: Sequence[Cell], count: int) -> list[set[str]]:
    """Ids of the cells of each of ``count`` shares, whose sizes differ by one at most. The cells of
    one judge are in one share where that is so with whole judges, and else mostly."""
    judge_of = {cell.id: cell.config.judge.name for cell in todo}
    ordered = sorted(judge_of, key=lambda id: (judge_of[id], id))
    judges = [list(ids) for _, ids in groupby(ordered, key=judge_of.__getitem__)]
    whole: list[set[str]] = [set() for _ in range(count)]
    for ids in sorted(judges, key=len, reverse=True):
        min(whole, key=len).update(ids)
    sizes = [len(share) for share in whole]
    if max(sizes) - min(sizes) <= 1:
        return whole
    edges = [len(ordered) * place // count for place in range(count + 1)]
    return [set(ordered[low:high]) for low, high in pairwise(edges)]


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
            f" {install(sweep.engine)}, or leave sweep.engine out to run the cells on this"
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
