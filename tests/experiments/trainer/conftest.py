"""Small random models of three families under TRL's own trainer, and batches as TRL makes them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from trl import GRPOConfig, GRPOTrainer

from experiments.policies.tiny import tiny_tokenizer
from study.tasks import teacher

TOKENIZER = tiny_tokenizer(teacher.lexicon())
FAMILIES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def make_model(family: str, tied: bool = True, peak: float = 1.0, **settings: Any) -> Any:
    """Three layers whose weights are large enough to tell tokens apart.

    Args:
        peak: by what all matrices are multiplied; at 5 the distributions are all but certain.
    """
    config = FAMILIES[family](
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        pad_token_id=TOKENIZER.pad_token_id,
        eos_token_id=TOKENIZER.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=tied,
        **settings,
    )
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=peak * weight.shape[1] ** -0.5)
    return model


@pytest.fixture(scope="session")
def make_trainer(tmp_path_factory) -> Callable[..., GRPOTrainer]:
    """(model, lora, TRL's settings) -> TRL's trainer, ready for its loss."""

    def make(model: PreTrainedModel, lora: bool = True, **settings: Any) -> GRPOTrainer:
        trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(
                output_dir=str(tmp_path_factory.mktemp("trl")),
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=12,
                temperature=0.7,
                report_to="none",
                use_cpu=True,
                bf16=False,
                **({"beta": 0.04} | settings),
            ),
            reward_funcs=lambda prompts, **_: [0.0] * len(prompts),
            processing_class=TOKENIZER,
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * 8),
            peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
            if lora
            else None,
        )
        torch.manual_seed(1)
        for name, weight in trainer.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        return trainer

    return make


def make_batch(prompts: list[int], completions: list[list[int]], seed: int = 0) -> dict[str, Any]:
    """A shuffled micro-batch as TRL hands it to its loss.

    Args:
        prompts: length of each prompt.
        completions: lengths of its completions; 0 is a completion whose tokens are masked.
    """
    draw = torch.Generator().manual_seed(seed)
    width, longest = max(prompts), max(max(lengths) for lengths in completions)
    rows = []
    for prompt, lengths in zip(prompts, completions, strict=True):
        shared = torch.randint(2, len(TOKENIZER), (prompt,), generator=draw)
        for length in lengths:
            ids = torch.zeros(width + longest, dtype=torch.long)
            ids[width - prompt : width] = shared
            own = torch.randint(2, len(TOKENIZER), (length,), generator=draw)
            ids[width : width + length] = own
            mask = torch.zeros_like(ids)
            mask[width - prompt : width + length] = 1
            rows.append((ids, mask))
    order = torch.randperm(len(rows), generator=draw).tolist()
    ids, mask = (torch.stack([rows[i][k] for i in order]) for k in (0, 1))
    return {
        "prompt_ids": ids[:, :width],
        "prompt_mask": mask[:, :width],
        "completion_ids": ids[:, width:],
        "completion_mask": mask[:, width:],
        "advantages": torch.randn(len(rows), generator=draw),
        "num_items_in_batch": mask[:, width:].sum(),
        "old_per_token_logps": torch.randn(len(rows), longest, generator=draw) * 0.3 - 4,
        "ref_per_token_logps": torch.randn(len(rows), longest, generator=draw) * 0.3 - 4,
    }


def whole(batch: dict[str, Any]) -> tuple[Tensor, Tensor, int]:
    """(ids, mask, columns of completions) of a batch, as log-probabilities are asked for."""
    return (
        torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
        torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
        batch["completion_ids"].shape[1],
    )
