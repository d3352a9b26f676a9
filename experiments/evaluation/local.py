"""How answers are decoded, and those of a model on this machine, in batches alike in length."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.policies.load import adapted, read_model
from study.answers import opened
from study.errors import UserError

Row = dict[str, Any]
"""One response: its prompt, the response or None, and how it ended."""
Keep = Callable[[Row], None]
"""Takes a row as soon as it is there."""
Turns = Mapping[str, Sequence[dict[str, str]]]
"""Text of a prompt -> its chat turns."""


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded; part of what a file of responses is compared with."""

    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    max_tokens: int = 1280
    seed: int = 0
    thinking: bool | None = None
    """Whether the chat template asks for thinking; null leaves it to the template."""


@dataclass(frozen=True)
class Local:
    """How a model is run on this machine."""

    batch: int = 8
    dtype: str | None = None
    """None takes the run's, else bfloat16 on a GPU and float32 without one."""
    chat_template: str | None = None
    """Jinja text in place of the one that the model or its adapter brings."""


def failed(prompt: str, error: str) -> Row:
    """A missing response, which is not the same as an empty one."""
    return {"prompt": prompt, "response": None, "error": error}


def answer_all(
    path: str, adapter: Path | None, turns: Turns, keep: Keep, decoding: Decoding, local: Local
) -> None:
    """Answer every prompt; one that does not fit the model's context is missing. Raises UserError
    where there is no model at ``path``, an adapter does not fit it, or it has no chat template."""
    import torch
    from transformers import GenerationConfig

    model, tokenizer = _load(path, adapter, local)
    extra = {} if decoding.thinking is None else {"enable_thinking": decoding.thinking}
    texts = {
        prompt: tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False, **extra
        )
        for prompt, messages in turns.items()
    }
    ends = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    warm = {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
    # In place of the model's own, whose penalties and top_k would decode behind our back.
    model.generation_config = GenerationConfig(
        do_sample=decoding.temperature > 0,
        eos_token_id=sorted(ends),
        pad_token_id=tokenizer.pad_token_id,
        **(warm if decoding.temperature > 0 else {}),
    )
    context = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    order = sorted(texts, key=lambda prompt: len(texts[prompt]))  # alike in length, less padding
    for start in range(0, len(order), local.batch):
        batch = order[start : start + local.batch]
        inputs = tokenizer(
            [texts[prompt] for prompt in batch],
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        ).to(model.device)
        width = inputs["input_ids"].shape[1]
        room = min(decoding.max_tokens, context - width)
        if room < 1:
            for prompt in batch:
                keep(failed(prompt, f"the prompt does not fit the context of {context} tokens"))
            continue
        with torch.inference_mode(), torch.random.fork_rng():
            torch.manual_seed(_seed(decoding.seed, batch[0]))
            ids_B_L = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=room,
            )[:, width:]
        for prompt, ids in zip(batch, ids_B_L.tolist(), strict=True):
            stop = next((i for i, token in enumerate(ids) if token in ends), None)
            text = tokenizer.decode(ids[:stop], skip_special_tokens=True)
            keep(
                {
                    "prompt": prompt,
                    "response": opened(texts[prompt]) + text,
                    "stop": "length" if stop is None else "stop",
                    "tokens": len(ids) if stop is None else stop + 1,
                }
            )
        print(f"{min(start + local.batch, len(order))}/{len(order)} generated", flush=True)


def _load(path: str, adapter: Path | None, local: Local) -> tuple[Any, Any]:
    """(model in evaluation mode on its device, tokenizer with the template it was trained with)."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = local.dtype or ("bfloat16" if device == "cuda" else "float32")
    has_tokenizer = adapter is not None and (adapter / "tokenizer_config.json").is_file()
    model, tokenizer = read_model(
        path,
        dtype,
        "Give a folder that has config.json, the weights and the tokenizer, or a hub id that can"
        " be fetched.",
        str(adapter) if has_tokenizer else path,
    )
    if adapter is not None:
        model = adapted(model, adapter, path)
    if local.chat_template is not None:
        tokenizer.chat_template = local.chat_template
    if not tokenizer.chat_template:
        raise UserError(f"{path} has no chat template, so it cannot be asked as in training.")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.to(device).eval(), tokenizer


def _seed(seed: int, text: str) -> int:
    """56 bits of seed and text: what is drawn for a batch does not depend on the others."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {text}".encode(), digest_size=7).digest())
