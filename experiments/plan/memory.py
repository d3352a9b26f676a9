"""What memory a step of training takes, and how many cells run at once on this machine's GPUs.

    need = step_memory(read_shape(Path(config.policy.path)), config)   # GiB by part
    stop_at_problem(check_memory(todo))   # says, or refuses, what does not fit

Weights, gradients and moments are counted from the policy's ``config.json`` and exact: where they
alone do not fit, the policy is refused. What generation and the update add is an estimate, from
the tensors that a Llama-like layer keeps for backward: where it does not fit, one line says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.trainer.processes import gpus_per_cell, processes_of
from judges.serving.book import auto_served, is_wide
from judges.serving.vllm_command import gpus_of_replica
from study.cell.cells import Cell, models_of
from study.config.schema import Study
from study.errors import UserError
from study.finding import Finding, note, problem
from study.screen import plural
from study.system.files import say
from study.system.gpus import PARTS, Lease, left_by, parts_of, take
from study.system.machine import Gpu, cpus, free_memory, memory, usable_gpus

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PROMPT_TOKENS = 512
"""Assumed of a prompt: its length is not known before it is tokenised."""
ADAM_STATES = 2
HEAD_CHUNK = 2**24 * 4
"""Bytes of logits at once in the head of the shared-prefix update."""


@dataclass(frozen=True)
class Shape:
    """What a policy's ``config.json`` says of its size; widths in elements."""

    layers: int
    hidden: int
    inner: int
    query: int
    key_value: int
    vocabulary: int
    tied: bool

    @property
    def linear(self) -> int:
        """Weights of the linear layers, which LoRA adapts."""
        attention = 2 * self.hidden * (self.query + self.key_value)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def weights(self) -> int:
        """All weights, embeddings and head included."""
        return self.linear + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA adapter of all linear layers."""
        attention = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.key_value)
        return rank * self.layers * (attention + 3 * (self.hidden + self.inner))


def read_shape(folder: Path) -> Shape | None:
    """The shape of the model in ``folder``; None where its ``config.json`` does not say it."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        heads = int(config["num_attention_heads"])
        width = int(config.get("head_dim") or config["hidden_size"] // heads)
        return Shape(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            inner=int(config["intermediate_size"]),
            query=heads * width,
            key_value=int(config.get("num_key_value_heads") or heads) * width,
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings")),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def step_memory(shape: Shape, config: Study, prompt_tokens: int = PROMPT_TOKENS) -> dict[str, int]:
    """Bytes of a process by part: weights, training, generation, update. The peak is the first two
    and the larger of the last two. With ``trainer.fast`` generation takes as many rows at once as
    fit; vLLM has memory of its own.

    Args:
        prompt_tokens: of each prompt.
    """
    trainer, lora = config.trainer, config.policy.lora
    size = BYTES.get(config.policy.dtype, 4)
    trained = shape.weights if lora is None else shape.adapter(lora.r)
    # the reference of full weights is a copy
    copies = 1 + (lora is None and (trainer.beta > 0 or trainer.reference > 0))
    rollouts = trainer.prompts_per_step * trainer.group_size
    length = prompt_tokens + trainer.max_completion_length
    cache = length * 2 * shape.layers * shape.key_value * size
    merged = shape.linear * size if trainer.fast and lora is not None else 0
    groups = max(1, trainer.micro_batch // trainer.group_size)
    if trainer.fast:
        tokens = groups * prompt_tokens + trainer.micro_batch * trainer.max_completion_length
        logits = HEAD_CHUNK
    else:
        tokens = trainer.micro_batch * length
        logits = 4 * tokens * min(shape.vocabulary, 32768)
    activations = tokens * _kept_per_token(shape, trainer.gradient_checkpointing) * size
    parallel = processes_of(config)
    generation = cache * (1 if trainer.fast else rollouts) + merged
    return {
        "weights": copies * shape.weights * size // parallel.weights_in,
        "training": trained * size * (1 + ADAM_STATES) // parallel.training_in,
        "generation": generation if trainer.vllm.mode == "none" else 0,
        "update": activations + logits,
    }


def _kept_per_token(shape: Shape, checkpointing: bool) -> int:
    """Elements that one token leaves for backward.

    A layer keeps two inputs and, of each, two steps of the norm; queries, keys and values, before
    and after their heads are made equal; the attention's result; gate, its activation, up and their
    product. With checkpointing all layers keep their input alone, and one at a time the rest.
    """
    layer = 6 * shape.hidden + 5 * shape.query + 2 * shape.key_value + 4 * shape.inner
    return shape.layers * shape.hidden + layer if checkpointing else shape.layers * layer


def peak(parts: dict[str, int]) -> int:
    """Bytes at the largest moment of a step."""
    return parts["weights"] + parts["training"] + max(parts["generation"], parts["update"])


def trainings(todo: Sequence[Cell]) -> list[Study]:
    """The configs of cells that differ in what a step's memory depends on, one of each."""
    keys = ("policy", "trainer", "sweep")
    config_of = {
        json.dumps([cell.data[key] for key in keys], sort_keys=True): cell.config for cell in todo
    }
    return list(config_of.values())


def memory_per_cell(configs: Sequence[Study], on_gpu: bool) -> int:
    """Bytes of main memory to count on for a cell of any of these configs; 0 where nothing tells
    them."""
    return max((_main_memory(config, on_gpu) for config in configs), default=0)


def _main_memory(config: Study, on_gpu: bool) -> int:
    if config.sweep.memory_per_cell_gb:
        return int(config.sweep.memory_per_cell_gb * GIB)
    shape = None if on_gpu else read_shape(Path(config.policy.path))
    return peak(step_memory(shape, config)) if shape else 0


def check_memory(todo: Sequence[Cell], device: tuple[str, int] | None = None) -> Iterator[Finding]:
    """Note that a step may not fit the device of this machine; it is a problem where weights,
    gradients and moments alone are larger. Each says the parts, and what to lower first.

    Args:
        todo: the cells to train there.
        device: another machine's, in words, and its bytes.
    """
    where, available = device or (_device(todo[0].config) if todo else ("", 0))
    for config in trainings(todo):
        shape = read_shape(Path(config.policy.path))
        if shape is None or not available:
            continue
        parts = step_memory(shape, config)
        vllm = config.trainer.vllm
        room = available * (1 - vllm.gpu_memory if vllm.mode == "colocate" else 1)
        if peak(parts) <= room:
            continue
        sizes = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
        vllm_note = (
            f", of which vLLM takes {(available - room) / GIB:.1f}" if room < available else ""
        )
        text = (
            f"A step of policy={config.policy.name} takes about {peak(parts) / GIB:.1f} GiB"
            f" ({sizes}; prompts of {PROMPT_TOKENS} tokens), but {where} has"
            f" {available / GIB:.1f} GiB{vllm_note}. {_remedy(config, parts, room)}"
        )
        alone = parts["weights"] + parts["training"]
        yield (problem if alone > room else note)("memory", text)


def _remedy(config: Study, parts: dict[str, int], room: float) -> str:
    """What to type to make the largest part smaller; ``room`` is what is available."""
    trainer = config.trainer
    copied = config.policy.lora is None and trainer.beta == 0 and trainer.reference > 0
    if copied and peak(parts) - parts["weights"] // 2 <= room:
        return "Type trainer.reference=0 to keep no copy of the initial weights"
    if config.policy.lora is None and parts["training"] > parts["weights"]:
        return "Train an adapter instead of all weights, for example: policy.lora.r=64"
    if parts["update"] >= parts["generation"]:
        if not trainer.gradient_checkpointing:
            return "Type trainer.gradient_checkpointing=true"
        half = max(trainer.group_size, trainer.micro_batch // 2)
        if half < trainer.micro_batch:
            return f"Type trainer.micro_batch={half}"
    elif trainer.prompts_per_step > 1:
        return f"Type trainer.prompts_per_step={trainer.prompts_per_step // 2}"
    return (
        f"Type trainer.max_completion_length={max(1, trainer.max_completion_length // 2)},"
        " a smaller policy, or policy.dtype=bfloat16"
    )


def _device(config: Study) -> tuple[str, int]:
    """Where a policy is trained, in words, and its bytes: what a cell has of the smallest GPU that
    it may get, else main memory."""
    usable = usable_gpus(config.device)
    measured = [gpu for gpu in usable if gpu.memory]
    each = gpus_per_cell(config, len(usable))
    if not each or not measured:
        return "this machine", 0 if each else memory()
    smallest = min(measured, key=lambda gpu: gpu.memory)
    share = f"a share of {each:g} of " if each < 1 else ""
    return f"{share}the GPU {smallest.model}", int(smallest.memory * min(1, each))


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
