"""A trainer of a given shape whose own path and TRL's can be raced, and steps for both to make."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config
from transformers import Qwen2ForCausalLM as Qwen2
from trl import GRPOConfig

from experiments.policies.tiny import tiny_tokenizer
from experiments.trainer.grpo import RecordingTrainer
from study.cell.heartbeat import Heartbeat
from study.tasks import teacher

GROUP = 8
TOKENIZER = tiny_tokenizer(teacher.lexicon())


def smollm2(scale: float = 1.0) -> PreTrainedModel:
    """SmolLM2-135M's shape with random weights.

    Args:
        scale: factor of all projections; at 2 greedy tokens do not repeat themselves.
    """
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            intermediate_size=1536,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
            rope_theta=100000.0,
            pad_token_id=TOKENIZER.pad_token_id,
            eos_token_id=TOKENIZER.eos_token_id,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "_proj" in name:
                weight.mul_(scale)
    return model


def qwen25(size: str) -> PreTrainedModel:
    """Qwen2.5-1.5B's or -7B's shape with random weights in bfloat16, made where it will stay; tiny
    is a shape of the family in float32."""
    hidden, layers, heads, inner, tied, vocabulary = {
        "1.5B": (1536, 28, 12, 8960, True, 151936),
        "7B": (3584, 28, 28, 18944, False, 152064),
        "tiny": (64, 2, 4, 128, True, len(TOKENIZER)),
    }[size]
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2 if tied else 4,
        intermediate_size=inner,
        tie_word_embeddings=tied,
        pad_token_id=TOKENIZER.pad_token_id,
        eos_token_id=TOKENIZER.eos_token_id,
        bos_token_id=None,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if size == "tiny" else torch.bfloat16)
    try:
        with torch.device(device):
            return Qwen2(config)
    finally:
        torch.set_default_dtype(torch.float32)


class Stub:
    """In place of the scorer: every answer is worth its length, and nothing is recorded."""

    __name__ = "length"

    def __init__(self, rows: int) -> None:
        self.pending = SimpleNamespace(rollouts=[{} for _ in range(rows)], metrics={})
        self.heart = Heartbeat()

    def __call__(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(len(ids)) for ids in completion_ids]


def make_trainer(model: PreTrainedModel, rank: int, rows: int = GROUP, **trl: Any) -> Any:
    """Our trainer with LoRA of ``rank``; ``shares_prefixes`` switches between its path and TRL's.

    The adapter is not at its start, where half of its gradient would be zero.
    """
    trainer = RecordingTrainer(
        Stub(rows),  # ty: ignore[invalid-argument-type]
        model=model,
        args=GRPOConfig(
            output_dir=str(Path(tempfile.mkdtemp(prefix="race-"))),
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
            num_generations=min(GROUP, rows),
            **{
                "per_device_train_batch_size": rows,
                "bf16": model.dtype == torch.bfloat16,
                "beta": 0.04,
            }
            | trl,
        ),
        processing_class=TOKENIZER,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "a"}]}] * rows),
        peft_config=LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    torch.manual_seed(1)
    for name, weight in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def lengths(mean: int, longest: int, rows: int, draw: torch.Generator) -> list[int]:
    """A long tail: exponential with one row at the longest and the rest scaled to the mean."""
    tail = torch.empty(rows - 1).exponential_(generator=draw)
    rest = max(1.0, (mean * rows - longest) / (rows - 1))
    sizes = (tail / tail.mean() * rest).round().long().clamp(2, longest).tolist()
    return [longest, *sizes]


def make_batch(
    trainer: Any, prompt: int, mean: int, longest: int, prompts: int = 1
) -> dict[str, Any]:
    """Rollouts of ``prompts`` groups with forced completions, as TRL hands them to its loss."""
    draw = torch.Generator().manual_seed(0)
    rows, vocabulary = prompts * GROUP, trainer.model.config.vocab_size
    ids = torch.randint(5, vocabulary, (rows, prompt + longest), generator=draw)
    ids[:, :prompt] = ids[::GROUP, :prompt].repeat_interleave(GROUP, dim=0)
    mask = torch.zeros(rows, longest, dtype=torch.long)
    for start in range(0, rows, GROUP):
        for row, size in enumerate(lengths(mean, longest, GROUP, draw)):
            mask[start + row, :size] = 1
    device = trainer.accelerator.device
    batch = {
        "prompt_ids": ids[:, :prompt],
        "prompt_mask": torch.ones(rows, prompt, dtype=torch.long),
        "completion_ids": ids[:, prompt:] * mask,
        "completion_mask": mask,
        "advantages": torch.randn(rows, generator=draw),
        "num_items_in_batch": mask.sum(),
        "row_index": torch.arange(rows),
        "ref_per_token_logps": torch.full((rows, longest), -11.0),
    }
    return {name: value.to(device) for name, value in batch.items()}
