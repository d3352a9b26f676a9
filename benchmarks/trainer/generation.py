"""Generation of groups against TRL's path, the same greedy tokens, on one thread.

    python -m benchmarks.trainer.generation [rounds=3] [prompts=4] [prompt=256] [longest=128]

Two shapes: SmolLM2-135M with random weights and a LoRA adapter, and the tiny policy of the built-in
task (8 prompts x 8). Of a random model's greedy tokens one in ``stop`` ends its row; the rows of a
prompt are greedy and so alike.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.race import race, read_sizes
from benchmarks.trainer.peers import GROUP, make_trainer, smollm2
from benchmarks.trainer.step import TINY
from experiments.policies.load import load_policy
from experiments.trainer.generate import Sampling, generate, merged
from study.config.schema import Task
from study.tasks import TASKS


def ours(trainer: Any, prompts: list[list[int]], owner: list[int]) -> list[list[int]]:
    """Greedy tokens of each row by `generate`."""
    length = trainer.max_completion_length
    sampling = Sampling(length, tuple(trainer.eos_token_ids), greedy=True)
    with merged(trainer.model) as policy:
        return generate(policy, prompts, owner, sampling, np.zeros((len(owner), length)))


def theirs(trainer: Any, prompts: list[list[int]], owner: list[int]) -> list[list[int]]:
    """Greedy tokens of each row by TRL's own single turn."""
    repeated = [prompts[u] for u in owner]
    return trainer._generate_single_turn(repeated, None, {}, GROUP)[0]


def prepare(trainer: Any, stops: list[int], longest: int) -> None:
    """Let both decode greedily to the same ends."""
    trainer.generation_config.do_sample = False
    trainer.generation_config.temperature = trainer.generation_config.top_p = None
    trainer.generation_config.top_k = None
    trainer.generation_config.eos_token_id = stops
    trainer.generation_config.max_new_tokens = longest
    trainer.generation_kwargs = {}
    trainer.eos_token_ids = stops
    trainer.max_completion_length = longest


def compete(name: str, trainer: Any, prompts: list[list[int]], rounds: int, repeats: int) -> None:
    """Assert that the tokens are the same, and race."""
    owner = [u for u in range(len(prompts)) for _ in range(GROUP)]
    mine, expected = ours(trainer, prompts, owner), theirs(trainer, prompts, owner)
    assert mine == expected, sum(a != b for a, b in zip(mine, expected, strict=True))
    lengths = [len(ids) for ids in mine]
    mean = sum(lengths) / len(lengths)
    print(
        f"{name}: {len(owner)} rows of {min(lengths)} to {max(lengths)} tokens, {mean:.0f} on "
        "average, the same tokens"
    )
    race(
        lambda: ours(trainer, prompts, owner),
        {f"{name}, TRL": lambda: theirs(trainer, prompts, owner)},
        rounds,
        repeats=repeats,
        clock=time.process_time,
    )


def main() -> None:
    """Race both shapes."""
    sizes = read_sizes(rounds=3, prompts=4, prompt=256, longest=128, stop=64)
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)

    task = Task(name="instruct-mini")
    model, tokenizer = load_policy(TINY, task, Path("runs/.cache/policies"))
    rows = TASKS[task.name].rows(task, "train")[:GROUP]
    chats = [list(row.messages) for row in rows]
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, tokenize=True, return_dict=True
    )["input_ids"]
    trainer = make_trainer(model, rank=16, rows=GROUP * GROUP)
    prepare(trainer, [tokenizer.eos_token_id], 40)
    compete("tiny policy", trainer, prompts, sizes["rounds"], repeats=3)

    trainer = make_trainer(smollm2(scale=2), rank=8, rows=sizes["prompts"] * GROUP)
    vocabulary = trainer.model.config.vocab_size
    prompts = torch.randint(
        5, vocabulary, (sizes["prompts"], sizes["prompt"]), generator=draw
    ).tolist()
    prepare(trainer, list(range(0, vocabulary, sizes["stop"])), sizes["longest"])
    compete("SmolLM2's shape", trainer, prompts, sizes["rounds"], repeats=1)


if __name__ == "__main__":
    main()
