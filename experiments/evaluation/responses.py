"""Files of responses, JSONL ``{prompt, response}``: read strictly, written so that a run resumes.

A response of null is one that could not be generated: it is missing, which an empty one is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from study.errors import UserError
from study.files import write_text

SHAPE = 'One JSON object per line is legal: {"prompt": TEXT, "response": TEXT}.'


@dataclass(frozen=True)
class Response:
    """One line of a file of responses."""

    prompt: str
    text: str | None
    line: int
    fields: Mapping[str, Any]
    """The whole object; `generate` adds model, settings, stop, tokens and error."""


def read_responses(path: Path, torn: bool = False) -> list[Response]:
    """Every line of ``path``.

    Args:
        torn: leave out a last line that was cut off, as a killed writer leaves it.

    Raises:
        UserError: no such file, or a line that is not a response, with its number.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise UserError(f"There is no file of responses at {path}. {SHAPE}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 JSONL: {error}. {SHAPE}") from error
    responses = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (torn and number == len(lines)):
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON: {error}. {SHAPE}") from error
        if not isinstance(row, dict) or not {"prompt", "response"} <= row.keys():
            raise UserError(f"{path}, line {number} lacks prompt or response. {SHAPE}")
        if not isinstance(row["prompt"], str) or not isinstance(row["response"], str | None):
            raise UserError(f"{path}, line {number}: prompt and response are texts. {SHAPE}")
        responses.append(Response(row["prompt"], row["response"], number, row))
    return responses


def model_of(responses: Sequence[Response], path: Path) -> str | None:
    """The model that the lines name, None where they name none.

    Raises:
        UserError: the lines are of several models.
    """
    models = {
        str(response.fields["model"]) for response in responses if response.fields.get("model")
    }
    if len(models) > 1:
        raise UserError(
            f"{path} mixes the responses of {len(models)} models: {', '.join(sorted(models))}."
            " Give each model its own file."
        )
    return models.pop() if models else None


def match(responses: Sequence[Response], keys: Mapping[str, int], path: Path) -> dict[int, str]:
    """Key of the prompt -> its response, without the missing ones.

    Args:
        keys: text of a prompt -> its key; blanks around a prompt are no difference.

    Raises:
        UserError: a prompt that is not in ``keys``, or that comes twice, with its line.
    """
    stripped = {text.strip(): key for text, key in keys.items()}
    lines: dict[int, int] = {}
    texts = {}
    for response in responses:
        key = keys.get(response.prompt, stripped.get(response.prompt.strip()))
        if key is None:
            raise UserError(
                f"{path}, line {response.line}: {response.prompt[:60]!r} is not a prompt of this"
                " evaluation. Every prompt must be one of its own, letter by letter."
            )
        if key in lines:
            raise UserError(
                f"{path}, line {response.line} answers the prompt of line {lines[key]} again:"
                f" {response.prompt[:60]!r}. Leave one response per prompt."
            )
        lines[key] = response.line
        if response.text is not None:
            texts[key] = response.text
    return texts


def reopen(path: Path, model: str, settings: Mapping[str, Any]) -> set[str]:
    """Prompts that ``path`` already answers; failed responses and a torn last line are dropped.

    Raises:
        UserError: the file is of another model, or was made with other settings.
    """
    if not path.exists():
        return set()
    responses = read_responses(path, torn=True)
    for response in responses:
        if response.fields.get("model") != model:
            raise UserError(
                f"{path}, line {response.line} is a response of {response.fields.get('model')!r},"
                f" and this is {model!r}. Give another responses_out=FILE, or move that one away."
            )
        before = response.fields.get("settings")
        if before != settings:
            raise UserError(
                f"{path}, line {response.line} was made with {before}, and these settings are"
                f" {dict(settings)}. Give another responses_out=FILE, or the same settings."
            )
    answered = [response for response in responses if response.text is not None]
    write_text(path, "".join(_line(response.fields) for response in answered))
    return {response.prompt for response in answered}


def append(file: IO[str], row: Mapping[str, Any]) -> None:
    """Write one row and let go of it, so that a killed run keeps it."""
    file.write(_line(row))
    file.flush()


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
