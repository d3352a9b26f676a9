"""Keeps judges' replies on disk by a hash of what was asked; safe under kill -9 and many writers.

The store keeps replies, not grades: they are read at every look-up, so a better parser asks nobody
again. It also holds leases, which say who is asking for a key now (`asker.SingleFlight`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from judges.ask.connections import BUSY_S, VERSION, open_to_read, refuse_network, unreadable
from judges.endpoint.chat_completions import Stored, check_value
from study.config.schema import VerdictStore
from study.errors import UserError
from study.system import clock as host

FILE = "verdicts.db"


LATEST_S = 1e11
"""The latest time of a row that counts as one."""
LISTED = "(SELECT value FROM json_each(?))"
"""Any number of keys, given to a query as one JSON list."""
# The value as bytes: one that is not UTF-8 would fail the whole query.
SELECTED = f"SELECT key, CAST(value AS BLOB), created FROM replies WHERE key IN {LISTED}"
UPSERT = (
    "INSERT INTO replies (key, value, created) VALUES (?, ?, ?) ON CONFLICT (key)"
    " DO UPDATE SET value = excluded.value, created = excluded.created"
)
LONGEST_LEASE_S = 300.0
"""A lease that ends later than this from now is not from this clock, and does not count."""


Row = tuple[Stored, str, float]
"""A value, its JSON, and when it was stored first, in seconds since the epoch."""


def canonical(data: Any) -> bytes:
    """JSON that is the same bytes for equal data, whatever the order of keys.
    Raises ValueError: NaN or an infinity, which JSON has no word for."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def content_key(data: Any) -> str:
    """64 hex digits of SHA-256 over the canonical JSON of ``data``."""
    return hashlib.sha256(canonical(data)).hexdigest()


Accept = Callable[[Stored], bool]
"""Whether a stored value can be used; one that cannot counts as missing."""


def _any(_: Stored) -> bool:
    return True


def read_value(data: bytes) -> Stored:
    """The value in a row. Raises ValueError, RecursionError: it cannot be used; says why."""
    return check_value(json.loads(data.decode()))


def usable(data: bytes) -> Stored | None:
    """The value in a row, None where it counts as not there."""
    try:
        return read_value(data)
    except (ValueError, RecursionError):
        return None


def is_key(key: bytes) -> bool:
    """Whether a row's key is the hash of what was asked."""
    return re.fullmatch(b"[0-9a-f]{64}", key) is not None


def legal_time(created: Any) -> float:
    """When a row was stored, in seconds since the epoch; `LATEST_S` for what is no such time."""
    return created if isinstance(created, float) and 0 <= created < LATEST_S else LATEST_S


class Connections:
    """Connections by ``opener``, each opened when its thread first asks for it; a forked child
    opens new ones."""

    def __init__(self, opener: Callable[[], sqlite3.Connection]) -> None:
        self._opener = opener
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[tuple[int, sqlite3.Connection]] = []

    def mine(self) -> sqlite3.Connection:
        """The connection of this thread of this process."""
        connection_of_process: tuple[int, sqlite3.Connection] | None = getattr(
            self._local, "held", None
        )
        if connection_of_process is not None and connection_of_process[0] == os.getpid():
            return connection_of_process[1]
        connection = self._opener()
        self._local.held = (os.getpid(), connection)
        with self._lock:
            # A parent's connection stays in this list after a fork, never used and never
            # closed here: closing it in the child would drop the parent's file locks.
            self._opened.append(self._local.held)
        return connection

    def close(self) -> None:
        """Close those of this process; a later use opens a new one."""
        with self._lock:
            mine = [item for item in self._opened if item[0] == os.getpid()]
            self._opened = [item for item in self._opened if item[0] != os.getpid()]
        for _, connection in mine:
            connection.close()
        self._local = threading.local()


