"""A policy's model and tokenizer: from a folder, the model hub, or the tiny one; and its label."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.policies import checkpoints
from experiments.policies.tiny import architecture_of, build_missing, load_tiny, taught
from experiments.policies.warm import load_warm
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.config.schema import Policy, Task
from study.errors import UserError
from study.system.files import Damaged, first_line

if TYPE_CHECKING:
    from peft import LoraConfig


EDGE = 1 << 20
"""Bytes at either end of a weight file that its fingerprint covers."""


def label(folder: Path) -> str:
    """Name of a model with a fingerprint of its weights, which any update of them changes."""
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if not weights:
        return str(folder)
    digest = hashlib.blake2b(digest_size=5)
    for path in weights:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(EDGE))
            file.seek(max(0, size - EDGE))
            digest.update(file.read(EDGE))
    parts = folder.resolve().parts
    last = len(parts) - 1
    cut = max((n for n, name in enumerate(parts) if name in ("checkpoints", "kept")), default=last)
    nested = cut < last or parts[-1] == "policy"
    return f"{'/'.join(parts[cut - 1 :] if nested else parts[-1:])}@{digest.hexdigest()}"


def label_of(model: str, adapter: Path | None) -> str:
    """That of a model, with its adapter where it has one."""
    return label(Path(model)) + (f" + {label(adapter)}" if adapter else "")


TINY = "tiny"
TEMPLATES = Path(__file__).parent / "templates"
"""Chat templates by name. ``chatml`` says nothing that the messages do not: Qwen2.5's own template
adds a system turn of its own where there is none, so that a scaffold's turn would be a second."""
NOTE = "judgedrift.json"
"""What a merged folder was made from, written into it."""

Trained = dict[str, str]
"""{place, judge, judge_model, task} of a training."""


def cache_of(cell: Cell) -> Path:
    """Folder of the tiny policies that the studies beside ``cell``'s have warmed up."""
    return cell.folder.study_dir.parent / ".cache" / "policies"


def load_policy(policy: Policy, task: Task, cache_dir: Path) -> tuple[Any, Any]:
    """(model, tokenizer) of ``policy``, the model in float32 or ``policy.dtype``, without LoRA.

    Raises UserError where there is no such model, dtype or architecture, or ``task`` brings
    the tiny policy no lessons. Tiny policies that are warmed up are kept in ``cache_dir``.
    """
    check_policy(policy, task)
    if policy.path == TINY:
        return load_tiny(policy, task, cache_dir)
    return _load(replace(policy, path=first_path(policy, task, cache_dir)))


def first_path(policy: Policy, task: Task, cache_dir: Path) -> str:
    """The model that training starts from: a folder or hub id; a warm-up is done first, unless its
    outcome lies in ``cache_dir``. Raises UserError: as `load_policy`."""
    if policy.path == TINY:
        return str(build_missing(policy, task, cache_dir))
    if not is_warmed(policy):
        return policy.path
    load = functools.partial(_load, policy)
    return str(load_warm(policy, task, cache_dir, load, lora_config(policy)))


def is_warmed(policy: Policy) -> bool:
    """Whether training starts from something else than the model that ``policy.path`` names."""
    return policy.path == TINY or (policy.warmup is not None and policy.warmup.steps > 0)


def _load(policy: Policy) -> tuple[Any, Any]:
    """(model, tokenizer) of a policy as it is published."""
    remedy = (
        "Type `python -m experiments.models get smollm2-135m-instruct` to download it."
        if "smollm2-135m-instruct" in f"{policy.path} {policy.name}".lower()
        else "Give policy.path a folder that has config.json, the weights and the tokenizer, or the"
        " id of a model that this machine can download."
    )
    model, tokenizer = read_model(policy.path, policy.dtype, remedy, keys="policy.")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if policy.chat_template is not None:
        tokenizer.chat_template = template_text(policy.chat_template)
    if not tokenizer.chat_template:
        raise UserError(
            f"The model at policy.path={policy.path!r} has no chat template to format prompts"
            " with. Type policy.chat_template=chatml, or give the path of a .jinja file."
        )
    return model, tokenizer


def check_policy(policy: Policy, task: Task) -> None:
    """Refuse what `load_policy` would, as far as that is known without a model. Loads no torch.

    Raises UserError: ``task`` brings the tiny policy no lessons, or it cannot be of that
    architecture, or there is no such chat template.
    """
    if policy.path != TINY:
        if policy.chat_template is not None:
            template_text(policy.chat_template)
        if is_warmed(policy):
            taught(task)
        return
    taught(task)
    architecture_of(policy)


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


def read_model(
    path: str, dtype: str, remedy: str, tokenizer: str | None = None, keys: str = ""
) -> tuple[Any, Any]:
    """(model, tokenizer) of a Hugging Face folder or hub id.

    Args:
        remedy: what to type where there is no model, for the UserError.
        tokenizer: its folder, where that is another one.
        keys: how the keys begin that errors name, such as ``policy.``.
    """
    dtype_of(dtype, keys)
    words = read_tokenizer(tokenizer or path, path, remedy, keys)  # first: it is small
    return read_weights(path, dtype, remedy, keys), words


