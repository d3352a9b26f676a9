"""TRL's ``rollout_func``: a step's completions by `generate`, or why TRL's own way is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessor
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from experiments.trainer.generate import Sampling, generate, merged, uniforms

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
        asked_ids = trainer.scaffolded_prompt_ids() or prompt_ids
        index_of: dict[tuple[int, ...], int] = {}
        owner = [index_of.setdefault(tuple(ids), len(index_of)) for ids in asked_ids]
        length = trainer.max_completion_length
        first = trainer.accelerator.process_index * len(owner)
        uniform = uniforms(self.seed, trainer.state.global_step + 1, first + len(owner), length)
        sampling = Sampling(
            length,
            tuple(trainer.eos_token_ids),
            trainer.temperature,
            trainer.args.top_k,
            trainer.args.top_p,
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        with merged(model) as policy, torch.no_grad(), trainer.accelerator.autocast():
            completion_ids = generate(
                policy, list(index_of), owner, sampling, uniform[first:], self.ended
            )
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}
