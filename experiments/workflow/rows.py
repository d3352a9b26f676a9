"""Reads the JSON files of the workflow commands, and says file and row of what does not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study.errors import UserError
from study.tasks.files import records, refuse, short


def rows_of(path: Path, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """(file and line, record) of each row of a JSONL file.
    Raises UserError: the file cannot be read, a line is no object, or there is none."""
    if not path.exists():
        raise UserError(f"{key}={path} does not exist. Give a file with one JSON object per line.")
    rows = [(f"{path}, {line}", record) for line, record in records(path, key=key)]
    if not rows:
        raise UserError(f"{key}={path} holds no rows. Give one JSON object per line.")
    return rows


def text_of(record: Mapping[str, Any], key: str, where: str, empty: bool = False) -> str:
    """A text of a row. Raises UserError: it is missing, of another type, or blank."""
    value = record.get(key)
    if not isinstance(value, str) or not (empty or value.strip()):
        refuse(where, f"{key} {_shown_value(record, key)}", f"{key} is a text")
    return value


def name_of(record: Mapping[str, Any], key: str, where: str) -> str | int:
    """What names a row: a text or a whole number. Raises UserError: it is neither."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        refuse(where, f"{key} {_shown_value(record, key)}", f"{key} is a text or a whole number")
    return value


def group_key_of(record: Mapping[str, Any], where: str) -> str | int | None:
    """What the problems of one source share; None where it is null or absent.
    Raises UserError: it is neither a text nor a whole number."""
    return None if record.get("group_key") is None else name_of(record, "group_key", where)


def word_of(record: Mapping[str, Any], key: str, words: tuple[str, ...], where: str) -> str:
    """One of some words. Raises UserError: it is another, or missing."""
    value = record.get(key)
    if value not in words:
        refuse(where, f"{key} {_shown_value(record, key)}", f"{key} is one of {', '.join(words)}")
    return value


def number_of(record: Mapping[str, Any], key: str, where: str) -> float | None:
    """A finite number; true and false are 1 and 0, None where it is null or absent.
    Raises UserError: it is anything else."""
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or not _finite(value):
        refuse(where, f"{key} {_shown_value(record, key)}", f"{key} is a finite number, or null")
    return float(value)


def share_of(record: Mapping[str, Any], key: str, where: str) -> float | None:
    """A number from 0 to 1, as `number_of`. Raises UserError: it is anything else."""
    value = number_of(record, key, where)
    if value is not None and not 0 <= value <= 1:
        refuse(
            where, f"{key} {_shown_value(record, key)}", f"{key} is a number from 0 to 1, or null"
        )
    return value


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown_value(record: Mapping[str, Any], key: str) -> str:
    return short(record[key]) if key in record else "missing"
