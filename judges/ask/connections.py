"""Opens stores of replies: one connection for each thread of each process, and read-only ones."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from study.errors import UserError
from study.system.mounts import network_kind

VERSION = 2
READABLE = (1, VERSION)
BUSY_S = 60.0


def refuse_network(path: Path) -> None:
    """Raises UserError: a store is to be written where several hosts could."""
    if kind := network_kind(path):
        raise UserError(
            f"The reply store {path} would be on a network file system ({kind}), where SQLite's"
            " write-ahead log is not safe, because it needs one host. Name a folder on a local"
            " disk, with the same path on every node. For a sweep, type"
            " store.dir=/var/tmp/judgedrift; for a command that only reads the store, runs_dir=."
            " Each node then has its own file; python -m judges.store merge from=A.db,B.db"
            " db=/var/tmp/ALL.db merges them, and python -m judges.store copy copies the result"
            " to a shared disk."
        )


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a store that others may be writing, without ever changing it. On a network file system,
    and in a folder that cannot be written, it is read as a file that nobody changes.
    Raises UserError: no file, no store, another version, or one whose last rows are in a ``-wal``
        file that cannot be read here."""
    if not path.is_file():
        raise UserError(f"There is no reply store {path}. Name one, such as RUNS_DIR/verdicts.db.")
    wal = path.with_name(f"{path.name}-wal")
    unfinished = wal.is_file() and wal.stat().st_size > 0
    kind = network_kind(path)
    if kind and unfinished:
        raise UserError(
            f"The reply store {path} is on a network file system ({kind}); its last rows are in"
            f" {wal.name}, which only the host that writes it can read. On that host, type: python"
            f" -m judges.store copy db={path} out=WHOLE.db, then name that file."
        )
    modes = ["immutable=1"] if kind else ["mode=ro"] + ["immutable=1"] * (not unfinished)
    for mode in modes:
        connection = None
        try:
            address = f"{path.absolute().as_uri()}?{mode}"
            connection = sqlite3.connect(
                address, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in READABLE:
                raise sqlite3.DatabaseError(f"it has schema version {version}")
            connection.execute("SELECT key, value, created FROM replies LIMIT 0")
            return connection
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.OperationalError) and mode != modes[-1]:
                continue
            raise UserError(unreadable(path, error)) from error
    raise AssertionError("a mode was tried")


def unreadable(path: Path, error: BaseException) -> str:
    """What to do about a store that cannot be read."""
    return (
        f"The reply store {path} cannot be read ({error}): it is damaged, or not a store of this"
        " version. A copy of a store in use lacks its -wal file: copy it again, on its host, with"
        f" python -m judges.store copy db=VERDICTS.db out={path}. Otherwise leave it out."
    )
