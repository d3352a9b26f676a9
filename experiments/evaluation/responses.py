"""Files of responses, JSONL ``{prompt, response}``: read strictly, written so that a run resumes.

A response of null could not be generated: it is missing, which an empty one is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    lines = (json.dumps(response.fields, ensure_ascii=False) + "\n" for response in answered)
    write_text(path, "".join(lines))
    return {response.prompt for response in answered}
