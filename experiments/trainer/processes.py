"""The processes of one cell: their environment, their shares of a step, and how several start.

Where `sweep.accelerate` asks for more than one, `launch` starts ``accelerate launch`` in place of a
fork, and that the processes. The first one locks, records, logs and asks judges
(`experiments.train`); the others follow (`experiments.train.follow`) and end with whoever started
them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.config.presets import preset_file, preset_names
from study.config.schema import Study, Trainer
from study.errors import UserError
from study.finding import Finding, problem
from study.screen import plural
from study.system.files import read_yaml
from study.system.machine import device_variables, gpus, kernel_variables
from study.system.stopping import end_with_parent

SURROUNDINGS = {
    # Children share cores with each other and with a local judge: a thread that spins while it
    # waits takes the core from whoever it waits for.
    "OMP_WAIT_POLICY": "PASSIVE",
    # A step of TRL's own frees and takes the same hundreds of megabytes again. Kept by the process,
    # they are not given back to the kernel, which would clear every page anew.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
} | kernel_variables()
"""Environment of the children, where the user's own does not say otherwise."""


@contextlib.contextmanager
def surroundings(device: str = "") -> Generator[None]:
    """Within the block a process begins with `SURROUNDINGS` and computes on ``device``; a judge's
    server does not. Raises UserError: as `study.system.machine.device_variables`."""
    added = {name: value for name, value in SURROUNDINGS.items() if name not in os.environ}
    added |= device_variables(device)
    before = {name: os.environ[name] for name in added if name in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
        os.environ.update(before)


def check_batch(trainer: Trainer, processes: int = 1) -> None:
    """Refuse a micro-batch that does not divide the P * G rollouts of a step, processes that cannot
    share them evenly, and a schedule that cannot end at the learning rate."""
    rollouts = trainer.prompts_per_step * trainer.group_size
    step = (
        f"the {rollouts} rollouts of a step (prompts_per_step={trainer.prompts_per_step} x "
        f"group_size={trainer.group_size})"
    )
    if rollouts % trainer.micro_batch:
        raise UserError(
            f"trainer.micro_batch={trainer.micro_batch} does not divide {step}. Type a divisor, "
            f"for example: trainer.micro_batch={trainer.group_size}"
        )
    if rollouts % processes:
        raise UserError(
            f"The {processes} processes of sweep.accelerate do not divide {step}. Type for "
            f"example: trainer.prompts_per_step={processes} trainer.micro_batch="
            f"{trainer.group_size}"
        )
    share = rollouts // processes
    if share % rows_per_pass(trainer, processes):
        raise UserError(
            f"trainer.micro_batch={trainer.micro_batch} does not divide the {share} rollouts that"
            f" each of the {processes} processes takes of {step}. Type a divisor, for example:"
            f" trainer.micro_batch={share}"
        )
    if trainer.lr_scheduler == "polynomial" and trainer.learning_rate <= 1e-7:
        raise UserError(
            f"trainer.learning_rate={trainer.learning_rate} is not above the 1e-7 at which "
            "trainer.lr_scheduler=polynomial ends. Type trainer.lr_scheduler=linear"
        )


def rows_per_pass(trainer: Trainer, processes: int) -> int:
    """Rollouts per forward and backward pass of each process."""
    share = trainer.prompts_per_step * trainer.group_size // processes
    return min(trainer.micro_batch, share)


GROUP = "accelerate"
KINDS = ("MULTI_GPU", "FSDP", "DEEPSPEED")
"""What ``distributed_type`` may be; MULTI_GPU with ``use_cpu`` runs on CPUs."""
LAST_S = 10.0
"""How long a process may take to end in order once whoever started it is gone."""


@dataclass(frozen=True)
class Processes:
    """What an accelerate config file asks for."""

    count: int = 1
    kind: str = ""
    zero_stage: int = 0
    on_cpu: bool = False

    @property
    def weights_in(self) -> int:
        """Into how many parts the weights are cut."""
        return self.count if self.kind == "FSDP" or self.zero_stage == 3 else 1

    @property
    def training_in(self) -> int:
        """Into how many parts gradients and moments are cut."""
        return self.count if self.kind == "FSDP" or self.zero_stage >= 2 else 1


def processes_of(config: Study) -> Processes:
    """The processes that train a cell.

    Raises:
        UserError: the file cannot be read, or asks for what a cell cannot be trained by.
    """
    file = config.sweep.accelerate
    if not file:
        return Processes()
    remedy = "Type sweep.accelerate=FILE, or a preset such as fsdp, or leave it out."
    try:
        settings = read_yaml(config_file(file), remedy)
    except FileNotFoundError:
        presets = ", ".join(preset_names(GROUP))
        raise UserError(
            f"sweep.accelerate={file} is not a file. Presets are {presets}. {remedy}"
        ) from None
    kind, count = settings.get("distributed_type"), settings.get("num_processes")
    if kind not in KINDS:
        raise _illegal(file, "distributed_type", kind, f"one of {', '.join(KINDS)}", remedy)
    if type(count) is not int or not 2 <= count <= 4096:
        raise _illegal(file, "num_processes", count, "a whole number from 2 to 4096", remedy)
    if settings.get("num_machines", 1) != 1:
        machines = settings["num_machines"]
        raise _illegal(file, "num_machines", machines, "1: a cell runs on one machine", remedy)
    deepspeed = settings.get("deepspeed_config")
    stage = deepspeed.get("zero_stage", 2) if isinstance(deepspeed, dict) else 0
    if kind == "DEEPSPEED" and stage not in (0, 1, 2, 3):
        raise _illegal(file, "deepspeed_config.zero_stage", stage, "from 0 to 3", remedy)
    if kind != "DEEPSPEED":
        stage = 0
    return Processes(count, kind, stage, settings.get("use_cpu") is True)


def config_file(file: str) -> Path:
    """The file that ``sweep.accelerate`` names: its path, or that of a preset, which may be typed
    as ``fsdp`` or ``conf/accelerate/fsdp.yaml``."""
    path = Path(file)
    is_preset = file in (path.stem, f"conf/{GROUP}/{path.stem}.yaml")
    return preset_file(GROUP, path.stem) if is_preset and not path.is_file() else path


def _illegal(file: str, key: str, value: Any, legal: str, remedy: str) -> UserError:
    return UserError(
        f"sweep.accelerate={file} has {key}: {str(value)[:80]}, which must be {legal}. {remedy}"
    )


def gpus_per_cell(config: Study, available: int) -> float:
    """GPUs of each cell where ``available`` may be used: whole ones, or a share of one.
    Raises UserError: ``sweep.gpus_per_cell`` is not legal, or more than there are."""
    per_cell, device = config.sweep.gpus_per_cell, config.device
    processes = processes_of(config)
    if per_cell > 1 and per_cell != int(per_cell):
        raise UserError(
            f"sweep.gpus_per_cell={per_cell:g} is not legal: it must be a whole number, or a share"
            f" of one GPU. Type for example: sweep.gpus_per_cell={int(per_cell)}"
        )
    if per_cell and device == "cpu":
        raise UserError(
            f"sweep.gpus_per_cell={per_cell:g} needs GPUs, but device=cpu has none. Leave one of"
            " them out."
        )
    if processes.count > 1 and not processes.on_cpu:
        if per_cell not in (0, processes.count):
            raise UserError(
                f"sweep.gpus_per_cell={per_cell:g} does not fit the {processes.count} processes"
                f" that sweep.accelerate={config.sweep.accelerate} starts, with a GPU each. Leave"
                " sweep.gpus_per_cell out."
            )
        _check_gpus(config, processes.count, available)
        return float(processes.count)
    if per_cell > available:
        here = plural(available, "GPU")
        less = f"Type sweep.gpus_per_cell={available}." if available else "Leave it out."
        raise UserError(
            f"sweep.gpus_per_cell={per_cell:g} is more than this process may use: {here}"
            f" here{f' with device={device}' if device else ''}. {less}"
        )
    if processes.on_cpu:
        return 0.0
    return per_cell or float(available > 0)


def _check_gpus(config: Study, needed: int, available: int) -> None:
    if available < needed:
        fewer = f"write num_processes: {available} in a copy of the file, " if available > 1 else ""
        raise UserError(
            f"sweep.accelerate={config.sweep.accelerate} asks for {needed} processes with a GPU"
            f" each, but this machine has {available}. Type this on a machine with {needed},"
            f" {fewer}or leave sweep.accelerate out."
        )


def check_processes(todo: Sequence[Cell]) -> Iterator[Finding]:
    """Refuse to begin where GPUs or DeepSpeed are missing that the cells' processes need."""
    for config in {cell.config.sweep.accelerate: cell.config for cell in todo}.values():
        processes, available = processes_of(config), len(gpus())
        if processes.kind and not processes.on_cpu:
            _check_gpus(config, processes.count, available)
        if processes.kind == "DEEPSPEED" and importlib.util.find_spec("deepspeed") is None:
            yield problem(
                "processes",
                f"sweep.accelerate={config.sweep.accelerate} needs DeepSpeed, which cannot be "
                "imported here. Type pip install deepspeed, or "
                "sweep.accelerate=fsdp",
            )


def launch(folder: CellFolder, config: Study, threads: int) -> int:
    """Train a cell by several processes, and wait for them; exit codes are those of `run_cell`.

    Args:
        threads: torch threads of all of them.
    """
    processes = processes_of(config)
    words = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    words += ["--config_file", str(config_file(config.sweep.accelerate).absolute()), "-m"]
    words += [
        "experiments.train",
        f"cell={folder}",
        f"threads={max(1, threads // processes.count)}",
    ]
    # accelerate numbers CPUs, and torch does not load what was saved from cpu:0
    variables = {"ACCELERATE_TORCH_DEVICE": "cpu"} if processes.on_cpu else {}
    began = time.time()
    child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        env=os.environ | variables,
        preexec_fn=end_with_parent,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: child.terminate())
    code = child.wait()
    if folder.is_done():
        return 0
    if folder.state() == "running":  # by another process: these have ended
        return cells.BUSY
    # the launcher ends with 1 whatever went wrong; the first process has recorded what, if it came
    # so far
    status = folder.status()
    recorded = status.get("exit_code") if status.get("ended", 0.0) >= began else None
    return recorded or abs(code) or 1


def count() -> int:
    """How many processes train the cell that this process trains."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    """The number of this process among them, from 0."""
    return int(os.environ.get("RANK") or 0) if count() > 1 else 0


def leave_with_launcher() -> None:
    """End this process when the launcher that started it is gone, however that ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LAST_S)
        os._exit(cells.ORPHANED)

    threading.Thread(target=watch, daemon=True).start()
