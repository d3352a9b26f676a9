"""Verdict stores of 8 processes: written at once, merged into one, read back, killed half way.

    python -m benchmarks.judges.store_merge [rows=1000000] [folder=/tmp] [again=true]

Each process writes its share of ``rows`` into a store of its own; one key in a hundred is written
by its neighbour too, with another reply. Before any rate is printed, the merged store is compared
with what SQLite itself makes of the eight by a window function: digests over keys, replies and
times in the order of keys.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.memory import in_mib, peak_mib
from judges.ask.merging import merge
from judges.ask.replies import Store, content_key
from judges.ask.stored import export

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 8
BATCH = 64
SHARED = 100
"""One key in so many is written by two processes."""


def value(key: str, by: int) -> dict[str, Any]:
    """A reply of about 350 bytes."""
    reply = {"text": f"{by}: {key * 2}", "tokens_in": 900, "tokens_out": 12, "model": "judge"}
    return {"replies": [reply], "attempts": 1, "latency_s": 0.5}


def keys_of(number: int, rows: int) -> Iterable[str]:
    """Keys that a process writes, some of them its neighbour's."""
    for place in range(rows):
        owner = (number + 1) % PROCESSES if place % SHARED == 0 else number
        yield content_key([owner, place + (place % SHARED == 0)])


def batches(number: int, rows: int) -> Iterable[list[str]]:
    batch: list[str] = []
    for key in keys_of(number, rows):
        batch.append(key)
        if len(batch) == BATCH:
            yield batch
            batch = []
    yield batch


def write(folder: Path, number: int, rows: int) -> None:
    with Store(folder / f"{number}.db") as store:
        for batch in batches(number, rows):
            store.put_many({key: value(key, number) for key in batch})


def read(folder: Path, number: int, rows: int) -> None:
    """Look for what a process wrote; all of it is there."""
    with Store(folder / "all.db") as store:
        for batch in batches(number, rows):
            assert len(store.get_many(batch)) == len(set(batch))


def merge_all(folder: Path, *_: int) -> None:
    with Store(folder / "all.db") as store:
        merge([folder / f"{number}.db" for number in range(PROCESSES)], store.transaction)


def export_all(folder: Path, *_: int) -> None:
    export(folder / "all.db", folder / "all.parquet")


WORK = {"write": write, "read": read, "merge": merge_all, "export": export_all}


def started(what: str, folder: Path, number: int = 0, rows: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "worker", what, str(folder), str(number), str(rows)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def costs_of(processes: list[subprocess.Popen[str]]) -> tuple[float, float, float | None]:
    """Wall seconds, CPU seconds of all and the largest peak of memory, in MiB, if it is known."""
    lines = [json.loads(process.communicate()[0]) for process in processes]
    assert all(process.returncode == 0 for process in processes)
    begun, ended, cpu, memory = zip(*lines, strict=True)
    return max(ended) - min(begun), sum(cpu), None if None in memory else max(memory)


def digest(rows: Iterable[tuple[str, bytes, float]]) -> str:
    hashed = hashlib.sha256()
    for row in rows:
        hashed.update(repr(row).encode())
    return hashed.hexdigest()


def wanted(folder: Path) -> tuple[str, int]:
    """Digest of the union of the eight stores, by SQLite, and how many keys it has."""
    with contextlib.closing(sqlite3.connect(folder / "0.db")) as connection:
        parts = ["SELECT key, CAST(value AS BLOB) AS value, created FROM main.replies"]
        for number in range(1, PROCESSES):
            connection.execute(f"ATTACH '{folder / f'{number}.db'}' AS s{number}")
            parts.append(f"SELECT key, CAST(value AS BLOB), created FROM s{number}.replies")
        union = " UNION ALL ".join(parts)
        place = "row_number() OVER (PARTITION BY key ORDER BY created, value)"
        rows = f"SELECT key, value, created FROM (SELECT *, {place} AS place FROM ({union}))"
        count = f"SELECT count(DISTINCT key) FROM ({union})"
        chosen = connection.execute(f"{rows} WHERE place = 1 ORDER BY key")
        return digest(chosen), connection.execute(count).fetchone()[0]


def merged(folder: Path) -> tuple[str, int]:
    with contextlib.closing(sqlite3.connect(folder / "all.db")) as connection:
        rows = "SELECT key, CAST(value AS BLOB), created FROM replies ORDER BY key"
        count = connection.execute("SELECT count(*) FROM replies").fetchone()[0]
        return digest(connection.execute(rows)), count


def show(what: str, rows: int, numbers: tuple[float, float, float | None]) -> None:
    wall, cpu, memory = numbers
    print(
        f"{what:34} {wall:8.1f} s {rows / wall:10.0f} rows/s {cpu / rows * 1e6:7.1f} us CPU/row"
        f"   memory {in_mib(memory)}",
        flush=True,
    )


def remove(folder: Path) -> None:
    for path in folder.glob("all.db*"):
        path.unlink()


def main(rows: int, folder: Path, again: bool) -> None:
    """Write, merge, compare, read; ``again`` merges and exports a second time, and after a kill."""
    share = rows // PROCESSES
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place = Path(temporary)
        show(
            "written", rows, costs_of([started("write", place, n, share) for n in range(PROCESSES)])
        )
        merging = costs_of([started("merge", place)])
        right = wanted(place)
        assert merged(place) == right, "the merged store is not the union"
        size = (place / "all.db").stat().st_size / 2**20
        print(
            f"{share * PROCESSES} rows, {right[1]} keys, merged {size:.0f} MiB: equal", flush=True
        )
        show("merged into one", rows, merging)
        show(
            "read back",
            rows,
            costs_of([started("read", place, n, share) for n in range(PROCESSES)]),
        )
        if again:
            show("exported to Parquet", right[1], costs_of([started("export", place)]))
            show("merged again, nothing new", rows, costs_of([started("merge", place)]))
            remove(place)
            killed = started("merge", place)
            while not (place / "all.db").exists():
                time.sleep(0.01)
            time.sleep(merging[0] / 2)
            killed.send_signal(signal.SIGKILL)
            killed.communicate()
            with Store(place / "all.db") as store:
                kept = store.count() / right[1]
            rest = costs_of([started("merge", place)])
            assert merged(place) == right, "a merge that was killed did not end the same"
            show(f"goes on after kill -9 at {kept:.0%}", rows, rest)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", what, folder, number, rows]:
            begun, cpu = time.time(), time.process_time()
            WORK[what](Path(folder), int(number), int(rows))
            used = time.process_time() - cpu
            print(json.dumps([begun, time.time(), used, peak_mib()]), flush=True)
        case arguments:
            options = dict(argument.split("=") for argument in arguments)
            main(
                int(options.get("rows", 1_000_000)),
                Path(options.get("folder", "/tmp")),
                options.get("again", "true") == "true",
            )
