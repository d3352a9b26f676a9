"""An evaluation's answers: generated where asked to, read from their files, matched to prompts."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from experiments.evaluation.decoding import Turns
from experiments.evaluation.generate import Source, fill
from experiments.evaluation.options import Options, source_of
from experiments.evaluation.responses import Response, read_responses
from experiments.evaluation.results import guard
from study.errors import UserError

K = TypeVar("K", bound=str | int)


@dataclass(frozen=True)
class Collected(Generic[K]):
    """The answers to the prompts that are evaluated, and how they came about."""

    texts: dict[K, list[str]]
    """Key of a prompt -> its responses; a prompt without one is missing."""
    model: str | None
    files: list[dict[str, str]]
    """Path and sha256 of each file of responses."""
    failed: int
    """Responses that could not be generated."""
    beside: int
    """Responses to prompts that are not evaluated."""
    truncated: int
    settings: dict[str, Any] | None
    """How the responses were generated; None for a file that was given."""


def collect(
    options: Options,
    turns: Turns,
    keys: Mapping[str, K],
    judge: str | None = None,
    once: bool = False,
) -> Collected[K]:
    """The responses to ``turns``, generated first where options name a model and not a file.

    Args:
        turns: the prompts to evaluate.
        keys: stripped text of every prompt of the data, evaluated or not -> its key.
        once: a prompt has one response, and a second one is refused.

    Raises:
        UserError: options that do not fit, a result of another model in ``out``, a response to no
            prompt of these, or responses that are missing without ``allow_missing``.
    """
    source = source_of(options)
    if source is None:
        if options.samples != 1:
            raise UserError("samples= is for generated answers; a file has as many as it has.")
        assert options.responses is not None
        paths = [options.responses]
    else:
        guard(options.out, source.model, options.what, judge)
        paths = _generated(options, source, turns)
    wanted = {keys[text.strip()] for text in turns}
    texts: dict[K, list[str]] = defaultdict(list)
    failed = beside = truncated = 0
    models: set[str | None] = set()
    for path in paths:
        responses = read_responses(path)
        models.add(_model_of(responses, path))
        lines: dict[K, int] = {}
        for response in responses:
            key = _key_of(response, keys, path)
            if once and key in lines:
                raise UserError(
                    f"{path}, line {response.line} answers the prompt of line {lines[key]} again:"
                    f" {response.prompt[:60]!r}. Leave one response per prompt."
                )
            lines[key] = response.line
            truncated += response.fields.get("stop") == "length"
            if key not in wanted:
                beside += 1
            elif response.text is None:
                failed += 1
            else:
                texts[key].append(response.text)
    model = models.pop()
    guard(options.out, model, options.what, judge)
    _complete(len(texts), len(wanted), failed, paths[0], options.allow_missing)
    files = [
        {"path": str(path.resolve()), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in paths
    ]
    settings = None if source is None else source.settings
    return Collected(dict(texts), model, files, failed, beside, truncated, settings)


def _generated(options: Options, source: Source, turns: Turns) -> list[Path]:
    """One file of responses per sample, each filled up by a seed of its own."""
    samples, out = options.samples, options.out
    if samples > 1 and not source.settings["temperature"]:
        raise UserError(
            f"samples={samples} of greedy decoding are {samples} copies. Type temperature=0.7"
            " or another above 0."
        )
    base = options.responses_out or out.with_suffix(".responses.jsonl")
    numbers = [f".{n}" for n in range(samples)] if samples > 1 else [""]
    paths = [base.with_suffix(f"{number}{base.suffix}") for number in numbers]
    if out.resolve() in [path.resolve() for path in paths]:
        raise UserError(f"out and responses_out are both {out}. Give them different names.")
    for number, path in enumerate(paths):
        asked = source_of(replace(options, seed=options.seed + number)) if number else source
        assert asked is not None
        fill(asked, turns, path)
    return paths


def _model_of(responses: Sequence[Response], path: Path) -> str | None:
    """The model that the lines name, None where they name none."""
    models = {
        str(response.fields["model"]) for response in responses if response.fields.get("model")
    }
    if len(models) > 1:
        raise UserError(
            f"{path} mixes the responses of {len(models)} models: {', '.join(sorted(models))}."
            " Give each model its own file."
        )
    return models.pop() if models else None


def _key_of(response: Response, keys: Mapping[str, K], path: Path) -> K:
    """Key of the prompt; blanks around it are no difference."""
    key = keys.get(response.prompt.strip())
    if key is None:
        raise UserError(
            f"{path}, line {response.line}: {response.prompt[:60]!r} is not a prompt of this"
            " evaluation. Every prompt must be one of its own, letter by letter; a conversation is"
            " its turns as `role: content` with an empty line between them."
        )
    return key


def _complete(answered: int, chosen: int, failed: int, path: Path, allowed: bool) -> None:
    if not answered:
        raise UserError(f"{path} has no response that could be scored.")
    if answered < chosen and not allowed:
        again = (
            f" {failed} could not be generated; the same command asks for them again."
            if failed
            else ""
        )
        raise UserError(
            f"{path} answers {answered} of {chosen} prompts.{again} Type allow_missing=true to"
            " score those that are there; the result then says how many are missing."
        )
