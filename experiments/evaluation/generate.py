"""Generates answers to an evaluation's prompts, from a checkpoint, an adapter or an endpoint.

What could not be generated is written down as missing, with its reason: a server that was down is
not a policy that said nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from experiments.evaluation import vllm_engine
from experiments.evaluation.options import PLAYED, VERIFIED, Options
from experiments.policies.load import (
    TINY,
    adapted,
    cache_of,
    dtype_of,
    first_path,
    is_warmed,
    label_of,
    no_model,
    read_tokenizer,
    read_weights,
    same_model,
    template_file,
    trained_policy,
    training_of_run,
)
from judges.endpoint.chat_completions import FILTERED
from judges.endpoint.complete import Fetched, chat_body, complete_all, open_channel
from study.answers import opened
from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.config.schema import Endpoint, Policy, Sampling, freeze
from study.errors import UserError
from study.system.files import read_json
from study.system.machine import kernel_variables


class Row(TypedDict, total=False):
    """One response, and how it ended."""

    prompt: str
    response: str | None
    stop: str | None
    tokens: int | None
    thinking: str
    error: str


Keep = Callable[[Row], None]
"""Takes a row as soon as it is there."""
Turns = Mapping[str, Sequence[dict[str, str]]]
"""Text of a prompt -> its chat turns."""
FILES = ("responses", "predictions")
SOURCES = (*FILES, "run", "model", "adapter", "endpoint")
LOCAL = ("checkpoint", "engine", "tensor_parallel", "gpu_memory", "batch", "dtype", "chat_template")
REMOTE = ("api_key_env", "concurrency", "timeout_s")
GENERATION = (
    *("responses_out", "limit", "temperature", "top_p", "top_k", "max_tokens", "thinking"),
    *LOCAL,
    *REMOTE,
)
MEANINGLESS = {
    frozenset({"responses"}): GENERATION,
    frozenset({"predictions"}): tuple(name for name in GENERATION if name != "limit"),
    frozenset({"run"}): REMOTE,
    frozenset({"model"}): (*REMOTE, "checkpoint"),
    frozenset({"adapter"}): (*REMOTE, "checkpoint"),
    frozenset({"model", "adapter"}): (*REMOTE, "checkpoint"),
    frozenset({"endpoint", "model"}): LOCAL,
}
"""Options that name where answers come from -> those that have no meaning with them."""
OF_ENGINE = {"vllm": ("batch",), "transformers": ("tensor_parallel", "gpu_memory")}
"""Engine -> options that have no meaning with it."""
REMEDY = (
    "Give a folder that has config.json, the weights and the tokenizer, or a hub id that this"
    " machine can download."
)


@dataclass(frozen=True)
class Source:
    """A model that can be asked."""

    model: str
    """Who answers; files of results and responses belong to one model."""
    settings: dict[str, object]
    answer: Callable[[Turns, Keep], None]
    """Hands a row {prompt, response, ...} of each prompt to the callable, in any order."""
    tokenizer: Callable[[], Any] | None = None
    """Loads the tokenizer, where the model is one of this machine."""


def source_of(options: Options) -> Source | None:
    """Who is to answer, or None for a file of responses; at checkpoint 0 of a run, the model that
    it was about to train. Raises UserError for answers from no place or several, an option that has
    no meaning with it, or a source that cannot answer."""
    sources = frozenset(key for key in SOURCES if getattr(options, key) is not None)
    if sources not in MEANINGLESS:
        file = "predictions" if options.what in VERIFIED else "responses"
        raise UserError(
            f"Answers need exactly one source, but {', '.join(sorted(sources)) or 'none'} is given."
            f" Type {file}=FILE, run=CELL_FOLDER, model=FOLDER, adapter=FOLDER, model= and adapter="
            " together, or endpoint=URL model=NAME."
        )
    if wrong := [key for key in MEANINGLESS[sources] if key in options.given]:
        raise UserError(f"{wrong[0]} has no meaning with {' and '.join(sorted(sources))}.")
    if not sources.isdisjoint(FILES):
        return None
    if options.endpoint is not None:
        return _endpoint(options, options.endpoint, str(options.model))
    if wrong := [key for key in OF_ENGINE[options.engine] if key in options.given]:
        raise UserError(f"{wrong[0]} has no meaning with engine={options.engine}.")
    if options.engine == "vllm":
        vllm_engine.refuse_missing(options.tensor_parallel)
    if options.run is None:
        return _folder(options, options.model, options.adapter)
    if options.checkpoint == 0:
        policy, folder = _untrained(options.run), None
    else:
        policy, folder = trained_policy(options.run, options.checkpoint)
    if policy["path"] == TINY and options.what not in PLAYED:
        raise UserError(
            f"run={options.run} trained the tiny policy, which knows only the words of its own"
            " task. Give a real policy's run, for example of experiment=small-real."
        )
    options = replace(options, dtype=options.dtype or policy["dtype"])
    warmed = is_warmed(freeze(Policy, policy))
    if folder is None:
        template_name, path = policy.get("chat_template"), policy["path"]
        if warmed and options.run is not None:
            cell = load_cell(options.run)
            path = first_path(cell.config.policy, cell.config.task, cache_of(cell))
        template = options.chat_template or (
            template_file(template_name) if template_name else None
        )
        return _folder(replace(options, chat_template=template), path, None)
    if (folder / "adapter_config.json").is_file():
        return _folder(options, None if warmed else policy["path"], folder)
    return _folder(options, str(folder), None)


def _untrained(run: CellFolder) -> dict[str, Any]:
    """A cell's config of its policy, which before the first step is the model that it names."""
    training_of_run(run)
    return run.config()["policy"]


