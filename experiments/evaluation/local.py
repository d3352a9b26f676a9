"""Answers of a model that is loaded on this machine, in batches of prompts alike in length."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.evaluation.decoding import Decoding, Keep, Local, Turns, failed
from study.answers import opened
from study.errors import UserError


def answer_all(
    path: str,
    adapter: Path | None,
    prompts: Sequence[str],
    keep: Keep,
    decoding: Decoding,
    local: Local,
    turns: Turns,
) -> None:
    import torch
    from transformers import GenerationConfig

    model, tokenizer = _load(path, adapter, local)
    extra = {} if decoding.thinking is None else {"enable_thinking": decoding.thinking}
    texts = {
        prompt: tokenizer.apply_chat_template(
            list(turns(prompt)),
            add_generation_prompt=True,
            tokenize=False,
            **extra,
        )
        for prompt in prompts
    }
    ends = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    sampled = decoding.temperature > 0
    # In place of the model's own, whose penalties and top_k would decode behind our back.
    config = GenerationConfig(
        do_sample=sampled,
        eos_token_id=sorted(ends),
        pad_token_id=tokenizer.pad_token_id,
        **({"temperature": decoding.temperature, "top_p": decoding.top_p} if sampled else {}),
        **({"top_k": 0} if sampled else {}),
    )
    model.generation_config = config
    context = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    order = sorted(prompts, key=lambda prompt: len(texts[prompt]))  # alike in length, less padding
    for start in range(0, len(order), local.batch):
        part = order[start : start + local.batch]
        inputs = tokenizer(
            [texts[prompt] for prompt in part],
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        ).to(model.device)
        width = inputs["input_ids"].shape[1]
        room = min(decoding.max_tokens, context - width)
        if room < 1:
            for prompt in part:
                keep(failed(prompt, f"the prompt does not fit the context of {context} tokens"))
            continue
        with torch.inference_mode(), torch.random.fork_rng():
            torch.manual_seed(int.from_bytes(_digest(decoding.seed, part[0])))
            ids_B_L = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=room,
            )[:, width:]
        for prompt, ids in zip(part, ids_B_L.tolist(), strict=True):
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


def _load(model: str, adapter: Path | None, local: Local) -> tuple[Any, Any]:
    """(model in evaluation mode on its device, tokenizer with the template it was trained with)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = local.dtype or ("bfloat16" if device == "cuda" else "float32")
    dtype = getattr(torch, wanted, None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(f"dtype={wanted} is not a dtype of torch. Type dtype=float32 or bfloat16.")
    has_tokenizer = adapter is not None and (adapter / "tokenizer_config.json").is_file()
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(adapter) if has_tokenizer else model)
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    except (OSError, ValueError) as error:
        raise UserError(
            f"There is no model at {model!r} ({type(error).__name__}). Give a folder that has"
            " config.json, the weights and the tokenizer, or a hub id that can be fetched."
        ) from error
    if adapter is not None:
        loaded = adapted(loaded, adapter, model)
    if local.chat_template is not None:
        tokenizer.chat_template = local.chat_template
    if not tokenizer.chat_template:
        raise UserError(f"{model} has no chat template, so it cannot be asked as in training.")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return loaded.to(device).eval(), tokenizer


def adapted(model: Any, adapter: Path, base: str) -> Any:
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            # Weights that found no place would be left out with no more than this warning.
            warnings.filterwarnings("error", message=".*adapter keys.*")
            return PeftModel.from_pretrained(model, str(adapter))
    except (RuntimeError, ValueError, UserWarning) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"adapter={adapter} does not fit {base}: {reason[:200]}") from error


def _digest(seed: int, text: str) -> bytes:
    return hashlib.blake2b(f"{seed} {text}".encode(), digest_size=7).digest()
