"""Task ``prompts``: any JSONL or Parquet file of prompts, with rubrics where it has them.

A row is ``{prompt, rubrics?, split?}``, where ``prompt`` is a text or a list of chat turns and
``rubrics`` a list of ``{criterion, points?}``; verl's ``reward_model.rubrics`` is read as well.
No rule knows the truth of such rows, so ``truth`` is always None.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import logging
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from experiments.config import Task
from experiments.errors import UserError
from experiments.tasks.row import Criterion, Row, Truth, make_row

ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
OPTIONS = {"max_prompt_chars", "eval_share"}
EVAL_SHARE = 0.1
ROLES = ("system", "developer", "user", "assistant", "tool")
SPLITS = {"train": "train", "eval": "eval", "val": "eval", "validation": "eval", "test": "eval"}
USED = ("prompt", "rubrics", "reward_model", "extra_info", "split")
BATCH = 512
"""Parquet rows held in memory at once."""


@dataclass(frozen=True)
class Prompts:
    """What a file gave: distinct rows in file order, and what happened to the others."""

    rows: tuple[Row, ...]
    read: int
    merged: int
    """Rows whose prompt had come before; their criteria were added to it."""
    dropped: int
    """Rows longer than ``max_prompt_chars``."""


def rows(options: Task, split: str) -> list[Row]:
    """At most ``train_rows`` or ``eval_rows`` rows of a split, in file order.

    Where there are more, ``options.seed`` chooses which stay.

    Raises:
        UserError: no readable file at ``options.path``, a row that is not of the form (file and
            line named), an unknown option, or no training row at all.
    """
    found = [row for row in load(options).rows if row.split == split]
    if split == "train" and not found:
        raise UserError(
            f"task.path={options.path} leaves no prompt to train on. Check its split column,"
            " task.options.eval_share and task.options.max_prompt_chars."
        )
    limit = options.train_rows if split == "train" else options.eval_rows
    chosen = {row.prompt_id for row in sorted(found, key=lambda row: _draw(row, options))[:limit]}
    return [row for row in found if row.prompt_id in chosen]


def truth(row: Row, answer: str) -> Truth | None:
    """None: no rule can tell how good an answer to a free prompt is."""
    return None


def load(options: Task) -> Prompts:
    """All rows of the file behind ``options``; what was merged or dropped is logged once.

    Raises:
        UserError: see `rows`.
    """
    path = _path(options)
    limit, share = _limits(options)
    stat = path.stat()
    return _load(path, stat.st_mtime_ns, stat.st_size, limit, share)


@functools.lru_cache(maxsize=4)
def _load(path: Path, mtime: int, size: int, limit: int | None, share: float) -> Prompts:
    kept: dict[str, Row] = {}
    read = merged = dropped = 0
    for where, record in _records(path):
        read += 1
        row = parse(record, f"{path}, {where}", share)
        if limit is not None and len(row.prompt_text()) > limit:
            dropped += 1
        elif row.prompt_id in kept:
            merged += 1
            kept[row.prompt_id] = _merge(kept[row.prompt_id], row)
        else:
            kept[row.prompt_id] = row
    if not read:
        raise UserError(f"task.path={path} holds no rows. Give one JSON object per line.")
    if merged or dropped:
        logging.getLogger(__name__).warning(
            "%s: %d rows, %d distinct prompts; %d repeated ones merged, %d longer than %s"
            " characters dropped",
            *(path, read, len(kept), merged, dropped, limit),
        )
    return Prompts(tuple(kept.values()), read, merged, dropped)


def parse(record: Mapping[str, Any], where: str, eval_share: float = EVAL_SHARE) -> Row:
    """One row of the file as a Row; lists may also be numpy arrays.

    Args:
        record: the fields of the row.
        where: file and line, for messages.
        eval_share: without a ``split`` field, this share of all prompts is set aside for
            evaluation by the hash of the prompt alone: it never moves to train.

    Raises:
        UserError: a missing or malformed field.
    """
    messages = _messages(record, where)
    row = make_row(messages, _criteria(record, where))
    name = _plain(record.get("split"))
    if name is None:
        in_eval = int(row.prompt_id, 16) < eval_share * 16 ** len(row.prompt_id)
        return replace(row, split="eval" if in_eval else "train")
    if name not in SPLITS:
        _refuse(where, f"split={name!r}", f"legal are {', '.join(SPLITS)}")
    return replace(row, split=SPLITS[name])


def _messages(record: Mapping[str, Any], where: str) -> tuple[dict[str, str], ...]:
    form = "`prompt` is a text, or a list of chat turns {role, content} that ends with the user's"
    prompt = _plain(record.get("prompt"))
    if prompt is None:
        _refuse(where, f"no field 'prompt' (it has {', '.join(map(str, record)) or 'none'})", form)
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(turns, list) or not turns:
        _refuse(where, f"a prompt that is {_short(prompt)}", form)
    for turn in turns:
        if not isinstance(turn, Mapping) or turn.get("role") not in ROLES:
            _refuse(where, f"the turn {_short(turn)}", f"{form}; roles are {', '.join(ROLES)}")
        if not isinstance(turn.get("content"), str):
            _refuse(where, f"a turn whose content is {_short(turn.get('content'))}", form)
    if turns[-1]["role"] != "user" or not turns[-1]["content"].strip():
        _refuse(where, f"a prompt that ends with {_short(turns[-1])}", form)
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in turns)


def _criteria(record: Mapping[str, Any], where: str) -> tuple[Criterion, ...]:
    form = "`rubrics` is a list of {criterion, points}: a text and, if you like, a number"
    rubrics = _plain(_rubrics(record))
    if rubrics is None:
        return ()
    if not isinstance(rubrics, list):
        _refuse(where, f"rubrics that are {_short(rubrics)}", form)
    found = []
    for item in rubrics:
        text = item.get("criterion", item.get("text")) if isinstance(item, Mapping) else None
        if not isinstance(text, str) or not text.strip():
            _refuse(where, f"the rubric {_short(item)}", form)
        points = 1.0 if item.get("points") is None else item["points"]
        if isinstance(points, bool) or not _is_finite(points):
            _refuse(where, f"a rubric worth {_short(points)} points", form)
        found.append(Criterion(text, float(points)))
    return tuple(found)


def _rubrics(record: Mapping[str, Any]) -> Any:
    """Rubrics of the row itself, else where verl's data keep them."""
    extra = record.get("extra_info")
    inner = extra.get("reward_model") if isinstance(extra, Mapping) else None
    for holder in (record, record.get("reward_model"), inner):
        if isinstance(holder, Mapping) and holder.get("rubrics") is not None:
            return holder["rubrics"]
    return None


