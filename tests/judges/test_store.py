"""First writer wins, nothing acknowledged is lost, and a foreign file is refused politely."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.errors import UserError
from judges.store import CHUNK, Store, canonical, content_key

ROOT = Path(__file__).parents[2]


def run(code: str, *args: str, **kwargs: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **kwargs,
    )


def test_what_is_put_is_got(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "b" / "replies.db") as store:
        assert store.get("k") is None
        assert store.put("k", {"text": "é \ud83d", "x": [1, 2.5, None]}) == {
            "text": "é \ud83d",
            "x": [1, 2.5, None],
        }
        assert store.put("k", {"text": "late"})["x"] == [1, 2.5, None]
        assert store.get("k") == {"text": "é \ud83d", "x": [1, 2.5, None]}
        assert store.count() == 1


def test_many_at_once(tmp_path: Path) -> None:
    with Store(tmp_path / "replies.db") as store:
        keys = [str(number) for number in range(2 * CHUNK + 3)]
        for key in keys[::400]:
            store.put(key, {"key": key})
        assert store.get_many(keys) == {key: {"key": key} for key in keys[::400]}
        assert store.get_many([]) == {}


def test_others_cannot_read_it(tmp_path: Path) -> None:
    with Store(tmp_path / "replies.db") as store:
        store.put("k", {})
        for path in tmp_path.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replies.db"
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(UserError, match=r"version 99.*version 1"):
        Store(path)


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing like a database " * 100)
    with pytest.raises(UserError, match=r"notes\.txt cannot be used"):
        Store(path)
    assert path.read_text() == "nothing like a database " * 100
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(UserError, match="schema version 0"):
        Store(other)


def test_a_path_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used"):
        Store(tmp_path / "file" / "replies.db")


def test_threads_have_connections_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path / "replies.db")
    winners: list[list[int]] = []

    def work(me: int) -> None:
        winners.append([store.put(str(key), {"by": me})["by"] for key in range(50)])

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 4
    assert all(found == winners[0] for found in winners)
    store.close()
    assert store.count() == 50  # usable again after close
    store.close()


def test_a_forked_child_opens_its_own_connection(tmp_path: Path) -> None:
    code = """
import os, sys
from judges.store import Store
store = Store(sys.argv[1])
store.put("parent", {"pid": 1})
child = os.fork()
if child == 0:
    store.put("child", {"pid": 2})
    store.close()
    os._exit(0 if store.get("parent") == {"pid": 1} else 3)
assert os.waitpid(child, 0)[1] == 0
assert store.get("child") == {"pid": 2}
store.put("after", {})
print(store.count())
"""
    process = run(code, str(tmp_path / "replies.db"))
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out.strip()) == (0, "3")


RACER = """
import json, os, sys, time
from judges.store import Store
path, me, go = sys.argv[1], sys.argv[2], sys.argv[3]
print("ready", flush=True)
while not os.path.exists(go):
    time.sleep(0.002)
store = Store(path)
print(json.dumps({str(key): store.put(str(key), {"by": me})["by"] for key in range(300)}))
"""


def test_eight_processes_agree_on_who_was_first(tmp_path: Path) -> None:
    path, go = tmp_path / "replies.db", tmp_path / "go"
    racers = [run(RACER, str(path), str(me), str(go)) for me in range(8)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    go.touch()
    seen = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
    assert all(racer.returncode == 0 for racer in racers)
    assert all(found == seen[0] for found in seen)
    with Store(path) as store:
        assert store.count() == 300
        stored = store.get_many([str(key) for key in range(300)])
    assert {key: value["by"] for key, value in stored.items()} == seen[0]


WRITER = """
import sys
from judges.store import Store
store = Store(sys.argv[1])
with open(sys.argv[3], "w") as acknowledged:
    for number in range(10**9):
        key = f"{sys.argv[2]}-{number}"
        store.put(key, {"text": key * 50})
        print(key, file=acknowledged, flush=True)
"""


def test_kill_9_loses_no_acknowledged_row(tmp_path: Path) -> None:
    path = tmp_path / "replies.db"
    acknowledged: list[str] = []
    for round_ in range(3):
        names = [f"{round_}.{me}" for me in range(2)]
        files = [tmp_path / name for name in names]
        writers = [
            run(WRITER, str(path), name, str(file)) for name, file in zip(names, files, strict=True)
        ]
        while not all(file.exists() and file.stat().st_size for file in files):
            assert all(writer.poll() is None for writer in writers)
            time.sleep(0.005)
        time.sleep(0.07 * (round_ + 1))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer, file in zip(writers, files, strict=True):
            writer.communicate(timeout=30)
            assert writer.returncode == -signal.SIGKILL
            # The last line may be torn; the others were written after put() had returned.
            lines = file.read_text().splitlines(True)
            acknowledged += [line[:-1] for line in lines if line.endswith("\n")]
    assert len(acknowledged) > 50
    with Store(path) as store:
        stored = store.get_many(acknowledged)
    assert {key: value["text"] for key, value in stored.items()} == {
        key: key * 50 for key in acknowledged
    }
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_the_order_of_keys_does_not_matter(data: dict[str, Any]) -> None:
    turned = dict(reversed(data.items()))
    assert content_key(turned) == content_key(data)
    assert json.loads(canonical(data)) == data


def test_golden_keys() -> None:
    """SHA-256 of these very bytes, by another tool; a change here orphans every stored reply."""
    assert canonical({"b": [1, 2.0, None, True], "a": "é"}) == (
        b'{"a":"\\u00e9","b":[1,2.0,null,true]}'
    )
    assert content_key({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_has_no_word_for_has_no_key(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        content_key({"x": value})
