"""A pretrained policy that is taught the form of its answers before RL: ``policy.warmup``.

LoRA steps on the lessons of its task, merged into the weights and cached by content, so that every
run of a study starts from the same weights. A small model otherwise writes no valid program at all,
and RL has nothing to choose from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from experiments.policies.checkpoints import seal
from experiments.policies.tiny import (
    built_once,
    recipe_hash,
    repeatable,
    taught,
    warm_up,
    whole_folder,
)
from study.config.schema import Policy, Task
from study.tasks.lessons import Lessons

if TYPE_CHECKING:
    from peft import LoraConfig

Loaded = tuple[Any, Any]
"""A model and its tokenizer."""


def load_warm(
    policy: Policy,
    task: Task,
    cache_dir: Path,
    load: Callable[[], Loaded],
    lora: LoraConfig | None,
) -> Path:
    """The folder of ``policy`` after its warm-up on ``task``; it is made first where it is missing
    or damaged. ``load`` gives the model that is warmed up, and ``lora`` the adapter that learns;
    None trains all weights.
    Raises UserError: the task brings no lessons."""
    lessons = taught(task)
    settings = asdict(policy)
    recipe = [settings[key] for key in ("path", "dtype", "chat_template", "lora", "warmup")]
    name = recipe_hash([*recipe, lessons.key], lessons, __file__)
    folder = cache_dir / f"warm-{name}"

    def build(folder: Path) -> None:
        _build(policy, lessons, folder, load, lora)

    with built_once(folder, build):
        return folder


def _build(
    policy: Policy,
    lessons: Lessons,
    folder: Path,
    load: Callable[[], Loaded],
    lora: LoraConfig | None,
) -> None:
    from peft import get_peft_model

    assert policy.warmup is not None
    model: Any
    model, tokenizer = load()
    with repeatable(policy.warmup.seed):
        if lora is not None:
            model = cast(Any, get_peft_model(model, lora))
        warm_up(model, tokenizer, lessons, policy.warmup)
    if lora is not None:
        model = model.merge_and_unload()
    with whole_folder(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        seal(part, folder.name)