def _merge(first: Row, again: Row) -> Row:
    """The first row with the criteria that only the other has; eval wins over train."""
    added = tuple(item for item in again.criteria if item not in first.criteria)
    split = "eval" if "eval" in (first.split, again.split) else "train"
    return replace(first, criteria=first.criteria + added, split=split)


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(line or row, fields) of each row, with what is wrong with the file as a UserError."""
    try:
        yield from _parquet(path) if path.name.endswith(".parquet") else _jsonl(path)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        kind = "Parquet" if path.name.endswith(".parquet") else "UTF-8 JSONL"
        raise UserError(f"task.path={path} cannot be read as {kind}: {error}.") from error


def _jsonl(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    packed = path.name.endswith(".gz")
    with (gzip.open if packed else open)(path, "rt", encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                _refuse(f"{path}, line {number}", f"no JSON: {error}", "one object per line")
            if not isinstance(record, dict):
                _refuse(f"{path}, line {number}", _short(record), "one JSON object per line")
            yield f"line {number}", record


def _parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            # Where the prompt is missing, all columns are read, so that the message names them.
            columns = [name for name in USED if name in names] if "prompt" in names else names
            number = 0
            for batch in file.iter_batches(batch_size=BATCH, columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    yield f"row {number}", record
    except pa.ArrowException as error:
        raise OSError(error) from error


def _path(options: Task) -> Path:
    if options.path in (None, "", "???"):
        raise UserError(
            "task=prompts reads its prompts from a file, and task.path is not set. Type for"
            f" example task.path=prompts.jsonl (legal endings are {', '.join(ENDINGS)})."
        )
    path = Path(str(options.path)).expanduser()
    if not path.is_file():
        raise UserError(
            f"task.path={path} is not a file (looked in {Path.cwd()}). Give a {', '.join(ENDINGS)}"
            " file of prompts."
        )
    if not path.name.endswith(ENDINGS):
        raise UserError(f"task.path={path} does not end in {', '.join(ENDINGS)}.")
    return path


def _limits(options: Task) -> tuple[int | None, float]:
    unknown = sorted(options.options.keys() - OPTIONS)
    if unknown:
        raise UserError(
            f"task.options.{unknown[0]} is not known to task=prompts. Legal are"
            f" {', '.join(sorted(OPTIONS))}."
        )
    limit = options.options.get("max_prompt_chars")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise UserError(f"task.options.max_prompt_chars={limit} is no number of characters.")
    share = options.options.get("eval_share", EVAL_SHARE)
    if isinstance(share, bool) or not _is_finite(share) or not 0 <= share < 1:
        raise UserError(f"task.options.eval_share={share} is not a share: 0 <= share < 1.")
    return limit, float(share)


def _draw(row: Row, options: Task) -> bytes:
    return hashlib.blake2b(f"{options.seed} {row.prompt_id}".encode(), digest_size=8).digest()


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _plain(value: Any) -> Any:
    """Lists as lists: pandas hands Parquet's over as numpy arrays."""
    return value.tolist() if hasattr(value, "tolist") else value


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _refuse(where: str, given: str, legal: str) -> NoReturn:
    raise UserError(f"{where}: found {given}. {legal[0].upper()}{legal[1:]}.")
