"""Answers to an evaluation's prompts, from a checkpoint, an adapter or an endpoint.

What could not be generated is written down as missing, with its reason: a server that was down is
not a policy that said nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from experiments.evaluation import local as here
from experiments.evaluation import remote
from experiments.evaluation.decoding import Decoding, Keep, Local, Turns, lone
from experiments.evaluation.responses import append, reopen
from judges.endpoint.complete import open_channel
from study.errors import UserError
from study.files import read_json
from study.schema import Endpoint

EDGE = 1 << 20
"""Bytes at either end of a weight file that its fingerprint covers."""


@dataclass(frozen=True)
class Source:
    """A model that can be asked."""

    model: str
    """Who answers; files of results and responses belong to one model."""
    settings: dict[str, Any]
    answer: Callable[[Sequence[str], Keep], None]
    """Hands a row {prompt, response, ...} of each prompt to the callable, in any order."""


def fill(source: Source, prompts: Sequence[str], path: Path) -> None:
    """Write the responses that ``path`` does not have yet; those it has are kept.

    Raises:
        UserError: ``path`` is of another model or other settings, or the source cannot answer.
    """
    done = reopen(path, source.model, source.settings)
    todo = [prompt for prompt in prompts if prompt not in done]
    if not todo:
        return
    print(f"{len(todo)} of {len(prompts)} responses to generate into {path}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    shared = {"model": source.model, "settings": source.settings}
    with path.open("a", encoding="utf-8") as file:
        source.answer(todo, lambda row: append(file, row | shared))


def from_run(
    cell: Path, checkpoint: int | None, decoding: Decoding, local: Local, turns: Turns = lone
) -> Source:
    """The policy of a cell: as it ended, or at the checkpoint of a step.

    Raises:
        UserError: no cell, no such checkpoint, or the tiny policy, which knows one task only.
    """
    if not (cell / "config.yaml").is_file():
        raise UserError(f"run={cell} is no cell: it has no config.yaml. Give runs/STUDY/CELL.")
    policy = yaml.safe_load((cell / "config.yaml").read_text(encoding="utf-8"))["policy"]
    if policy["path"] == "tiny":
        raise UserError(
            f"run={cell} trained the tiny policy, which knows the built-in task only and not"
            " English. Give the run of a real policy, for example of experiment=small-real."
        )
    folder = cell / "policy"
    if checkpoint is not None:
        folder = cell / "checkpoints" / f"checkpoint-{checkpoint}"
    if not folder.is_dir():
        there = sorted(path.name for path in (cell / "checkpoints").glob("checkpoint-*"))
        raise UserError(
            f"{folder} does not exist; this run has {', '.join(there) or 'no checkpoint yet'}."
            " Give checkpoint=STEP of one of them, or let the run end."
        )
    local = replace(local, dtype=local.dtype or policy["dtype"])
    if (folder / "adapter_config.json").is_file():
        return from_folder(policy["path"], folder, decoding, local, turns)
    return from_folder(str(folder), None, decoding, local, turns)


def from_folder(
    model: str | None,
    adapter: Path | None,
    decoding: Decoding,
    local: Local,
    turns: Turns = lone,
) -> Source:
    """A Hugging Face folder or hub id, with a LoRA adapter where one is given.

    Args:
        model: None takes the base model that the adapter names.

    Raises:
        UserError: no adapter there, or one that was trained on another base model.
    """
    if adapter is not None:
        if not (adapter / "adapter_config.json").is_file():
            raise UserError(f"adapter={adapter} has no adapter_config.json: it is no adapter.")
        named = str(read_json(adapter / "adapter_config.json").get("base_model_name_or_path"))
        model = model or named
        if not same_model(model, named):
            raise UserError(
                f"adapter={adapter} was trained on {named}, and the model given is {model}. Give"
                f" model={named}, or leave model out."
            )
    if model is None:
        raise UserError("There is no model to ask. Type model=FOLDER, adapter=FOLDER or run=CELL.")
    label = _label(Path(model)) + (f" + {_label(adapter)}" if adapter else "")
    settings = asdict(decoding) | {"dtype": local.dtype or "auto"}
    if local.chat_template is not None:
        settings["chat_template_sha256"] = hashlib.sha256(local.chat_template.encode()).hexdigest()

    def answer(prompts: Sequence[str], keep: Keep) -> None:
        here.answer_all(str(model), adapter, prompts, keep, decoding, local, turns)

    return Source(label, settings, answer)


def same_model(given: str, named: str) -> bool:
    """A folder may have been moved, or be the local copy of a hub id: its last name decides."""
    return (
        Path(given).resolve() == Path(named).resolve()
        or Path(given).name.lower() == Path(named).name.lower()
    )


def _label(folder: Path) -> str:
    """Name of a model with a fingerprint of its weights, which any update of them changes."""
    digest = hashlib.blake2b(digest_size=5)
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    for path in weights:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(EDGE))
            file.seek(max(0, size - EDGE))
            digest.update(file.read(EDGE))
    name = str(folder)
    if weights:
        parts = folder.resolve().parts
        cut = next((i for i, part in enumerate(parts) if part == "checkpoints"), len(parts) - 1)
        nested = cut < len(parts) - 1 or parts[-1] == "policy"
        name = "/".join(parts[cut - 1 :] if nested else parts[-1:])
    return f"{name}@{digest.hexdigest()}" if weights else name


def from_endpoint(
    url: str,
    model: str,
    decoding: Decoding,
    concurrency: int,
    timeout_s: float,
    api_key_env: str | None = None,
    turns: Turns = lone,
) -> Source:
    """A model behind an OpenAI-compatible chat endpoint.

    Args:
        concurrency: requests at once.
        timeout_s: seconds that one response may take in all, retries included.
        api_key_env: name of the environment variable that holds the key.

    Raises:
        UserError: not an http address, or the variable that should hold the key is not set.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"endpoint={url} is not an address. Type endpoint=http://HOST:PORT/v1.")
    endpoint = Endpoint(
        url=url,
        model=model,
        api_key_env=api_key_env,
        max_concurrency=concurrency,
        deadline_s=timeout_s,
        idle_timeout_s=timeout_s,
    )
    open_channel(endpoint)  # a missing key is said before anything is written

    def answer(prompts: Sequence[str], keep: Keep) -> None:
        remote.answer_all(endpoint, prompts, keep, decoding, turns)

    return Source(f"{model} at {url.rstrip('/')}", asdict(decoding), answer)
