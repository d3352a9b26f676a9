"""Results of evaluations: JSON that names its model, and is never overwritten by another one's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study.errors import UserError
from study.files import read_json, write_json


def guard(
    target: Path, model: str | None, evaluation: str, judge: str | None = None
) -> dict[str, Any]:
    """What ``target`` holds already, if that is an earlier result of the same.

    Raises:
        UserError: it is of another model, evaluation or judge, or no result at all.
    """
    if target.is_file() and not target.stat().st_size:
        return {}
    before = read_json(target)
    if not before:
        return {}
    if "evaluation" not in before:
        raise UserError(f"out={target} is there and is not a result. Give another out=FILE.")
    if before.get("model") != model:
        raise UserError(
            f"out={target} holds the result of {before.get('model') or 'a model without name'}, and"
            f" this is {model or 'a file that names no model'}. Give another out=FILE; results are"
            " never overwritten by another model's."
        )
    then = (before["evaluation"], before.get("judge", {}).get("name"))
    if then != (evaluation, judge):
        was, now = (
            " under judge=".join(filter(None, pair)) for pair in (then, (evaluation, judge))
        )
        raise UserError(f"out={target} holds a result of {was}, and this is {now}. Give another.")
    return before


def write_result(target: Path, result: Mapping[str, Any]) -> None:
    """Write a result; one of another model is never lost.

    Files that name no model may be of different ones: the result of another file is then kept
    beside the new one, under a name with the hash of its responses.

    Raises:
        UserError: ``target`` holds the result of another model, evaluation or judge.
    """
    judge = result.get("judge", {}).get("name")
    before = guard(target, result["model"], result["evaluation"], judge)
    if before and result["model"] is None:
        (path, sha), (now, _) = _file_of(before), _file_of(result)
        if path != now:
            aside = target.with_name(f"{target.stem}.{sha[:8]}{target.suffix}")
            write_json(aside, before)
            print(f"{target} held the result of {path}; it is now {aside}")
    write_json(target, dict(result))


def _file_of(result: Mapping[str, Any]) -> tuple[str, str]:
    """Path and hash of the first file of responses behind a result."""
    named = result["responses"]
    first = named[0] if isinstance(named, list) else named
    return str(first["path"]), str(first["sha256"])
