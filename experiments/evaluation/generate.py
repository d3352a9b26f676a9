"""Generates answers to an evaluation's prompts, from a checkpoint, an adapter or an endpoint.

What could not be generated is written down as missing, with its reason: a server that was down is
not a policy that said nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.evaluation.local import Decoding, Keep, Local, Row, Turns, answer_all, failed
from experiments.policies.load import same_model, trained_policy
from judges.endpoint.chat_completions import FILTERED
from judges.endpoint.complete import Fetched, chat_body, complete_all, open_channel
from study.errors import UserError
from study.files import read_json
from study.schema import Endpoint, Sampling

EDGE = 1 << 20
"""Bytes at either end of a weight file that its fingerprint covers."""


@dataclass(frozen=True)
class Source:
    """A model that can be asked."""

    model: str
    """Who answers; files of results and responses belong to one model."""
    settings: dict[str, Any]
    answer: Callable[[Turns, Keep], None]
    """Hands a row {prompt, response, ...} of each prompt to the callable, in any order."""


def from_run(cell: Path, checkpoint: int | None, decoding: Decoding, local: Local) -> Source:
    """The policy of a cell: as it ended, or at the checkpoint of a step. Raises UserError where
    there is none, and for the tiny policy, which knows one task only."""
    policy, folder = trained_policy(cell, checkpoint)
    if policy["path"] == "tiny":
        raise UserError(
            f"run={cell} trained the tiny policy, which knows the built-in task only and not"
            " English. Give the run of a real policy, for example of experiment=small-real."
        )
    local = replace(local, dtype=local.dtype or policy["dtype"])
    if (folder / "adapter_config.json").is_file():
        return from_folder(policy["path"], folder, decoding, local)
    return from_folder(str(folder), None, decoding, local)


def from_folder(
    model: str | None, adapter: Path | None, decoding: Decoding, local: Local
) -> Source:
    """A Hugging Face folder or hub id, with a LoRA adapter where one is given.

    A ``model`` of None is the base model that the adapter names. Raises UserError where there is no
    adapter, or one that was trained on another base model.
    """
    if adapter is not None:
        if not (adapter / "adapter_config.json").is_file():
            raise UserError(f"adapter={adapter} has no adapter_config.json: it is not an adapter.")
        base = str(read_json(adapter / "adapter_config.json").get("base_model_name_or_path"))
        model = model or base
        if not same_model(model, base):
            raise UserError(
                f"adapter={adapter} was trained on {base}, and the model given is {model}. Give"
                f" model={base}, or leave model out."
            )
    path = str(model)
    label = _label(Path(path)) + (f" + {_label(adapter)}" if adapter else "")
    settings = asdict(decoding) | {"dtype": local.dtype or "auto"}
    if local.chat_template is not None:
        settings["chat_template_sha256"] = hashlib.sha256(local.chat_template.encode()).hexdigest()

    def answer(turns: Turns, keep: Keep) -> None:
        answer_all(path, adapter, turns, keep, decoding, local)

    return Source(label, settings, answer)


def _label(folder: Path) -> str:
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
    cut = parts.index("checkpoints") if "checkpoints" in parts else last
    nested = cut < last or parts[-1] == "policy"
    return f"{'/'.join(parts[cut - 1 :] if nested else parts[-1:])}@{digest.hexdigest()}"


def from_endpoint(
    url: str,
    model: str,
    decoding: Decoding,
    concurrency: int,
    timeout_s: float,
    api_key_env: str | None = None,
) -> Source:
    """A model behind an OpenAI-compatible endpoint, asked as judges are: one client, its limits.

    Args:
        concurrency: requests at once.
        timeout_s: seconds that one response may take in all, retries included.
        api_key_env: name of the environment variable that holds the key.

    Raises:
        UserError: not an http address, the variable of the key is not set; when asked, nobody
            answers the first request, or its key or model is refused.
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
    settings = asdict(decoding)
    sampling = Sampling(**{key: settings[key] for key in settings if key != "thinking"})

    def answer(turns: Turns, keep: Keep) -> None:
        prompts = list(turns)
        bodies = [chat_body(endpoint, sampling, messages) for messages in turns.values()]
        if decoding.thinking is not None:
            for body in bodies:
                body["chat_template_kwargs"] = {"enable_thinking": decoding.thinking}
        complete_all(endpoint, bodies, lambda place, fetched: keep(_row(prompts[place], fetched)))

    return Source(f"{model} at {url.rstrip('/')}", settings, answer)


def _row(prompt: str, fetched: Fetched) -> Row:
    """One response of an endpoint.

    A thinker that was cut off has its thoughts in a field of their own and no content: it is
    written as thinking that was never closed, so that it counts as that.
    """
    if fetched.outcome is not None:
        return failed(prompt, f"{fetched.outcome}: {fetched.reason}")
    reply = fetched.replies[-1]
    text, finish = reply.text, reply.finish_reason
    if finish == FILTERED and not text:
        return failed(prompt, "the endpoint filtered the answer")
    if not text and reply.reasoning and finish == "length":
        text = f"<think>{reply.reasoning}"
    stop = "length" if finish == "length" else "stop"
    return {"prompt": prompt, "response": text, "stop": stop, "tokens": reply.tokens_out}
