"""Reads completions that other programs wrote: TRL's Parquet, verl's JSONL and plain JSONL.

A damaged JSONL (a block of NUL bytes, a line cut by a crash) is read as far as it is sound, and
the lost records are counted.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet as pq

from study.errors import UserError
from study.rows import Criterion, Row, make_row
from study.system.files import first_line

T = TypeVar("T")

FORMS = (
    "TRL completions (.parquet with prompt, completion, step?, advantage?), "
    "verl rollouts (.jsonl with input, output, score?, step?) or "
    "plain records (.jsonl with prompt, response, criteria?, step?)"
)
NAMES = (("prompt", "completion"), ("input", "output"), ("prompt", "response"))
"""Prompt and completion by any of these pairs of names."""


@dataclass(frozen=True)
class Completion:
    """One completion with what its writer knew of it; ``place`` is its row in the file."""

    place: int
    step: int
    row: Row
    completion: str
    reward: float | None = None
    advantage: float | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    """All that was written."""


def read_completions(path: Path) -> tuple[list[Completion], int]:
    """Every sound record of a file, and how many are lost.
    Raises UserError: no such file, an unknown kind, or a sound record that lacks a field."""
    if not path.is_file():
        raise UserError(f"file={path} is not a file. Legal are {FORMS}.")
    if path.suffix == ".parquet":
        return [_completion(place, record, path) for place, record in enumerate(_rows(path))], 0
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        try:
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(path, error) from error
        records, lost = sound_records(data, json_object)
        return [_completion(place, record, path) for place, record in records], lost
    raise UserError(f"file={path} is of an unknown kind. Legal are {FORMS}.")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for batch in pq.ParquetFile(path).iter_batches(512):
            yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"file={path} cannot be read as completions: {first_line(error)} Copy it again, or give"
        f" another file. Legal are {FORMS}."
    )


def sound_records(
    data: bytes, read: Callable[[bytes], T | None]
) -> tuple[list[tuple[int, T]], int]:
    """(line number from 0, record) of each line in which ``read`` finds one, and how many are lost.

    Whatever stands between NUL bytes is looked at by itself: a record that a crash pushed behind
    a block of them is whole. A line with NUL bytes has lost one record at least.
    """
    records: list[tuple[int, T]] = []
    lost = 0
    for number, line in enumerate(data.split(b"\n")):
        pieces = [piece for piece in line.split(b"\0") if piece.strip()]
        sound = [record for record in map(read, pieces) if record is not None]
        records += [(number, record) for record in sound]
        damaged = len(pieces) - len(sound)
        lost += max(damaged, 1) if b"\0" in line else damaged
    return records, lost


def json_object(piece: bytes) -> dict[str, Any] | None:
    """The JSON object that a piece of a line is, or None."""
    try:
        data = json.loads(piece.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _completion(place: int, record: Mapping[str, Any], path: Path) -> Completion:
    pairs = (pair for pair in NAMES if all(record.get(name) is not None for name in pair))
    if (names := next(pairs, None)) is None:
        raise UserError(
            f"{path}, record {place + 1} has the fields {', '.join(sorted(record)) or '(none)'}, "
            f"but no prompt with its completion. Legal are {FORMS}."
        )
    try:
        criteria = tuple(
            Criterion(str(item["criterion"]), float(item.get("points", 1.0)))
            for item in record.get("criteria") or ()
        )
        return Completion(
            place,
            int(record.get("step") or 0),
            make_row(turns(record[names[0]]), criteria),
            _text(record[names[1]]),
            _number(record.get("score", record.get("reward"))),
            _number(record.get("advantage")),
            record,
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise UserError(
            f"{path}, record {place + 1} has a field of the wrong form ({error!r}). Legal are"
            f" {FORMS}; prompt and completion are texts or turns of role and content, criteria are"
            " {criterion, points}, and a step is a whole number. Correct or remove the record."
        ) from error


def turns(prompt: Any) -> tuple[dict[str, str], ...]:
    """A text as the user's turn, or turns of role and content.
    Raises KeyError, TypeError: anything else."""
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    return tuple({"role": str(t["role"]), "content": str(t["content"])} for t in prompt)


def _text(completion: Any) -> str:
    """A text, or the contents of the turns that TRL makes of it."""
    if isinstance(completion, str):
        return completion
    return "\n\n".join(str(turn["content"]) for turn in completion)


def _number(value: Any) -> float | None:
    """A finite number; anything else is missing."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None