def _decoding(options: Options) -> dict[str, object]:
    """How answers are decoded; part of what a file of responses is compared with."""
    names = ("temperature", "top_p", "max_tokens", "seed", "thinking")
    top_k = {"top_k": options.top_k} if options.top_k else {}
    return {name: getattr(options, name) for name in names} | top_k


def _folder(options: Options, model: str | None, adapter: Path | None) -> Source:
    """A Hugging Face folder or hub id, None for the base model that a LoRA adapter names."""
    if adapter is not None:
        if not (adapter / "adapter_config.json").is_file():
            raise UserError(f"adapter={adapter} has no adapter_config.json: it is not an adapter.")
        base = str(read_json(adapter / "adapter_config.json").get("base_model_name_or_path"))
        model = model or base
        if not same_model(model, base):
            raise UserError(
                f"adapter={adapter} was trained on {base}, but the model given is {model}. Type"
                f" model={base}, or leave model out."
            )
    path, template = str(model), None
    label = label_of(path, adapter)
    settings = _decoding(options) | {"dtype": options.dtype or "auto"}
    if options.engine == "vllm":  # the same seeds draw other tokens there
        settings["engine"] = "vllm"
    if file := options.chat_template:
        try:
            template = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"chat_template={file} cannot be read: {error}.") from error
        settings["chat_template_sha256"] = hashlib.sha256(template.encode()).hexdigest()

    def answer(turns: Turns, keep: Keep) -> None:
        by = answer_by_vllm if options.engine == "vllm" else answer_all
        by(path, adapter, turns, keep, options, template)

    def tokenizer() -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(_words_of(path, adapter))

    return Source(label, settings, answer, tokenizer)


def _words_of(path: str, adapter: Path | None) -> str:
    """Where the tokenizer lies: with the adapter, where that has brought its own."""
    has_tokenizer = adapter is not None and (adapter / "tokenizer_config.json").is_file()
    return str(adapter) if has_tokenizer else path


