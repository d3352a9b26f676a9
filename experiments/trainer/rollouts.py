"""Completions of the policy that is trained: TRL's ``rollout_func``, and answers to other rows.

A step's completions are drawn by `generate`, or `unsupported` says why TRL's own way is taken. To
rows that it does not learn from, the policy answers greedily or by draws. What is drawn for such a
row depends on the run's seed, the row and the number of the draw alone: at every step and in every
arm it is drawn from the same random numbers, and the training's own are left as they were.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from experiments.trainer.generate import (
    Sampling,
    generate,
    merged,
    seeded_by_transformers,
    uniforms,
)
from study.system.machine import free_memory

DRAWN = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)


def unsupported(model: Any, config: Any) -> str | None:
    """Why `generate` cannot follow this generation config, in words; None where it can.

    Args:
        model: its own generation config fills what ``config`` leaves open.
    """
    prepared, _ = model._prepare_generation_config(config)
    processors: list[LogitsProcessor] = model._get_logits_processor(prepared, 1)
    others = sorted({type(p).__name__ for p in processors if not isinstance(p, DRAWN)})
    if others:
        return f"its generation config asks for {', '.join(others)}"
    if prepared.num_beams != 1 or prepared.prompt_lookup_num_tokens:
        return "its generation config asks for more than drawing token by token"
    return None


class Rollouts:
    """Callable (prompts of N rollouts, trainer) -> what TRL asks of a ``rollout_func``.

    Args:
        seed: of the run; with step, row and position it decides what is drawn.
        ended: called with the token ids of the rollouts that end together, by their index.
    """

    def __init__(self, seed: int, ended: Callable[[dict[int, list[int]]], None]) -> None:
        self.seed = seed
        self.ended = ended

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        prompt_ids = trainer._tokenize_prompts(prompts)[0]
        shown_ids = trainer.scaffolded_prompt_ids() or prompt_ids
        index_of: dict[tuple[int, ...], int] = {}
        owner = [index_of.setdefault(tuple(ids), len(index_of)) for ids in shown_ids]
        length = trainer.max_completion_length
        first = trainer.accelerator.process_index * len(owner)
        uniform = uniforms(self.seed, trainer.state.global_step + 1, first + len(owner), length)
        model = trainer.accelerator.unwrap_model(trainer.model)
        prompts_U, completion_ids = list(index_of), []
        with merged(model) as policy, torch.no_grad(), trainer.accelerator.autocast():
            longest = max(len(ids) for ids in prompts_U) + length
            at_once = rows_at_once(policy, longest)
            for start in range(0, len(owner), at_once):
                owners = owner[start : start + at_once]
                prompts_here = sorted(set(owners))
                completion_ids += generate(
                    policy,
                    [prompts_U[index] for index in prompts_here],
                    [prompts_here.index(index) for index in owners],
                    _sampling(trainer),
                    uniform[first + start :],
                    functools.partial(self._ended, start),
                    trainer.beat,
                )
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    def _ended(self, start: int, ids_of: dict[int, list[int]]) -> None:
        self.ended({start + row: ids for row, ids in ids_of.items()})


def rows_at_once(model: Any, length: int) -> int:
    """How many rows of ``length`` tokens fit a third of the free memory.

    A cache that grows is in memory twice for a moment.
    """
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    row = 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize * length
    row += 16 * config.vocab_size  # logits, and shares in double precision
    return max(1, _free(model.device) // 3 // row)


def _free(device: torch.device) -> int:
    """Bytes that can be taken on a device; more than any model has where that is not said."""
    if device.type != "cuda":
        return free_memory() or 2**60
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


AT_ONCE = 64
"""Greedy answers that are written together, where memory has room for so many."""
DRAWN_AT_ONCE = 512
"""Drawn ones."""


def common_uniforms(seed: int, names: Sequence[str], length: int) -> np.ndarray:
    """Numbers in [0, 1) for each answer and position, (N, length), by the Philox counter.

    Args:
        names: of each answer: the same name has the same numbers under one seed.
    """
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    keys = [np.array([seed, int.from_bytes(each, "big")], np.uint64) for each in digests]
    uniforms = [np.random.Generator(np.random.Philox(key=key)).random(length) for key in keys]
    return np.array(uniforms).reshape(-1, length)


def greedy(trainer: Any, prompts: Sequence[Any]) -> list[list[int]]:
    """The most probable completion of each prompt, token by token, as token ids.

    No random number is drawn, and the policy is afterwards as it was.
    """
    return _answer(trainer, prompts, _sampling(trainer, greedy=True), None)


def sampled(trainer: Any, prompts: Sequence[Any], names: Sequence[str]) -> list[list[int]]:
    """A completion of each prompt, drawn as in training, as token ids: see `common_uniforms`."""
    sampling = _sampling(trainer)
    uniform = common_uniforms(trainer.args.seed, names, sampling.max_new_tokens)
    return _answer(trainer, prompts, sampling, uniform)


def _sampling(trainer: Any, greedy: bool = False) -> Sampling:
    return Sampling(
        trainer.max_completion_length,
        tuple(sorted(trainer.eos_token_ids)),
        trainer.temperature,
        trainer.args.top_k,
        trainer.args.top_p,
        greedy,
    )


@torch.no_grad()
def _answer(
    trainer: Any, prompts: Sequence[Any], sampling: Sampling, uniform_N_L: np.ndarray | None
) -> list[list[int]]:
    """Completions as token ids; ``uniform_N_L`` of None is for greedy ones."""
    prompt_ids = trainer._tokenize_prompts(list(prompts))[0]
    length, most = sampling.max_new_tokens, AT_ONCE if sampling.greedy else DRAWN_AT_ONCE
    order = sorted(range(len(prompt_ids)), key=lambda index: len(prompt_ids[index]))
    completions: dict[int, list[int]] = {}
    model = trainer.accelerator.unwrap_model(trainer.model)
    with merged(model) as policy, trainer.accelerator.autocast():
        longest = max(map(len, prompt_ids), default=0) + length
        at_once = min(most, rows_at_once(policy, longest))
        for start in range(0, len(order), at_once):
            indexes = order[start : start + at_once]
            batch = [prompt_ids[index] for index in indexes]
            if uniform_N_L is None:
                uniform = torch.zeros(len(batch), length).numpy()
            else:
                uniform = uniform_N_L[indexes]
            if trainer.rollout_func is not None:  # the way that draws a step's completions
                once = list(dict.fromkeys(map(tuple, batch)))
                place = {ids: number for number, ids in enumerate(once)}
                owner = [place[tuple(ids)] for ids in batch]
                answers = generate(policy, once, owner, sampling, uniform, beat=trainer.beat)
            else:
                padding = trainer._tokenizer.pad_token_id
                answers = seeded_by_transformers(policy, batch, sampling, padding, uniform)
            completions |= dict(zip(indexes, answers, strict=True))
    return [completions[index] for index in range(len(prompt_ids))]
