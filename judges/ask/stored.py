"""What is in a store of replies: rows that can be used, counts, checks, an export and a copy."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from judges.ask.connections import open_to_read, unreadable
from judges.ask.replies import LATEST_S, is_key, legal_time, read_value
from judges.endpoint.chat_completions import Stored
from study.cell.records import arrow_type
from study.errors import UserError
from study.screen import one_line
from study.system.files import sync_files, writing

AT_ONCE = 2_000
"""Rows of an export that are held in memory."""


def count(path: Path) -> int:
    """How many rows a store has, those that cannot be used too."""
    with closing(open_to_read(path)) as connection:
        return connection.execute("SELECT count(*) FROM replies").fetchone()[0]


def stats(path: Path) -> dict[str, object]:
    """Counts of what is stored: replies, bytes, tokens, models, and the time they span."""
    models: Counter[str] = Counter()
    numbers = Counter[str]()
    first, last = LATEST_S, 0.0
    for _, data, created, value in _rows(path):
        if not isinstance(value, dict):
            numbers["unusable"] += 1
            continue
        numbers["replies"] += 1
        numbers["bytes"] += len(data)
        first = min(first, created)
        last = max(last, created if created < LATEST_S else 0.0)
        for reply in value["replies"]:
            models[reply.get("model") or "unnamed"] += 1
            numbers["requests"] += 1
            for name in ("tokens_in", "tokens_out"):
                numbers[name] += reply.get(name) or 0
    names = ("replies", "requests", "bytes", "tokens_in", "tokens_out")
    return {
        **{name: numbers[name] for name in names},
        "first": _date(first),
        "last": _date(last),
        "models": dict(models),
        "unusable": numbers["unusable"],
    }


def _date(seconds: float) -> str:
    if not 0 < seconds < LATEST_S:
        return "never"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def verify(path: Path) -> list[str]:
    """What is wrong with the file or a row of it; empty where nothing is."""
    problems: list[str] = []
    try:
        with closing(open_to_read(path)) as connection:
            lines = [line for (line,) in connection.execute("PRAGMA integrity_check")]
        problems += [f"the file: {line}" for line in lines if line != "ok"]
        for key, _, _, value in _rows(path):
            if not isinstance(value, dict):
                problems.append(f"{_shown(key)}: {value}; it counts as missing")
            elif not is_key(key):
                problems.append(f"{_shown(key)}: the key is not a SHA-256")
    except (sqlite3.DatabaseError, UserError) as error:
        problems.append(f"the file: {error}")
    return problems


def _shown(key: bytes) -> str:
    return one_line(key.decode(errors="replace"), 64)


def _rows(path: Path) -> Iterator[tuple[bytes, bytes, float, Stored | str]]:
    """Key, bytes, time and value of each row, in the order in which keys came; a text instead of a
    value says why it is unusable."""
    with closing(open_to_read(path)) as connection:
        try:
            for key, data, created in connection.execute(
                "SELECT CAST(key AS BLOB), CAST(value AS BLOB), created FROM replies ORDER BY rowid"
            ):
                value: Stored | str
                try:
                    value = read_value(data)
                except (ValueError, RecursionError) as error:
                    value = one_line(f"{type(error).__name__}: {error}")
                yield key, data, legal_time(created), value
        except sqlite3.DatabaseError as error:
            raise UserError(unreadable(path, error)) from error


EXPORTED = {
    "key": "string",
    "number": "int32",
    **dict.fromkeys(("created", "latency_s"), "float64"),
    **dict.fromkeys(("text", "reasoning", "finish_reason", "model", "asked"), "string"),
    **dict.fromkeys(("tokens_in", "tokens_cached", "tokens_out"), "int64"),
    "logprobs": "string",
}
"""Columns of an exported request -> their types."""


def export(path: Path, out: Path) -> int:
    """Write all replies to a Parquet file, one row per request, a batch at a time; returns how
    many."""
    requests = (
        {"key": _shown(key), "number": number, "created": created, "latency_s": value["latency_s"]}
        | reply
        | {name: json.dumps(reply[name]) for name in ("logprobs",) if reply.get(name) is not None}
        for key, _, created, value in _rows(path)
        if isinstance(value, dict)
        for number, reply in enumerate(value["replies"])
    )
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in EXPORTED.items()])
    row_count = 0
    with (
        writing(out) as file,
        pq.ParquetWriter(file, schema, write_page_checksum=True) as parquet,
    ):
        while rows := list(islice(requests, AT_ONCE)):
            parquet.write_table(pa.Table.from_pylist(rows, schema=schema))
            row_count += len(rows)
    return row_count


def copy(path: Path, out: Path) -> int:
    """Write the whole store, as it is now, to one file that needs no other beside it and may lie on
    any disk; returns its bytes. The store may be in use.
    Raises UserError: it cannot be read."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        temporary_path = Path(folder).absolute() / out.name
        with closing(open_to_read(path)) as connection:
            try:
                # nobody else knows the file, and network file systems may have no locks
                connection.execute("VACUUM INTO ?", [f"{temporary_path.as_uri()}?nolock=1"])
            except sqlite3.DatabaseError as error:
                raise UserError(unreadable(path, error)) from error
        temporary_path.chmod(0o600)
        sync_files([temporary_path])
        size = temporary_path.stat().st_size
        os.replace(temporary_path, out)
    sync_files([out.parent])
    return size
