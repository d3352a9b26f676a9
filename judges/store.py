"""Replies on disk, addressed by content; safe under kill -9 and among racing writers.

The store keeps what a judge said, not what it meant: reading a grade out of a reply happens on
every look-up, so a better parser re-reads and never re-asks. Beside the replies lie leases: who is
asking for which key right now (`judges.flights`). ``python -m judges.store stats|verify|export``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from judges.verdict import Reply

VERSION = 2
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
        for part, marks in _parts(keys):
            query = f"SELECT key, value FROM replies WHERE key IN ({marks})"
            found |= {key: json.loads(value) for key, value in connection.execute(query, part)}
        return found

    def put(self, key: str, value: dict[str, Any]) -> dict[str, Any]:
        """Store ``value`` unless ``key`` is taken; gives back what the store holds afterwards."""
        return self.put_many({key: value})[key]

    def put_many(self, values: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """``put`` for several at once, all or none of them; their leases end."""
        now = time.time()
        texts = {key: _text(value) for key, value in values.items()}
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO replies (key, value, created) VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO NOTHING",
                [(key, text, now) for key, text in texts.items()],
            )
            connection.executemany("DELETE FROM leases WHERE key = ?", [(key,) for key in values])
            return self.get_many(list(values))

    def lease(
        self, keys: Sequence[str], owner: str, seconds: float
    ) -> tuple[set[str], dict[str, dict[str, Any]]]:
        """Take the keys that nobody else is asking for, for so long.

        Returns:
            The keys that are now the owner's to ask for, and the replies that are there already.
        """
        now = time.time()
        granted = set()
        with self._transaction() as connection:
            stored = self.get_many(keys)
            for key in keys:
                if key in stored:
                    continue
                row = connection.execute(
                    "INSERT INTO leases (key, owner, expires) VALUES (?, ?, ?) ON CONFLICT (key)"
                    " DO UPDATE SET owner = excluded.owner, expires = excluded.expires,"
                    " failure = NULL WHERE leases.expires <= ? RETURNING key",
                    (key, owner, now + seconds, now),
                ).fetchall()
                if row:
                    granted.add(key)
        return granted, stored

    def renew(self, keys: Sequence[str], owner: str, seconds: float) -> None:
        """Keep leases that are still the owner's for so long from now."""
        expires = time.time() + seconds
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE leases SET expires = ? WHERE key = ? AND owner = ?",
                [(expires, key, owner) for key in keys],
            )

    def release(self, failures: Mapping[str, dict[str, Any] | None], owner: str) -> None:
        """Give leases back without a reply: with how it failed, for those who wait for it."""
        now = time.time()
        rows = [
            (now, None if failure is None else _text(failure), key, owner)
            for key, failure in failures.items()
        ]
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE leases SET expires = ?, failure = ? WHERE key = ? AND owner = ?", rows
            )

    def failed(self, keys: Sequence[str], since: float) -> dict[str, dict[str, Any]]:
        """How asking for the keys has failed after ``since``, where it has."""
        found: dict[str, dict[str, Any]] = {}
        for part, marks in _parts(keys):
            query = (
                f"SELECT key, failure FROM leases WHERE key IN ({marks})"
                " AND failure IS NOT NULL AND expires >= ?"
            )
            rows = self._connection().execute(query, [*part, since])
            found |= {key: json.loads(failure) for key, failure in rows}
        return found

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

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

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


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _parts(keys: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """The keys in parts that fit a query, and the marks that stand for them."""
    for start in range(0, len(keys), CHUNK):
        part = list(keys[start : start + CHUNK])
        yield part, ",".join("?" * len(part))


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


def stats(store: Store) -> dict[str, Any]:
    """What the store holds, in numbers: replies, bytes, tokens, models and the time they span."""
    rows = store._connection().execute("SELECT value, created FROM replies")
    models: Counter[str] = Counter()
    numbers = Counter[str]()
    times = []
    for text, created in rows:
        times.append(created)
        value = json.loads(text)
        numbers["bytes"] += len(text)
        for reply in value["replies"]:
            models[reply.get("model") or "unnamed"] += 1
            numbers["requests"] += 1
            for name in ("tokens_in", "tokens_out"):
                numbers[name] += reply.get(name) or 0
    return {
        "replies": len(times),
        **{name: numbers[name] for name in ("requests", "bytes", "tokens_in", "tokens_out")},
        "first": _when(min(times, default=0.0)),
        "last": _when(max(times, default=0.0)),
        "models": dict(models),
    }


def verify(store: Store) -> list[str]:
    """What is wrong with the file or a row of it; nothing where all is well."""
    connection = store._connection()
    found: list[str] = []
    try:
        said = [line for (line,) in connection.execute("PRAGMA integrity_check")]
        found += [f"the file: {line}" for line in said if line != "ok"]
        for key, text in connection.execute("SELECT key, value FROM replies"):
            found += _unsound(key, text)
    except sqlite3.DatabaseError as error:
        found.append(f"the file: {error}")
    return found


def _unsound(key: str, text: str) -> list[str]:
    try:
        value = json.loads(text)
        [Reply(**reply) for reply in value["replies"]]
        int(value["attempts"]), float(value["latency_s"])
    except (ValueError, TypeError, KeyError) as error:
        return [f"{key}: {type(error).__name__}: {error}"]
    named = len(key) == 64 and not set(key) - set("0123456789abcdef")
    return [] if named else [f"{key}: the key is no SHA-256"]


def export(store: Store, out: Path) -> int:
    """Write all replies to a Parquet file, one row per request, and give back how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for key, text, created in store._connection().execute(
        "SELECT key, value, created FROM replies ORDER BY created, key"
    ):
        value = json.loads(text)
        for number, reply in enumerate(value["replies"]):
            logprobs = reply.pop("logprobs", None)
            rows.append(
                {
                    "key": key,
                    "number": number,
                    "created": created,
                    "latency_s": value["latency_s"],
                    **reply,
                    "logprobs": None if logprobs is None else json.dumps(logprobs),
                }
            )
    kinds = {
        "key": pa.string(), "number": pa.int32(), "created": pa.float64(),
        "latency_s": pa.float64(), "text": pa.string(), "reasoning": pa.string(),
        "finish_reason": pa.string(), "model": pa.string(), "asked": pa.string(),
        "tokens_in": pa.int64(), "tokens_cached": pa.int64(), "tokens_out": pa.int64(),
        "logprobs": pa.string(),
    }  # fmt: skip
    table = pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))
    part = out.with_name(f".{out.name}.part")
    pq.write_table(table, part)
    part.replace(out)
    return len(rows)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "never"


USAGE = "python -m judges.store stats|verify|export [db=runs/verdicts.db] [out=replies.parquet]"


def main(arguments: Sequence[str]) -> int:
    """Command line. Exit codes: 0, 1 where ``verify`` found something, 2 for a user's error."""
    given = dict(argument.partition("=")[::2] for argument in arguments[1:])
    try:
        if not arguments or arguments[0] not in ("stats", "verify", "export"):
            raise UserError(f"judges.store needs to know what to do. Type {USAGE}")
        if unknown := set(given) - {"db", "out"}:
            raise UserError(f"judges.store does not know {min(unknown)!r}. Type {USAGE}")
        path = Path(given.get("db", "runs/verdicts.db"))
        if not path.is_file():
            raise UserError(f"There is no reply store {path}; name one: db=RUNS_DIR/verdicts.db")
        with Store(path) as store:
            return _command(arguments[0], store, Path(given.get("out", "replies.parquet")))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def _command(name: str, store: Store, out: Path) -> int:
    if name == "stats":
        for key, value in stats(store).items():
            print(f"{key:11} {value}")
        return 0
    if name == "export":
        print(f"{export(store, out)} requests written to {out}")
        return 0
    wrong = verify(store)
    print("\n".join(wrong) if wrong else f"{store.count()} replies, all sound")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