def _endpoint(options: Options, url: str, model: str) -> Source:
    """A model behind an OpenAI-compatible endpoint, asked as judges are: one client, its limits.

    When asked, it raises UserError where nobody answers the first request, or its key or model is
    refused.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"endpoint={url} is not an address. Type endpoint=http://HOST:PORT/v1.")
    endpoint = Endpoint(
        url=url,
        model=model,
        api_key_env=options.api_key_env,
        max_concurrency=options.concurrency,
        deadline_s=options.timeout_s,
        idle_timeout_s=options.timeout_s,
    )
    open_channel(endpoint)  # a missing key is said before anything is written
    settings = _decoding(options)
    extra = {"top_k": options.top_k} if options.top_k else {}  # a field of vLLM, not of OpenAI's
    sampling = Sampling(
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
        seed=options.seed,
    )

    def answer(turns: Turns, keep: Keep) -> None:
        prompts = list(turns)
        bodies = [chat_body(endpoint, sampling, turn, extra=extra) for turn in turns.values()]
        if options.thinking is not None:
            for body in bodies:
                body["chat_template_kwargs"] = {"enable_thinking": options.thinking}
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
    row: Row = {"prompt": prompt, "response": text, "stop": stop, "tokens": reply.tokens_out}
    return {**row, "thinking": reply.reasoning} if reply.reasoning else row


def failed(prompt: str, error: str) -> Row:
    """A missing response, which is not the same as an empty one."""
    return {"prompt": prompt, "response": None, "error": error}


def answer_all(
    path: str,
    adapter: Path | None,
    turns: Turns,
    keep: Keep,
    options: Options,
    template: str | None,
) -> None:
    """Answer every prompt; one that does not fit the model's context is missing. Raises UserError
    where there is no model at ``path``, an adapter does not fit it, or it has no chat template.
    ``template`` is Jinja text in place of the chat template that model or adapter brings."""
    from experiments.trainer.generate import Sampling, completions, merged

    tokenizer = _tokenizer(path, adapter, template)
    model = _load(path, adapter, options.dtype)
    texts = _texts(tokenizer, turns, options.thinking)
    ends = _ends(tokenizer, model.generation_config)
    context = _context(model.config)
    order = sorted(texts, key=lambda prompt: len(texts[prompt]))  # alike in length, less padding
    with merged(model) as policy:
        for start in range(0, len(order), options.batch):
            batch = order[start : start + options.batch]
            batch_texts = [texts[prompt] for prompt in batch]
            batch_ids = tokenizer(batch_texts, add_special_tokens=False)["input_ids"]
            room = min(options.max_tokens, context - max(map(len, batch_ids)))
            if room < 1:
                for prompt in batch:
                    keep(_too_long(prompt, context))
                continue
            # in place of the model's own settings, whose penalties would decode behind our back
            sampling = Sampling(
                room,
                ends,
                temperature=options.temperature,
                top_p=options.top_p,
                top_k=options.top_k,
                greedy=options.temperature == 0,
            )
            draws_B_L = np.stack([_draws(options.seed, prompt, room) for prompt in batch])
            ids_B = completions(policy, batch_ids, sampling, tokenizer.pad_token_id, draws_B_L)
            for prompt, ids in zip(batch, ids_B, strict=True):
                keep(_generated(prompt, texts[prompt], ids, ends, tokenizer))
            print(f"{min(start + options.batch, len(order))}/{len(order)} generated", flush=True)


def answer_by_vllm(
    path: str,
    adapter: Path | None,
    turns: Turns,
    keep: Keep,
    options: Options,
    template: str | None,
) -> None:
    """As `answer_all`, by an engine of vLLM, which draws all prompts at once; the likeliest tokens
    are the same. Raises UserError too where vLLM does not take the model or the adapter."""
    from transformers import AutoConfig, GenerationConfig

    tokenizer = _tokenizer(path, adapter, template)
    texts = _texts(tokenizer, turns, options.thinking)
    with no_model(path, REMEDY):
        config = AutoConfig.from_pretrained(path)
    try:
        generation = GenerationConfig.from_pretrained(path)
    except OSError:
        generation = GenerationConfig.from_model_config(config)
    ends, context = _ends(tokenizer, generation), _context(config)
    requests = {}
    for prompt, text in texts.items():
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        room = min(options.max_tokens, context - len(ids))
        if room < 1:
            keep(_too_long(prompt, context))
            continue
        seed = int.from_bytes(_key(options.seed, prompt)[:7], "little")
        requests[prompt] = vllm_engine.Request(ids, room, seed)
    if not requests:
        return
    dtype = options.dtype or _usual_dtype()
    dtype_of(dtype)
    place = vllm_engine.Place(path, dtype, options.gpu_memory, options.tensor_parallel)
    sampling = vllm_engine.Sampling(options.temperature, options.top_p, options.top_k, ends)
    by_number = {str(number): prompt for number, prompt in enumerate(requests)}
    numbered = dict(zip(by_number, requests.values(), strict=True))
    answers = vllm_engine.answers(place, adapter, sampling, numbered)
    for done, (number, ids) in enumerate(answers, start=1):
        prompt = by_number[number]
        keep(_generated(prompt, texts[prompt], ids, ends, tokenizer))
        if done % 100 == 0 or done == len(requests):
            print(f"{done}/{len(requests)} generated", flush=True)


def _texts(tokenizer: Any, turns: Turns, thinking: bool | None) -> dict[str, str]:
    """Prompt -> its turns as the chat template writes them."""
    extra = {} if thinking is None else {"enable_thinking": thinking}
    return {
        prompt: tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False, **extra
        )
        for prompt, messages in turns.items()
    }


def _ends(tokenizer: Any, generation: Any) -> tuple[int, ...]:
    """Ids of the tokens that end an answer, by tokenizer and generation config."""
    ends = generation.eos_token_id
    several = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
    return tuple(sorted(several - {None}))


def _context(config: Any) -> int:
    """Tokens that prompt and answer may have together."""
    return getattr(config, "max_position_embeddings", None) or 1 << 30


def _too_long(prompt: str, context: int) -> Row:
    return failed(prompt, f"the prompt does not fit the context of {context} tokens")


def _generated(
    prompt: str, text: str, ids: Sequence[int], ends: Sequence[int], tokenizer: Any
) -> Row:
    """The response of which these are the tokens, to what the chat template wrote."""
    stopped = ids[-1] in ends
    response = tokenizer.decode(ids[:-1] if stopped else ids, skip_special_tokens=True)
    return {
        "prompt": prompt,
        "response": opened(text) + response,
        "stop": "stop" if stopped else "length",
        "tokens": len(ids),
    }


def _key(seed: int, prompt: str) -> bytes:
    """16 bytes that decide the tokens of a prompt's answer, whatever else is asked."""
    return hashlib.blake2b(f"{seed} {prompt}".encode(), digest_size=16).digest()


def _draws(seed: int, prompt: str, length: int) -> np.ndarray:
    """Numbers in [0, 1), one for each token of a prompt's answer."""
    key = np.frombuffer(_key(seed, prompt), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random(length)


def _usual_dtype() -> str:
    """The dtype of weights where none is given."""
    import torch

    return "bfloat16" if torch.cuda.is_available() else "float32"


def _tokenizer(path: str, adapter: Path | None, template: str | None) -> Any:
    """The tokenizer with the template that the model was trained with; a UserError where it has
    none."""
    tokenizer = read_tokenizer(_words_of(path, adapter), path, REMEDY)
    if template is not None:
        tokenizer.chat_template = template
    if not tokenizer.chat_template:
        raise UserError(f"{path} has no chat template, so it cannot be prompted as in training.")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _load(path: str, adapter: Path | None, dtype: str | None) -> Any:
    """The model in evaluation mode on its device."""
    os.environ.update(kernel_variables())  # torch takes them with its first sum
    import torch

    model = read_weights(path, dtype or _usual_dtype(), REMEDY)
    if adapter is not None:
        model = adapted(model, adapter, path)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