class Store:
    """One SQLite file in WAL mode. The first writer of a key wins, and all readers agree.

    A row that `fields.check_value` refuses counts as missing, and the next writer replaces it. Each
    thread has its own connection, and a forked child opens new ones. NORMAL synchronisation
    survives kill -9; a power cut may lose the last rows, and does not corrupt the file. Leases end
    by ``clock``, whose seconds count from the start ``boot`` of the host; those of another have
    ended.
    Raises UserError: the file cannot be opened or written, is not a store, has another schema
        version, or is damaged."""

    def __init__(
        self,
        path: str | Path,
        clock: Callable[[], float] = host.now,
        boot: str | None = None,
        beside: Sequence[Path] = (),
    ) -> None:
        self.path = Path(path)
        self.clock = clock
        self._boot = host.boot() if boot is None else boot
        refuse_network(self.path)
        self._connections = Connections(self._open)
        self._beside = [(each, Connections(partial(open_to_read, each))) for each in beside]
        self._each(Connections.mine)  # what cannot be used is said now

    def get(self, key: str) -> Stored | None:
        """The value stored under ``key``, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Sequence[str], accept: Accept = _any) -> dict[str, Stored]:
        """The values of those ``keys`` that are stored and accepted, here or in a store beside;
        those that are found there are stored here, too."""
        values = self._stored(keys, accept)
        for path, connections in self._beside:
            if missing := [key for key in keys if key not in values]:
                rows: dict[str, Row] = {}
                try:
                    cursor = connections.mine().execute(SELECTED, [json.dumps(missing)])
                    for key, data, created in cursor:
                        if (value := usable(data)) is not None and accept(value):
                            rows[key] = value, data.decode(), legal_time(created)
                except sqlite3.DatabaseError as error:
                    raise UserError(unreadable(path, error)) from error
                values |= self._put(rows, accept) if rows else {}
        return values

    def _stored(self, keys: Sequence[str], accept: Accept) -> dict[str, Stored]:
        values: dict[str, Stored] = {}
        with self._explain_errors():
            for key, data, _ in self._connection().execute(SELECTED, [json.dumps(keys)]):
                if (value := usable(data)) is not None and accept(value):
                    values[key] = value
        return values

    def put(self, key: str, value: Stored) -> Stored:
        """Store ``value`` unless ``key`` is taken; returns what the store holds then."""
        return self.put_many({key: value})[key]

    def put_many(self, values: Mapping[str, Stored], accept: Accept = _any) -> dict[str, Stored]:
        """``put`` for several at once, all or none of them; their leases end."""
        now = time.time()
        return self._put({key: (v, _text(v), now) for key, v in values.items()}, accept)

    def _put(self, rows: Mapping[str, Row], accept: Accept) -> dict[str, Stored]:
        with self.transaction() as connection:
            stored = self._stored([*rows], accept)
            new = [(key, *row[1:]) for key, row in rows.items() if key not in stored]
            connection.executemany(UPSERT, new)
            connection.execute(f"DELETE FROM leases WHERE key IN {LISTED}", [json.dumps([*rows])])
            return {key: row[0] for key, row in rows.items()} | stored

    def lease(
        self, keys: Sequence[str], owner: str, seconds: float, accept: Accept = _any
    ) -> tuple[set[str], dict[str, Stored]]:
        """Lease the keys that are not stored and that nobody else has leased: those that the owner
        has to ask for, and the values that are stored already."""
        now = self.clock()
        if self._beside:
            self.get_many(keys, accept)
        with self.transaction() as connection:
            stored = self._stored(keys, accept)
            rows = connection.execute(
                "INSERT INTO leases (key, owner, expires)"
                " SELECT value, ?, ? FROM json_each(?) WHERE true ON CONFLICT (key)"
                " DO UPDATE SET owner = excluded.owner, expires = excluded.expires, failure = NULL"
                " WHERE NOT (leases.expires > ? AND leases.expires <= ? AND leases.owner LIKE ?)"
                " RETURNING key",
                [
                    *(self._mine(owner), now + seconds),
                    json.dumps([key for key in keys if key not in stored]),
                    *(now, now + LONGEST_LEASE_S, self._mine("%")),
                ],
            ).fetchall()
        return {key for (key,) in rows}, stored

    def renew(self, keys: Sequence[str], owner: str, seconds: float) -> None:
        """Extend the owner's leases to so long from now."""
        with self.transaction() as connection:
            connection.execute(
                f"UPDATE leases SET expires = ? WHERE owner = ? AND key IN {LISTED}",
                [self.clock() + seconds, self._mine(owner), json.dumps(keys)],
            )

    def release(self, failures: Mapping[str, Stored | None], owner: str) -> None:
        """End leases without a reply; a failure is told to those who wait."""
        now = self.clock()
        rows = [
            (now, None if failure is None else _text(failure), key, self._mine(owner))
            for key, failure in failures.items()
        ]
        with self.transaction() as connection:
            connection.executemany(
                "UPDATE leases SET expires = ?, failure = ? WHERE key = ? AND owner = ?", rows
            )

    def failed(self, keys: Sequence[str], since: float) -> dict[str, Stored]:
        """The failures of keys since a time of `clock`."""
        query = (
            f"SELECT key, failure FROM leases WHERE key IN {LISTED}"
            " AND failure IS NOT NULL AND expires >= ? AND expires <= ? AND owner LIKE ?"
        )
        values = [json.dumps(keys), since, self.clock(), self._mine("%")]
        with self._explain_errors():
            rows = self._connection().execute(query, values).fetchall()
        return {key: json.loads(failure) for key, failure in rows}

    def _mine(self, owner: str) -> str:
        return f"{self._boot}/{owner}"

    def _connection(self) -> sqlite3.Connection:
        return self._connections.mine()

    def count(self) -> int:
        """How many replies are stored."""
        return self._connection().execute("SELECT count(*) FROM replies").fetchone()[0]

    def close(self) -> None:
        """Close this process's connections; a later use opens a new one."""
        self._each(Connections.close)

    def _each(self, act: Callable[[Connections], Any]) -> None:
        for connections in (*(beside for _, beside in self._beside), self._connections):
            act(connections)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """A transaction that is committed as the block ends, and undone where it raises."""
        with self._explain_errors(), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    @contextlib.contextmanager
    def _explain_errors(self) -> Generator[None]:
        """Make SQLite's errors ones that say what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise UserError(
                f"The reply store {self.path} can no longer be read or written ({error}). Its"
                " replies are safe. Check whether its disk is full or read-only, free space, and"
                " rerun the command."
            ) from error
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"The reply store {self.path} is damaged ({error}). Check what survives with "
                f"`python -m judges.store verify db={self.path}`, move it away together with its"
                " -wal and -shm files, and rerun the command, which asks for the lost replies"
                " again."
            ) from error

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Judges' replies are nobody else's business; the -wal file inherits this mode. Only
            # a new file is opened here: closing one in use would drop SQLite's own locks.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            with contextlib.ExitStack() as undo:
                connection = sqlite3.connect(
                    self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
                )
                undo.callback(connection.close)
                _to_wal(connection)
                connection.execute("PRAGMA synchronous=NORMAL")
                self._check_schema(connection)
                undo.pop_all()
                return connection
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"The reply store {self.path} cannot be used ({error}). Give the path of a new"
                " file, or of one that this program made, in a writable folder on a local disk."
            ) from error

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == VERSION:
            return
        with connection:  # a commit, or nothing of it
            connection.execute("BEGIN IMMEDIATE")
            # Again under the lock: another process may have made the table meanwhile.
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version == 0 and tables == 0:
                connection.execute(
                    "CREATE TABLE replies ("
                    "key TEXT PRIMARY KEY, value TEXT NOT NULL, created REAL NOT NULL)"
                )
                version = 1
            if version == 1:
                connection.execute(
                    "CREATE TABLE leases (key TEXT PRIMARY KEY, owner TEXT NOT NULL,"
                    " expires REAL NOT NULL, failure TEXT) WITHOUT ROWID"
                )
                version = VERSION
                connection.execute(f"PRAGMA user_version={VERSION}")
        if version != VERSION:
            raise UserError(
                f"The reply store {self.path} has schema version {version}, but this program reads"
                f" version {VERSION}. Move the file away to start a new one, or use the release"
                " that wrote it."
            )


def _text(value: Stored) -> str:
    return json.dumps(value, separators=(",", ":"))


def _to_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL, waiting here: SQLite skips its busy timeout for this one change."""
    end = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def open_store(runs_dir: Path, settings: VerdictStore | None = None) -> Store:
    """The store of a folder of runs, where ``settings`` say that its replies are kept.
    Raises UserError: as `place` and `Store` do."""
    settings = settings or VerdictStore()
    return Store(place(runs_dir, settings), beside=merged_stores(settings))


def place(runs_dir: Path, settings: VerdictStore) -> Path:
    """The file of the store on this node.
    Raises UserError: its folder is not absolute, or on a network file system."""
    path = _expanded("store.dir", settings.dir) if settings.dir else runs_dir
    refuse_network(path / FILE)
    return path / FILE


def merged_stores(settings: VerdictStore) -> list[Path]:
    """The files of ``store.beside``. Raises UserError: one of them is not absolute."""
    return [_expanded("store.beside", path) for path in settings.beside]


def _expanded(key: str, text: str) -> Path:
    path = Path(os.path.expandvars(text)).expanduser()
    if not path.is_absolute() or "$" in str(path):
        raise UserError(
            f"{key}={text} is {path} here, but must be an absolute path on every node; each $NAME"
            " in it must be set there. Type for example"
            f" {key}=/var/tmp/judgedrift{'/ALL.db' if key.endswith('beside') else ''}"
        )
    return path
