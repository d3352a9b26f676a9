"""The reply store under 8 processes: get and put, against a cache of one pickle file per key.

    python benchmarks/judges/store.py [rows=4000] [rounds=3]

Each process looks for its keys, puts 2 kB replies and gets them back, so each row costs a miss, a
put and a hit. The store is asked as a session asks it: in batches of what came up together; one by
one is shown beside. Both caches are checked to give back what was put before anything is timed, and
runs take turns. The last part counts calls when all processes want the same keys at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from judges.ask.asker import SingleFlight
from judges.ask.replies import Store, content_key

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 8
BATCH = 64
SHARED = 200
"""Keys that all processes want at once."""
CALL_S = 0.02


def value(key: str) -> dict[str, Any]:
    """A reply of about 2 kB."""
    reply = {"text": key * 30, "tokens_in": 900, "tokens_out": 12, "model": "m"}
    return {"replies": [reply], "attempts": 1, "latency_s": 0.5}


class Files:
    """One pickle per key, as evaluation frameworks cache generations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / hashlib.md5(key.encode()).hexdigest()

    def get(self, key: str) -> Any:
        try:
            with self._path(key).open("rb") as file:
                return pickle.load(file)
        except FileNotFoundError:
            return None

    def put(self, key: str, value: Any) -> None:
        with self._path(key).open("wb") as file:
            pickle.dump(value, file)


def files(folder: Path, keys: list[str]) -> None:
    cache = Files(folder / "files")
    for key in keys:
        assert cache.get(key) is None
        cache.put(key, value(key))
        assert cache.get(key)["attempts"] == 1


def one_by_one(folder: Path, keys: list[str]) -> None:
    with Store(folder / "replies.db") as store:
        for key in keys:
            assert store.get(key) is None
            store.put(key, value(key))
            entry = store.get(key)
            assert entry is not None and entry["attempts"] == 1


def batches(folder: Path, keys: list[str]) -> None:
    with Store(folder / "replies.db") as store:
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            assert not store.get_many(part)
            store.put_many({key: value(key) for key in part})
            assert all(entry["attempts"] == 1 for entry in store.get_many(part).values())


def want_files(folder: Path, keys: list[str]) -> int:
    """Calls that a process makes for keys that all want, each call taking a while."""
    cache, calls = Files(folder / "files"), 0

    async def one(key: str) -> None:
        nonlocal calls
        if cache.get(key) is None:
            calls += 1
            await asyncio.sleep(CALL_S)
            cache.put(key, value(key))

    async def main() -> None:
        for start in range(0, len(keys), BATCH):
            await asyncio.gather(*(one(key) for key in keys[start : start + BATCH]))

    asyncio.run(main())
    return calls


def want_store(folder: Path, keys: list[str]) -> int:
    """The same through the single_flight."""
    calls = 0

    async def main() -> None:
        with Store(folder / "replies.db") as store:
            single_flight = SingleFlight(store)

            async def one(key: str) -> None:
                nonlocal calls
                if await single_flight.claim(key) is None:
                    calls += 1
                    await asyncio.sleep(CALL_S)
                    await single_flight.put(key, value(key))

            for start in range(0, len(keys), BATCH):
                await asyncio.gather(*(one(key) for key in keys[start : start + BATCH]))
            await single_flight.close()

    asyncio.run(main())
    return calls


WORK: dict[str, Callable[[Path, list[str]], Any]] = {
    "pickle files": files,
    "store, one by one": one_by_one,
    "store, in batches": batches,
    "want, pickle files": want_files,
    "want, store": want_store,
}


def worker(name: str, folder: Path, keys: list[str]) -> None:
    """One of the processes: get ready, wait for the start, work, tell."""
    print("ready", flush=True)
    while not (folder / "go").exists():
        time.sleep(0.001)
    cpu = time.process_time()
    calls = WORK[name](folder, keys)
    print(json.dumps([time.time(), time.process_time() - cpu, calls]), flush=True)


def together(name: str, rows: int, same: bool = False) -> tuple[float, float, list[Any]]:
    """Wall seconds, CPU seconds of all, and what each process tells."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        Store(folder / "replies.db").close()
        running = [
            subprocess.Popen(
                [sys.executable, __file__, "worker", name, str(folder), str(rows),
                 "0" if same else str(number)],
                stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            for number in range(PROCESSES)
        ]  # fmt: skip
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        started = time.time()
        (folder / "go").touch()
        reports = [json.loads(process.communicate()[0]) for process in running]
        assert all(process.returncode == 0 for process in running)
    ended, cpu, calls = zip(*reports, strict=True)
    return max(ended) - started, sum(cpu), list(calls)


def check() -> None:
    """Both give back what was put."""
    with tempfile.TemporaryDirectory() as temporary:
        cache = Files(Path(temporary) / "files")
        with Store(Path(temporary) / "replies.db") as store:
            for number in range(100):
                key = content_key(number)
                cache.put(key, value(key))
                store.put(key, value(key))
                assert cache.get(key) == store.get(key) == value(key)


def main(rows: int, rounds: int) -> None:
    """Let both take turns and print the table."""
    check()
    names = [name for name in WORK if not name.startswith("want")]
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            wall, cpu, _ = together(name, rows // PROCESSES)
            taken[name].append((rows / wall, cpu / rows * 1e6))
    print(f"{PROCESSES} processes, {rows} rows of 2 kB: miss + put + hit")
    print(f"{'cache':20} {'rows/s':>8} {'us CPU/row':>11} {'rate':>6} {'CPU':>6}")
    for name, runs in taken.items():
        pairs = list(zip(runs, taken["pickle files"], strict=True))
        rate = statistics.median(mine[0] / theirs[0] for mine, theirs in pairs)
        less = statistics.median(theirs[1] / mine[1] for mine, theirs in pairs)
        best = max(runs)
        print(f"{name:20} {best[0]:8.0f} {best[1]:11.0f} {rate:5.1f}x {less:5.1f}x")
    print(f"\n{PROCESSES} processes want the same {SHARED} replies, a call takes {CALL_S:g} s")
    for name in ("want, pickle files", "want, store"):
        wall, _, calls = together(name, SHARED, same=True)
        print(f"{name.removeprefix('want, '):20} {sum(calls):6} calls {wall:6.2f} s")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", name, folder, count, number]:
            wanted = [content_key([number, index]) for index in range(int(count))]
            worker(name, Path(folder), wanted)
        case arguments:
            options = dict(argument.split("=") for argument in arguments)
            main(int(options.get("rows", 4000)), int(options.get("rounds", 3)))
