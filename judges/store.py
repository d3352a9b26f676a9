"""Keeps judges' replies on disk by a hash of what was asked; safe under kill -9 and many writers.

The store keeps replies, not grades: they are read at every look-up, so a better parser asks nobody
again. It also holds leases, which say who is asking for a key now (`judges.singleflight`).
``python -m judges.store stats`` counts what is stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judges.endpoint.fields import check_value, one_line
from study import clock as host
from study.cli import command, option, word
from study.errors import UserError
from study.records import write_part

VERSION = 2
BUSY_S = 60.0
LONGEST_LEASE_S = 300.0
"""A lease that ends later than this from now is not from this clock, and does not count."""
LATEST_S = 1e11
"""The latest time of a row that is shown."""
LISTED = "(SELECT value FROM json_each(?))"
"""Any number of keys, given to a query as one JSON list."""


def canonical(data: Any) -> bytes:
    """JSON that is the same bytes for equal data, whatever the order of keys.
    Raises ValueError: NaN or an infinity, which JSON has no word for."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def content_key(data: Any) -> str:
    """64 hex digits of SHA-256 over the canonical JSON of ``data``."""
    return hashlib.sha256(canonical(data)).hexdigest()


Accept = Callable[[dict[str, Any]], bool]
"""Whether a stored value can be used; one that cannot counts as missing."""


