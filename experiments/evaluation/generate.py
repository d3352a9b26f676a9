"""Answers to an evaluation's prompts, from a checkpoint, an adapter or an endpoint.

What could not be generated is written down as missing, with its reason: a server that was down is
not a policy that said nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

from experiments.evaluation.responses import append, reopen
from study.answers import opened
from study.errors import UserError
from study.files import read_json

if TYPE_CHECKING:
    import aiohttp

Row = dict[str, Any]
Turns = Callable[[str], Sequence[dict[str, str]]]
"""Text of a prompt -> the chat turns that it stands for."""
ATTEMPTS, BACKOFF_S = 4, 0.5
UNREACHABLE = 0
NOT_FOR_US = (UNREACHABLE, 401, 403, 404)
"""What a first request meets where no other will fare better: nobody, no key, no such model."""
EDGE = 1 << 20
"""Bytes at either end of a weight file that its fingerprint covers."""


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


@dataclass(frozen=True)
class Source:
    """A model that can be asked."""

    model: str
    """Who answers; files of results and responses belong to one model."""
    settings: dict[str, Any]
    answer: Callable[[Sequence[str], Callable[[Row], None]], None]
    """Hands a row {prompt, response, ...} of each prompt to the callable, in any order."""


def lone(prompt: str) -> list[dict[str, str]]:
    """A prompt that is one user turn."""
    return [{"role": "user", "content": prompt}]


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

    def answer(prompts: Sequence[str], keep: Callable[[Row], None]) -> None:
        _generate(str(model), adapter, prompts, keep, decoding, local, turns)

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


def _load(model: str, adapter: Path | None, local: Local) -> tuple[Any, Any]:
    """(model in evaluation mode on its device, tokenizer with the template it was trained with)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = local.dtype or ("bfloat16" if device == "cuda" else "float32")
    kind = getattr(torch, wanted, None)
    if not isinstance(kind, torch.dtype):
        raise UserError(f"dtype={wanted} is no dtype of torch. Type dtype=float32 or bfloat16.")
    own = adapter is not None and (adapter / "tokenizer_config.json").is_file()
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(adapter) if own else model)
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=kind)
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


def _generate(
    path: str,
    adapter: Path | None,
    prompts: Sequence[str],
    keep: Callable[[Row], None],
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
                keep(_failed(prompt, f"the prompt does not fit the context of {context} tokens"))
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


def _digest(seed: int, text: str) -> bytes:
    return hashlib.blake2b(f"{seed} {text}".encode(), digest_size=7).digest()


def _failed(prompt: str, error: str) -> Row:
    return {"prompt": prompt, "response": None, "error": error}


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

    Raises:
        UserError: no http address, or the variable that should hold the key is not set.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"endpoint={url} is no address. Type endpoint=http://HOST:PORT/v1.")
    headers = {}
    if api_key_env:
        if not os.environ.get(api_key_env):
            raise UserError(f"api_key_env={api_key_env} is not set. Type: export {api_key_env}=KEY")
        headers["Authorization"] = f"Bearer {os.environ[api_key_env]}"

    def answer(prompts: Sequence[str], keep: Callable[[Row], None]) -> None:
        asyncio.run(
            _ask_all(url, model, headers, prompts, keep, decoding, concurrency, timeout_s, turns)
        )

    return Source(f"{model} at {url.rstrip('/')}", asdict(decoding), answer)


async def _ask_all(
    url: str,
    model: str,
    headers: dict[str, str],
    prompts: Sequence[str],
    keep: Callable[[Row], None],
    decoding: Decoding,
    concurrency: int,
    timeout_s: float,
    turns: Turns,
) -> None:
    body = {
        "model": model,
        "temperature": decoding.temperature,
        "top_p": decoding.top_p,
        "max_tokens": decoding.max_tokens,
        "seed": decoding.seed,
    }
    if decoding.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": decoding.thinking}
    address = url.rstrip("/") + "/chat/completions"
    places = asyncio.Semaphore(concurrency)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:

        async def one(prompt: str) -> Row:
            async with places:
                asked = body | {"messages": list(turns(prompt))}
                row = await _ask(session, address, asked, prompt)
            keep(row)
            return row

        # The first alone: an endpoint that is down or refuses us is not asked 541 times. A prompt
        # that alone is refused is missing, and no reason to give up the others.
        first = await one(prompts[0])
        if first.get("http") in NOT_FOR_US:
            raise UserError(
                f"endpoint={url} does not answer for model={model}: {first['error']}. Start it, or"
                " give the endpoint and the name of a model that it serves."
            )
        await asyncio.gather(*(one(prompt) for prompt in prompts[1:]))


async def _ask(
    session: aiohttp.ClientSession, address: str, body: dict[str, Any], prompt: str
) -> Row:
    """One answer in up to four attempts; a request that is refused as such is not repeated."""
    reason, status = "", None
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1) * (0.5 + random.random()))
        try:
            async with session.post(address, json=body, allow_redirects=False) as reply:
                text = await reply.text()
                if reply.status == 200:
                    return _row(prompt, json.loads(text))
                status = reply.status
                reason = f"HTTP {status}: {' '.join(text.split())[:200]}"
                if status < 500 and status not in (408, 429):
                    break
        except aiohttp.ClientConnectorError as error:
            reason, status = f"{type(error).__name__}: {error}", UNREACHABLE
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = f"{type(error).__name__}: {error}"
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            reason = f"the reply is no chat completion ({error!r})"
    return _failed(prompt, reason) | {"http": status}


def _row(prompt: str, reply: Any) -> Row:
    """The answer of a chat completion.

    A thinker that was cut off has its thoughts in a field of their own and no content: it is
    written as thinking that was never closed, so that it counts as that.
    """
    choice = reply["choices"][0]
    message, finish = choice["message"], choice.get("finish_reason")
    content = message.get("content") or ""
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if not content and thoughts and finish == "length":
        content = f"<think>{thoughts}"
    if not isinstance(content, str):
        raise TypeError("content is not text")
    return {
        "prompt": prompt,
        "response": content,
        "stop": "length" if finish == "length" else "stop",
        "tokens": (reply.get("usage") or {}).get("completion_tokens"),
    }
