"""Replies on disk, addressed by content; safe under kill -9 and among racing writers.

The store keeps what a judge said, not what it meant: reading a grade out of a reply happens on
every look-up, so a better parser re-reads and never re-asks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError

VERSION = 1
BUSY_S = 60.0
CHUNK = 500
"""Keys per query; SQLite's oldest limit on variables is 999."""


def canonical(data: Any) -> bytes:
    """JSON that is the same bytes for equal data, whatever the order of keys.

    Raises:
        ValueError: NaN or an infinity, which JSON has no word for.
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def content_key(data: Any) -> str:
    """64 hex digits of SHA-256 over the canonical JSON of ``data``."""
    return hashlib.sha256(canonical(data)).hexdigest()


class Store:
    """One SQLite file in WAL mode. The first writer of a key wins, and all readers agree.

    A connection belongs to one thread of one process: each thread opens its own, and a child
    made by fork opens new ones. NORMAL synchronisation survives kill -9; only a power cut can
    lose the last rows, and even that never corrupts the file.

    Raises:
        UserError: the file cannot be opened, is no store, or has another schema version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[tuple[int, sqlite3.Connection]] = []
        self._connection()

    def get(self, key: str) -> dict[str, Any] | None:
        """The value stored under ``key``, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The stored ones among ``keys``."""
        connection = self._connection()
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(keys), CHUNK):
            part = list(keys[start : start + CHUNK])
            marks = ",".join("?" * len(part))
            query = f"SELECT key, value FROM replies WHERE key IN ({marks})"
            found |= {key: json.loads(value) for key, value in connection.execute(query, part)}
        return found

    def put(self, key: str, value: dict[str, Any]) -> dict[str, Any]:
        """Store ``value`` unless ``key`` is taken; gives back what the store holds afterwards."""
        text = json.dumps(value, separators=(",", ":"))
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(
                "INSERT INTO replies (key, value, created) VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO NOTHING",
                (key, text, time.time()),
            )
            (winner,) = connection.execute(
                "SELECT value FROM replies WHERE key = ?", (key,)
            ).fetchone()
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        return json.loads(winner)

    def count(self) -> int:
        """How many replies are stored."""
        return self._connection().execute("SELECT count(*) FROM replies").fetchone()[0]

    def close(self) -> None:
        """Close this process's connections, of all threads; a later use opens a new one."""
        with self._lock:
            mine = [item for item in self._opened if item[0] == os.getpid()]
            self._opened = [item for item in self._opened if item[0] != os.getpid()]
        for _, connection in mine:
            connection.close()
        self._local = threading.local()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connection(self) -> sqlite3.Connection:
        held: tuple[int, sqlite3.Connection] | None = getattr(self._local, "held", None)
        if held is not None and held[0] == os.getpid():
            return held[1]
        connection = self._open()
        self._local.held = (os.getpid(), connection)
        with self._lock:
            # A parent's connection stays in this list after a fork, never used and never
            # closed here: closing it in the child would drop the parent's file locks.
            self._opened.append(self._local.held)
        return connection

    def _open(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Judges' replies are nobody else's business; the -wal file inherits this mode. Only
            # a new file is opened by hand: closing one in use would drop SQLite's own locks.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            connection = sqlite3.connect(
                self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            _to_wal(connection)
            connection.execute("PRAGMA synchronous=NORMAL")
            self._check_schema(connection)
            return connection
        except (OSError, sqlite3.Error) as error:
            if connection is not None:
                connection.close()
            raise UserError(
                f"The reply store {self.path} cannot be used ({error}). Give a path in a folder "
                "that can be written, on a local disk, to a new file or to one that this "
                "program made."
            ) from error
        except UserError:
            if connection is not None:
                connection.close()
            raise

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Again under the lock: another process may have made the table meanwhile.
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version == 0 and tables == 0:
                connection.execute(
                    "CREATE TABLE replies ("
                    "key TEXT PRIMARY KEY, value TEXT NOT NULL, created REAL NOT NULL)"
                )
                connection.execute(f"PRAGMA user_version={VERSION}")
                version = VERSION
        finally:
            connection.execute("COMMIT")
        if version != VERSION:
            raise UserError(
                f"The reply store {self.path} has schema version {version}, and this program "
                f"reads version {VERSION}. Move the file away to start a new one, or use the "
                "release that wrote it."
            )


def _to_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite skips its busy timeout for this one change, so wait by hand."""
    end = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