def read_weights(path: str, dtype: str, remedy: str, keys: str = "") -> Any:
    """The model at ``path``; arguments as of `read_model`."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch_dtype = dtype_of(dtype, keys)
    with no_model(path, remedy, keys):
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch_dtype)


def read_tokenizer(folder: str, path: str, remedy: str, keys: str = "") -> Any:
    """The tokenizer in ``folder``, of the model at ``path``; arguments as of `read_model`."""
    from transformers import AutoTokenizer

    with no_model(path, remedy, keys):
        return AutoTokenizer.from_pretrained(folder)


def dtype_of(name: str, keys: str = "") -> Any:
    """The dtype that torch calls so; a UserError where there is none."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(
            f"{keys}dtype={name} is not a dtype of torch."
            f" Type {keys}dtype=float32 or {keys}dtype=bfloat16."
        )
    return dtype


@contextmanager
def no_model(path: str, remedy: str, keys: str = "") -> Generator[None, None, None]:
    """Says of what cannot be read that there is no model, in a UserError; arguments as of
    `read_model`."""
    try:
        yield
    except (OSError, ValueError) as error:
        place = f"{keys}path=" if keys else ""
        raise UserError(
            f"There is no model at {place}{path!r} ({type(error).__name__}). {remedy}"
        ) from error


def adapted(model: Any, adapter: Path, base: str) -> Any:
    """``model``, which is that of ``base``, with a LoRA adapter; a UserError where they do not
    fit."""
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            # Weights that found no place would be left out with no more than this warning.
            warnings.filterwarnings("error", message=".*adapter keys.*")
            return PeftModel.from_pretrained(model, str(adapter))
    except (RuntimeError, ValueError, UserWarning) as error:
        reason = first_line(error)
        raise UserError(f"adapter={adapter} does not fit {base}: {reason[:200]}") from error


def trained_policy(cell: CellFolder, checkpoint: int | None) -> tuple[dict[str, Any], Path]:
    """A cell's config of its policy, and the folder of that policy: at a step that was kept or has
    a checkpoint, or as the run ended. Raises UserError where there is no such cell or step."""
    if not (cell / "config.yaml").is_file():
        raise UserError(
            f"run={cell} is not a cell: it has no config.yaml. Type run=runs/STUDY/CELL"
        )
    policy = cell.config()["policy"]
    folder = cell / "policy"
    if checkpoint is not None:
        folder = cell / "kept" / f"step-{checkpoint}"
        if not folder.is_dir():
            folder = checkpoints.path_of(cell, checkpoint)
    if not folder.is_dir():
        folders = (*cell.path.glob("checkpoints/checkpoint-*"), *cell.path.glob("kept/step-*"))
        present = ", ".join(sorted(path.name for path in folders)) or "no checkpoint yet"
        raise UserError(
            f"{folder} does not exist; this run has {present}. Type checkpoint=STEP for one of"
            " them, or let the run finish."
        )
    if why := checkpoints.foreign(cell, folder, whole=False):
        raise UserError(
            f"{folder} is not the policy of this run: it {why}. Restore the run's own folder, or"
            " rerun its training."
        )
    return policy, folder


def training_of(cell: CellFolder) -> Trained | None:
    """What a cell was trained under, None where ``cell`` is not a cell."""
    try:
        data = cell.config()
        judge = data["judge"]
        model = judge["endpoint"].get("model") or ""
        names = {"judge": judge["name"], "judge_model": model, "task": data["task"]["name"]}
    except (OSError, KeyError, TypeError, Damaged):
        return None
    return {"place": str(cell), **names}


def training_of_run(run: CellFolder) -> Trained:
    """`training_of` the cell that an option ``run=`` names. Raises UserError: it is no cell."""
    if (training := training_of(run)) is None:
        raise UserError(f"run={run} is not a cell: its config.yaml cannot be read.")
    return training


def same_model(first: str, second: str) -> bool:
    """A folder may have been moved, or be the local copy of a hub id: its last name decides."""
    return (
        Path(first).resolve() == Path(second).resolve()
        or Path(first).name.lower() == Path(second).name.lower()
    )


def template_file(name: str) -> Path:
    """The file of the chat template called ``name``, or of that path."""
    return Path(name) if name.endswith(".jinja") else TEMPLATES / f"{name}.jinja"


def template_text(name: str) -> str:
    """The chat template called ``name``, or in the .jinja file of that path; else a UserError."""
    path = template_file(name)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        shipped = sorted(file.stem for file in TEMPLATES.glob("*.jinja"))
        raise UserError(
            f"policy.chat_template={name} is not a template ({path} cannot be read). Give"
            f" {', '.join(shipped)}, or the path of a .jinja file."
        ) from error
