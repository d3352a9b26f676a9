"""A pretrained policy that is taught the form of its answers before RL: ``policy.warmup``.

LoRA steps on the lessons of its task, merged into the weights and cached by content, so that every
run of a study starts from the same weights. A small model otherwise writes no valid program at all,
and RL has nothing to choose from.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from experiments.policies.tiny import WARMUP_THREADS, taught, warm_up, whole_folder
from experiments.trainer.checkpoints import fault, seal
from study import locks
from study.schema import Policy, Task

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
    digest = hashlib.blake2b(digest_size=6)
    recipe = [policy.path, policy.dtype, policy.chat_template, lessons.key, asdict(policy)["lora"]]
    digest.update(json.dumps([*recipe, asdict(policy)["warmup"]], sort_keys=True).encode())
    for source in (*lessons.files, __file__):
        digest.update(Path(source).read_bytes())
    folder = cache_dir / f"warm-{digest.hexdigest()}"
    cache_dir.mkdir(parents=True, exist_ok=True)
    with locks.held(folder.with_name(f"{folder.name}.lock")):
        if fault(folder):
            shutil.rmtree(folder, ignore_errors=True)
            _build(policy, task, folder, load, lora)
    return folder


def _build(
    policy: Policy, task: Task, folder: Path, load: Callable[[], Loaded], lora: LoraConfig | None
) -> None:
    import torch
    from peft import get_peft_model

    assert policy.warmup is not None
    model: Any
    model, tokenizer = load()
    threads = torch.get_num_threads()
    torch.set_num_threads(WARMUP_THREADS)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(policy.warmup.seed)
            if lora is not None:
                model = cast(Any, get_peft_model(model, lora))
            warm_up(model, tokenizer, taught(task), policy.warmup)
    finally:
        torch.set_num_threads(threads)
    if lora is not None:
        model = model.merge_and_unload()
    with whole_folder(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        seal(part, folder.name)
