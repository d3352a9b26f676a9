"""Generates answers with vLLM in this process, without a server: a model with its LoRA adapter.

Prompts, tokens and ends are those of `generate`; only what computes the tokens is another.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judges.serving.vllm_cpu import set_defaults
from study.errors import UserError
from study.system.files import first_line, read_json
from study.system.installed import IS_CHECKOUT, install
from study.system.machine import usable_gpus

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM reserves room for; a smaller one fits."""
BY_TRANSFORMERS = "or leave engine=vllm out: transformers then generates the answers"
# Only the Makefile of a checkout builds vLLM for CPUs together with the trainer's packages.
WITHOUT_GPU = (
    "without one type make vllm-cpu-trainer, then the command with"
    " .venv-vllm-cpu-trainer/bin/python -m judgedrift in place of judgedrift; "
    if IS_CHECKOUT
    else ""
)


@dataclass(frozen=True)
class Place:
    """A model, and what its engine takes of this machine.

    Attributes:
        path: folder or hub id.
        dtype: of the weights, as torch names it.
        gpu_memory: share of each GPU for weights and cache.
        tensor_parallel: GPUs that share one copy of the model.
    """

    path: str
    dtype: str
    gpu_memory: float
    tensor_parallel: int


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; a temperature of 0 takes the likeliest."""

    temperature: float
    top_p: float
    top_k: int
    ends: tuple[int, ...]
    """Ids of the tokens that end an answer."""


@dataclass(frozen=True)
class Request:
    """A prompt as token ids, the most tokens of its answer, and the seed that draws them."""

    ids: list[int]
    max_tokens: int
    seed: int


@dataclass
class Held:
    """The engine of this process: one, for two would need twice the memory."""

    place: Place | None = None
    rank: int = 0
    """The largest adapter that it takes; 0 for none."""
    engine: Any = None
    adapters: list[str] = field(default_factory=list)


HELD = Held()


def is_cpu_build() -> bool:
    """Whether vLLM's build for CPUs is installed here."""
    return "cpu" in importlib.metadata.version("vllm")


def refuse_missing(tensor_parallel: int) -> None:
    """Refuse an engine that this machine cannot have. Raises UserError: vLLM is not installed, or
    there are too few GPUs."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "engine=vllm needs vLLM, which cannot be imported in this environment. On a machine"
            f" with a GPU type {install('gpu')}; {WITHOUT_GPU}{BY_TRANSFORMERS}."
        )
    n_gpus = len(usable_gpus())
    if is_cpu_build():
        if tensor_parallel > 1:
            raise UserError(
                f"tensor_parallel={tensor_parallel} shares a model between GPUs, but this is vLLM's"
                " build for CPUs. Leave it out."
            )
    elif n_gpus < tensor_parallel:
        raise UserError(
            f"engine=vllm needs a GPU for each of tensor_parallel={tensor_parallel}, but this"
            f" process may use {n_gpus}. Type tensor_parallel={n_gpus or 1}, {BY_TRANSFORMERS}."
        )


def answers(
    place: Place, adapter: Path | None, sampling: Sampling, requests: Mapping[str, Request]
) -> Iterator[tuple[str, list[int]]]:
    """(name, token ids of the answer) of every request as soon as it is there, in any order; the
    last id is one of ``sampling.ends`` where the answer came to one.

    Raises UserError: vLLM does not take the model or the adapter, or memory lacks for the longest
    request.
    """
    engine, lora = _engine_of(place, adapter)
    vllm = importlib.import_module("vllm")
    longest = max(len(request.ids) + request.max_tokens for request in requests.values())
    room = engine.model_config.max_model_len
    if longest > room:
        raise UserError(
            f"The longest prompt and its answer take {longest} tokens, but the memory that vLLM has"
            f" holds {room}. Type a smaller max_tokens=, a larger gpu_memory= or tensor_parallel=,"
            f" {BY_TRANSFORMERS}."
        )
    for name, request in requests.items():
        params = vllm.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=list(sampling.ends),
            seed=request.seed,
            max_tokens=request.max_tokens,
            detokenize=False,
        )
        engine.add_request(name, {"prompt_token_ids": request.ids}, params, lora_request=lora)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                yield output.request_id, list(output.outputs[0].token_ids)


def _engine_of(place: Place, adapter: Path | None) -> tuple[Any, Any]:
    """(engine, request for the adapter), of which the first is kept for the next call."""
    rank = 0
    if adapter is not None:
        needed = int(read_json(adapter / "adapter_config.json").get("r", 1))
        rank = next((size for size in RANKS if size >= needed), needed)
    try:
        if place != HELD.place or rank > HELD.rank:
            _close()
            HELD.engine = _start(place, rank)
            HELD.place, HELD.rank = place, rank
        return HELD.engine, None if adapter is None else _loaded(adapter)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        what = f"{place.path} with adapter={adapter}" if adapter else place.path
        raise UserError(
            f"vLLM does not take {what} ({type(error).__name__}: {first_line(error)[:300]}). It"
            f" says more in what it printed. Type another gpu_memory=, {BY_TRANSFORMERS}."
        ) from error


def _start(place: Place, rank: int) -> Any:
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if is_cpu_build():
        set_defaults()
    vllm = importlib.import_module("vllm")
    lora = {"enable_lora": True, "max_lora_rank": rank} if rank else {}
    arguments = vllm.EngineArgs(
        model=place.path,
        skip_tokenizer_init=True,
        dtype=place.dtype,
        tensor_parallel_size=place.tensor_parallel,
        gpu_memory_utilization=place.gpu_memory,
        max_model_len=-1,  # as long as memory allows
        generation_config="vllm",  # the model's own would add penalties
        enforce_eager=is_cpu_build(),  # compiling takes minutes there, and saves a tenth
        **lora,
    )
    return vllm.LLMEngine.from_engine_args(arguments)


def _loaded(adapter: Path) -> Any:
    """The adapter in the engine; loading it now says at once whether vLLM takes it."""
    name = str(adapter.resolve())
    if name not in HELD.adapters:
        HELD.adapters.append(name)
    lora = importlib.import_module("vllm.lora.request")
    request = lora.LoRARequest(name, 1 + HELD.adapters.index(name), name)
    HELD.engine.add_lora(request)
    return request


def _close() -> None:
    """End the engine, whose memory the next one needs."""
    if HELD.engine is not None:
        HELD.engine.engine_core.shutdown()
    HELD.place, HELD.rank, HELD.engine, HELD.adapters = None, 0, None, []
