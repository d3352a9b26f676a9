"""How many cells run at once on this machine, and which GPUs each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.plan.memory import memory_per_cell, trainings
from experiments.trainer.processes import gpus_per_cell, processes_of
from judges.serving.book import auto_served, is_wide
from judges.serving.vllm_command import gpus_of_replica
from study.cell.cells import Cell, models_of
from study.errors import UserError
from study.screen import plural
from study.system.files import say
from study.system.gpus import PARTS, Lease, left_by, parts_of, take
from study.system.machine import Gpu, cpus, free_memory, usable_gpus


@dataclass(frozen=True)
class Slots:
    """What cells of a sweep get of this machine."""

    at_once: int
    threads: int
    """Torch threads of each."""
    gpus: tuple[Gpu, ...]
    gpus_each: float

    def describe(self, count: int) -> str:
        """A line on what becomes of ``count`` cells."""
        text = (
            f"{plural(count, 'cell')} to run, {self.at_once} at once,"
            f" {plural(self.threads, 'thread')} each"
        )
        if not self.gpus_each:
            return text
        many = "" if self.gpus_each <= 1 else "s"
        return f"{text}, {self.gpus_each:g} GPU{many} each of {len(self.gpus)}"

    def lease(self) -> Lease | None:
        """GPUs for one more cell; None while others have them, which is said once."""
        lease = take(self.gpus, self.gpus_each)
        if lease is None:
            say(
                "Your other sweeps and servers hold this machine's GPUs:"
                f" {len(self.gpus)} usable, {self.gpus_each:g} needed for each cell."
                " Waiting for one."
            )
        return lease


def slots_of(todo: Sequence[Cell]) -> Slots:
    """What each of the cells gets, by the settings of their sweep and what is here.
    Raises UserError: a device, or as many GPUs as asked for, are not here."""
    config = todo[0].config
    sweep = config.sweep
    usable = tuple(usable_gpus(config.device))
    gpus_each, fit = fitting(usable, todo)
    at_once = sweep.workers
    if not at_once:
        several = processes_of(config).count > 1 and not gpus_each  # they share the CPUs
        at_once = 1 if several else cpus() // max(1, sweep.cpus_per_cell)
        need = memory_per_cell(trainings(todo), gpus_each > 0)
        available = free_memory()
        if need and available:
            at_once = min(at_once, int(available // need))
    if gpus_each:
        at_once = min(at_once, fit)
    at_once = max(1, min(at_once, len(todo)))
    threads = sweep.threads or sweep.cpus_per_cell or max(1, cpus() // at_once)
    return Slots(at_once, threads, usable, gpus_each)


def fitting(usable: Sequence[Gpu], todo: Sequence[Cell]) -> tuple[float, int]:
    """GPUs of each cell, and how many cells have them at once beside the models that the sweep
    serves on this machine.
    Raises UserError: as `gpus_per_cell`, or nothing is left for a cell."""
    config = todo[0].config
    each = gpus_per_cell(config, len(usable))
    if not each:
        return 0.0, 0
    served = [
        model
        for model in auto_served(models_of(todo))
        if gpus_of_replica(model)[0]
        and not is_wide(model)  # perhaps on another machine
        and not config.device  # the cells have the GPU that it names, the models any other
    ]
    wants = [gpus_of_replica(model) for model in served for _ in range(model.serve.replicas)]
    parts_left = left_by(len(usable), wants)
    if each < 1:
        fit = sum(parts // parts_of(each) for parts in parts_left or [])
    else:
        fit = sum(parts == PARTS for parts in parts_left or []) // int(each)
    if not fit:
        names = ", ".join(f"{model.role}={model.name}" for model in served)
        gpus_served = sum(count for count, _ in wants)
        raise UserError(
            f"This sweep serves {names} here, on {gpus_served} GPUs, and each cell needs {each:g}."
            f" This process may use {len(usable)}, so none is left for a cell. Serve on another"
            " machine; or if a server already runs, leave serve.auto=true out; or share a GPU,"
            f" for example with {served[0].role}.serve.gpu_memory_utilization=.5"
            " sweep.gpus_per_cell=.5"
        )
    return each, fit
