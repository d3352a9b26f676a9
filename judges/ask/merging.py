"""Makes one store of several: by content key, the same whatever their order and however often.

Every key keeps its first usable reply: the one that was stored earliest, of two at the same time
the one whose bytes come first. What is there already is not written again, so a merge that was
killed goes on by the same command.
"""

from __future__ import annotations

import heapq
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from judges.ask.connections import open_to_read, unreadable
from judges.ask.replies import LISTED, UPSERT, is_key, legal_time, usable
from study.errors import UserError

PAGE = 1_000
"""Rows of one look into a source, so that no look keeps its writers waiting."""
BATCH_KEYS, BATCH_BYTES = 2_000, 8 << 20
"""A transaction ends at the first of them."""

Reply = tuple[bytes, float, bytes, int]
"""Key, time, value, and the number of its source; -1 is the store itself."""


@dataclass
class Merged:
    """What a merge did, in keys; ``unusable`` counts rows, by source."""

    new: int = 0
    replaced: int = 0
    """Keys whose reply gave way to an earlier one, or could not be used."""
    kept: int = 0
    unusable: dict[Path, int] = field(default_factory=dict)


def merge(
    sources: Sequence[Path], transaction: Callable[[], AbstractContextManager[sqlite3.Connection]]
) -> Merged:
    """Put the replies of all ``sources`` into the store that ``transaction`` writes to, in
    transactions of `BATCH_KEYS`. They may be in use; what is written meanwhile may come or not.
    Raises UserError: a source cannot be read. What was merged before that stays."""
    merged = Merged(unusable=dict.fromkeys(sources, 0))
    with ExitStack() as stack:
        streams = []
        for number, path in enumerate(sources):
            connection = open_to_read(path)
            stack.callback(connection.close)
            streams.append(_replies(path, connection, number))
            merged.unusable[path] = _never_keys(path, connection)
        batch: list[list[Reply]] = []
        size = 0
        for _, same_key in groupby(heapq.merge(*streams), key=lambda reply: reply[0]):
            batch.append([*same_key])
            size += sum(len(value) for _, _, value, _ in batch[-1])
            if len(batch) >= BATCH_KEYS or size >= BATCH_BYTES:
                _write(batch, transaction, sources, merged)
                batch, size = [], 0
        _write(batch, transaction, sources, merged)
    return merged


def _never_keys(path: Path, connection: sqlite3.Connection) -> int:
    """Rows that `_replies` passes over: no hash is empty, begins with a ``g`` or is no text."""
    query = "SELECT count(*) FROM replies WHERE key >= 'g' OR key = ''"
    try:
        return connection.execute(query).fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise UserError(unreadable(path, error)) from error


def _replies(path: Path, connection: sqlite3.Connection, number: int) -> Iterator[Reply]:
    """The rows of a source by key, a page at a time and one in memory."""
    query = (
        "SELECT CAST(key AS BLOB), CAST(value AS BLOB), created FROM replies"
        " WHERE key > CAST(? AS TEXT) AND key < 'g' ORDER BY key LIMIT ?"
    )
    last, row_count = b"", PAGE
    while row_count == PAGE:
        row_count = 0
        try:
            for key, value, created in connection.execute(query, [last, PAGE]):
                yield key, legal_time(created), value, number
                last, row_count = key, row_count + 1
        except sqlite3.DatabaseError as error:
            raise UserError(unreadable(path, error)) from error


def _write(
    batch: Sequence[Sequence[Reply]],
    transaction: Callable[[], AbstractContextManager[sqlite3.Connection]],
    sources: Sequence[Path],
    merged: Merged,
) -> None:
    """Merge the replies of some keys, all or none of them."""
    keys = [same_key[0][0] for same_key in batch if is_key(same_key[0][0])]
    keys_json = json.dumps([key.decode() for key in keys])
    query = (
        f"SELECT CAST(key AS BLOB), CAST(value AS BLOB), created FROM replies WHERE key IN {LISTED}"
    )
    rows: list[tuple[str, str, float]] = []
    with transaction() as connection:
        there = {
            key: (key, legal_time(created), value, -1)
            for key, value, created in connection.execute(query, [keys_json])
        }
        for same_key in batch:
            key = same_key[0][0]
            present = there.get(key)
            best = _first(key, same_key, present, sources, merged)
            if best is None or best == present:
                merged.kept += best is not None
                continue
            rows.append((key.decode(), best[2].decode(), best[1]))
            merged.new += present is None
            merged.replaced += present is not None
        connection.executemany(UPSERT, rows)


def _first(
    key: bytes,
    replies: Sequence[Reply],
    present: Reply | None,
    sources: Sequence[Path],
    merged: Merged,
) -> Reply | None:
    """The earliest reply of one key that can be used."""
    every = sorted(
        [*replies, present] if present is not None else replies, key=lambda reply: reply[1:]
    )
    if present is not None and all(value == present[2] for _, _, value, _ in replies):
        # what the store holds was read when it came; only the time can be another
        return present if present[1] <= every[0][1] else every[0]
    best = None
    for reply in every:
        if is_key(key) and usable(reply[2]) is not None:
            best = best or reply
        elif reply[3] >= 0:
            merged.unusable[sources[reply[3]]] += 1
    return best
