"""A policy's model and tokenizer: from a folder, from the model hub, or the tiny one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.policies.tiny import load_tiny
from study.errors import UserError
from study.schema import Policy, Task

if TYPE_CHECKING:
    from peft import LoraConfig

TINY = "tiny"
TEMPLATES = Path(__file__).parent / "templates"
"""Chat templates by name. ``chatml`` says nothing that the messages do not: Qwen2.5's own template
adds a system turn of its own where there is none, so that a scaffold's turn would be a second."""


def load_policy(policy: Policy, task: Task, cache_dir: Path) -> tuple[Any, Any]:
    """(model, tokenizer) of ``policy``, the model in float32 or ``policy.dtype``, without LoRA.

    Args:
        policy: ``path`` is ``tiny``, a folder or a hub id.
        task: what the policy will be trained on; the tiny policy knows instruct-mini only.
        cache_dir: where warmed-up tiny policies are kept.

    Raises:
        UserError: no model at ``policy.path``, the tiny policy on another task than its own, an
            unknown dtype or architecture key.
    """
    if policy.path == TINY:
        if task.name != "instruct-mini":
            raise UserError(
                f"The tiny policy has learned task=instruct-mini only, and the task is"
                f" {task.name!r}. Type task=instruct-mini, or choose another policy."
            )
        return load_tiny(policy, cache_dir)
    return _load_pretrained(policy)


def lora_config(policy: Policy) -> LoraConfig | None:
    """peft's config for ``policy.lora``; None trains all weights."""
    from peft import LoraConfig

    if policy.lora is None:
        return None
    lora = policy.lora
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )


def _load_pretrained(policy: Policy) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = getattr(torch, policy.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(
            f"policy.dtype={policy.dtype} is not a dtype of torch."
            " Type policy.dtype=float32 or policy.dtype=bfloat16."
        )
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(policy.path)
        model = AutoModelForCausalLM.from_pretrained(policy.path, dtype=dtype)
    except (OSError, ValueError) as error:
        how = (
            "Type `python -m experiments.models get smollm2-135m-instruct` to fetch it."
            if "smollm2-135m-instruct" in f"{policy.path} {policy.name}".lower()
            else "Give policy.path a folder that has config.json, the weights and the tokenizer,"
            " or the id of a model that this machine can fetch."
        )
        raise UserError(
            f"There is no model at policy.path={policy.path!r} ({type(error).__name__}). {how}"
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if policy.chat_template is not None:
        tokenizer.chat_template = template_text(policy.chat_template)
    if not tokenizer.chat_template:
        raise UserError(
            f"The model at policy.path={policy.path!r} has no chat template, so nothing says how"
            " prompts are put to it. Type policy.chat_template=chatml, or give the path of a .jinja"
            " file."
        )
    return model, tokenizer


def template_text(name: str) -> str:
    """The chat template called ``name``, or in the .jinja file of that path.

    Raises:
        UserError: neither is there.
    """
    path = Path(name) if name.endswith(".jinja") else TEMPLATES / f"{name}.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        shipped = sorted(file.stem for file in TEMPLATES.glob("*.jinja"))
        raise UserError(
            f"policy.chat_template={name} is not a template ({path} cannot be read). Give"
            f" {', '.join(shipped)}, or the path of a .jinja file."
        ) from error