def _any(_: dict[str, Any]) -> bool:
    return True


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
    ) -> None:
        self.path = Path(path)
        self.clock = clock
        self._boot = host.boot() if boot is None else boot
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[tuple[int, sqlite3.Connection]] = []
        self._connection()

    def get(self, key: str) -> dict[str, Any] | None:
        """The value stored under ``key``, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Sequence[str], accept: Accept = _any) -> dict[str, dict[str, Any]]:
        """The values of those ``keys`` that are stored and accepted."""
        values: dict[str, dict[str, Any]] = {}
        # As bytes: a value that is not UTF-8 would fail the whole query.
        query = f"SELECT key, CAST(value AS BLOB) FROM replies WHERE key IN {LISTED}"
        with self._told():
            for key, data in self._connection().execute(query, [json.dumps(keys)]):
                with contextlib.suppress(ValueError, RecursionError):
                    value = read_value(data)
                    if accept(value):
                        values[key] = value
        return values

    def put(self, key: str, value: dict[str, Any]) -> dict[str, Any]:
        """Store ``value`` unless ``key`` is taken; returns what the store holds then."""
        return self.put_many({key: value})[key]

    def put_many(
        self, values: Mapping[str, dict[str, Any]], accept: Accept = _any
    ) -> dict[str, dict[str, Any]]:
        """``put`` for several at once, all or none of them; their leases end."""
        now = time.time()
        texts = {key: _text(value) for key, value in values.items()}
        with self._transaction() as connection:
            stored = self.get_many(list(values), accept)
            connection.executemany(
                "INSERT INTO replies (key, value, created) VALUES (?, ?, ?) ON CONFLICT (key)"
                " DO UPDATE SET value = excluded.value, created = excluded.created",
                [(key, text, now) for key, text in texts.items() if key not in stored],
            )
            connection.execute(f"DELETE FROM leases WHERE key IN {LISTED}", [json.dumps([*values])])
            return {**values, **stored}

    def lease(
        self, keys: Sequence[str], owner: str, seconds: float, accept: Accept = _any
    ) -> tuple[set[str], dict[str, dict[str, Any]]]:
        """Lease the keys that are not stored and that nobody else has leased: those that the owner
        has to ask for, and the values that are stored already."""
        now = self.clock()
        with self._transaction() as connection:
            stored = self.get_many(keys, accept)
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
        with self._transaction() as connection:
            connection.execute(
                f"UPDATE leases SET expires = ? WHERE owner = ? AND key IN {LISTED}",
                [self.clock() + seconds, self._mine(owner), json.dumps(keys)],
            )

    def release(self, failures: Mapping[str, dict[str, Any] | None], owner: str) -> None:
        """End leases without a reply; a failure is told to those who wait."""
        now = self.clock()
        rows = [
            (now, None if failure is None else _text(failure), key, self._mine(owner))
            for key, failure in failures.items()
        ]
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE leases SET expires = ?, failure = ? WHERE key = ? AND owner = ?", rows
            )

    def failed(self, keys: Sequence[str], since: float) -> dict[str, dict[str, Any]]:
        """The failures of keys since a time of `clock`."""
        query = (
            f"SELECT key, failure FROM leases WHERE key IN {LISTED}"
            " AND failure IS NOT NULL AND expires >= ? AND expires <= ? AND owner LIKE ?"
        )
        values = [json.dumps(keys), since, self.clock(), self._mine("%")]
        with self._told():
            rows = self._connection().execute(query, values).fetchall()
        return {key: json.loads(failure) for key, failure in rows}

    def _mine(self, owner: str) -> str:
        return f"{self._boot}/{owner}"

    def count(self) -> int:
        """How many replies are stored."""
        return self._connection().execute("SELECT count(*) FROM replies").fetchone()[0]

    def close(self) -> None:
        """Close this process's connections; a later use opens a new one."""
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

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._told():
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk has rolled it back already
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _told(self) -> Generator[None]:
        """Make SQLite's errors ones that say what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise UserError(
                f"The reply store {self.path} cannot be read or written any more ({error}). What "
                "it holds is safe. Look whether its disk is full or read-only, free space, and run "
                "the same command again."
            ) from error
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"The reply store {self.path} is damaged ({error}). See what of it is left with "
                f"`python -m judges.store verify db={self.path}`, move it away together with its "
                "-wal and -shm files, and run the same command again; its replies are then asked "
                "for anew."
            ) from error

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
                f"The reply store {self.path} cannot be used ({error}). Give a path in a folder "
                "that can be written, on a local disk, to a new file or to one that this "
                "program made."
            ) from error

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
                version = 1
            if version == 1:
                connection.execute(
                    "CREATE TABLE leases (key TEXT PRIMARY KEY, owner TEXT NOT NULL,"
                    " expires REAL NOT NULL, failure TEXT) WITHOUT ROWID"
                )
                version = VERSION
                connection.execute(f"PRAGMA user_version={VERSION}")
        finally:
            connection.execute("COMMIT")
        if version != VERSION:
            raise UserError(
                f"The reply store {self.path} has schema version {version}, and this program "
                f"reads version {VERSION}. Move the file away to start a new one, or use the "
                "release that wrote it."
            )


def read_value(data: bytes) -> dict[str, Any]:
    """The value in a row. Raises ValueError, RecursionError: it cannot be used; says why."""
    value = json.loads(data.decode())
    check_value(value)
    return value


def _text(value: dict[str, Any]) -> str:
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


def stats(store: Store) -> dict[str, Any]:
    """Counts of what is stored: replies, bytes, tokens, models, and the time they span."""
    models: Counter[str] = Counter()
    numbers = Counter[str]()
    times = []
    for _, data, created, value in _rows(store):
        if not isinstance(value, dict):
            numbers["unusable"] += 1
            continue
        times.append(created)
        numbers["bytes"] += len(data)
        for reply in value["replies"]:
            models[reply.get("model") or "unnamed"] += 1
            numbers["requests"] += 1
            for name in ("tokens_in", "tokens_out"):
                numbers[name] += reply.get(name) or 0
    first, last = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "never"
        for seconds in (min(times, default=0.0), max(times, default=0.0))
    )
    return {
        "replies": len(times),
        **{name: numbers[name] for name in ("requests", "bytes", "tokens_in", "tokens_out")},
        "first": first,
        "last": last,
        "models": dict(models),
        "unusable": numbers["unusable"],
    }


def verify(store: Store) -> list[str]:
    """What is wrong with the file or a row of it; empty where nothing is."""
    problems: list[str] = []
    try:
        lines = [line for (line,) in store._connection().execute("PRAGMA integrity_check")]
        problems += [f"the file: {line}" for line in lines if line != "ok"]
        for key, _, _, value in _rows(store):
            if not isinstance(value, dict):
                problems.append(f"{key}: {value}; it counts as not there")
            elif not re.fullmatch("[0-9a-f]{64}", key):
                problems.append(f"{key}: the key is not a SHA-256")
    except sqlite3.DatabaseError as error:
        problems.append(f"the file: {error}")
    return problems


def _rows(store: Store) -> Iterator[tuple[str, bytes, float, dict[str, Any] | str]]:
    """Key, bytes, time and value of each row; a text instead of a value says why it is unusable."""
    rows = store._connection().execute(
        "SELECT CAST(key AS BLOB), CAST(value AS BLOB), created FROM replies ORDER BY created, key"
    )
    for key, data, created in rows:
        value: dict[str, Any] | str
        try:
            value = read_value(data)
        except (ValueError, RecursionError) as error:
            value = one_line(f"{type(error).__name__}: {error}")
        when = created if isinstance(created, float) and 0 <= created < LATEST_S else 0.0
        yield one_line(key.decode(errors="replace"), 64), data, when, value


EXPORTED = {
    "key": "string",
    "number": "int32",
    **dict.fromkeys(("created", "latency_s"), "float64"),
    **dict.fromkeys(("text", "reasoning", "finish_reason", "model", "asked"), "string"),
    **dict.fromkeys(("tokens_in", "tokens_cached", "tokens_out"), "int64"),
    "logprobs": "string",
}
"""Columns of an exported request -> their types."""


def export(store: Store, out: Path) -> int:
    """Write all replies to a Parquet file, one row per request; returns how many."""
    rows = [
        {"key": key, "number": number, "created": created, "latency_s": value["latency_s"]}
        | reply
        | {name: json.dumps(reply[name]) for name in ("logprobs",) if reply.get(name) is not None}
        for key, _, created, value in _rows(store)
        if isinstance(value, dict)
        for number, reply in enumerate(value["replies"])
    ]
    write_part(out, rows, EXPORTED)
    return len(rows)


@dataclass(frozen=True)
class Options:
    what: str = word("count what is stored, check it, or export it", "stats", "verify", "export")
    db: Path = option("the store, verdicts.db in a folder of runs", Path("runs/verdicts.db"))
    out: Path = option(
        "Parquet file, one row per request", Path("replies.parquet"), only=("export",)
    )


@command("judges.store stats db=runs/verdicts.db", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0, 1 where ``verify`` found something, 2 for a user's error."""
    if not options.db.is_file():
        raise UserError(f"There is no reply store {options.db}; name one: db=RUNS_DIR/verdicts.db")
    with Store(options.db) as store:
        if options.what == "stats":
            for key, value in stats(store).items():
                print(f"{key:11} {value}")
            return 0
        if options.what == "export":
            print(f"{export(store, options.out)} requests written to {options.out}")
            return 0
        wrong = verify(store)
        print("\n".join(wrong) if wrong else f"{store.count()} replies, all sound")
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
