"""Answers of the policy as it is to rows that it does not learn from: greedy, and drawn.

What is drawn for a row depends on the run's seed, the row and the number of the draw alone: at
every step and in every arm it is drawn from the same random numbers, and the training's own are
left as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from experiments.trainer.generate import Sampling, generate, merged, seeded_by_transformers
from experiments.trainer.rollouts import rows_at_once

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
                answers = generate(policy, once, owner, sampling, uniform)
            else:
                padding = trainer._tokenizer.pad_token_id
                answers = seeded_by_transformers(policy, batch, sampling, padding, uniform)
            completions |= dict(zip(indexes, answers, strict=True))
    return [completions[index] for index in range(len(prompt_ids))]
