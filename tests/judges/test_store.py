"""First writer wins, nothing acknowledged is lost, and a foreign file is refused politely."""

import contextlib
import json
import signal
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.ask import stored
from judges.ask.replies import Store, canonical, content_key
from judges.ask.stored import stats, verify
from judges.store import main
from study.errors import UserError
from tests.conftest import python
from tests.waiting import GENEROUS_S, wait_for

USABLE = {"replies": [{"text": ""}], "attempts": 1, "latency_s": 0.0}
"""The least that readers want of a value; what stands beside it is theirs to pass over."""


def run(path: Path, statement: str) -> list[Any]:
    """What a statement gives, by a connection of its own."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def test_what_is_put_is_got(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "b" / "replies.db") as store:
        assert store.get("k") is None
        value = USABLE | {"text": "é \ud83d", "x": [1, 2.5, None]}
        assert store.put("k", value) == value
        assert store.put("k", USABLE | {"text": "late"}) == value
        assert store.get("k") == value
        assert store.count() == 1


def test_many_at_once_are_a_whole_that_others_cannot_read(store: Store) -> None:
    keys = [str(number) for number in range(40_000)]
    for key in keys[::8000]:
        store.put(key, USABLE | {"key": key})
    assert store.get_many(keys) == {key: USABLE | {"key": key} for key in keys[::8000]}
    assert store.get_many([]) == {}
    store.put("k", {})
    for path in store.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_what_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replies.db"
    Store(path).close()
    run(path, "PRAGMA user_version=99")
    with pytest.raises(UserError, match=r"version 99.*version 2"):
        Store(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used"):
        Store(tmp_path / "file" / "replies.db")


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing like a database " * 100)
    with pytest.raises(UserError, match=r"notes\.txt cannot be used"):
        Store(path)
    assert path.read_text() == "nothing like a database " * 100
    other = tmp_path / "other.db"
    run(other, "CREATE TABLE mine (x)")
    with pytest.raises(UserError, match="schema version 0"):
        Store(other)


def test_threads_have_connections_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path / "replies.db")

    def work(me: int) -> list[int]:
        return [store.put(str(key), USABLE | {"by": me})["by"] for key in range(50)]

    with ThreadPoolExecutor(4) as threads:
        winners = list(threads.map(work, range(4)))
    assert all(winner == winners[0] for winner in winners)
    store.close()
    assert store.count() == 50  # usable again after close
    store.close()


def test_a_forked_child_opens_its_own_connection(tmp_path: Path) -> None:
    code = """
import os, sys
from judges.store import Store
store = Store(sys.argv[1])
one, two = ({"replies": [{"text": ""}], "attempts": n, "latency_s": 0.0} for n in (1, 2))
store.put("parent", one)
child = os.fork()
if child == 0:
    store.put("child", two)
    store.close()
    os._exit(0 if store.get("parent") == one else 3)
assert os.waitpid(child, 0)[1] == 0
assert store.get("child") == two
store.put("after", one)
print(store.count())
"""
    process = python(code, tmp_path / "replies.db")
    out, _ = process.communicate(timeout=GENEROUS_S)
    assert (process.returncode, out.strip()) == (0, "3")


RACER = """
import json, os, sys, time
from judges.store import Store
path, go = sys.argv[1:]
me = 7
while me and os.fork():
    me -= 1
os.write(1, b"ready\\n")
while not os.path.exists(go):
    time.sleep(0.002)
store = Store(path)
value = {"replies": [{"text": str(me)}], "attempts": 1, "latency_s": 0.0}
seen = {str(key): store.put(str(key), value)["replies"][0] for key in range(300)}
with open(f"{go}.{me}", "w") as file:
    json.dump(seen, file)
"""


def test_eight_processes_agree_on_who_was_first(tmp_path: Path) -> None:
    path, go = tmp_path / "replies.db", tmp_path / "go"
    racers = python(RACER, path, go)
    assert [racers.stdout.readline() for _ in range(8)] == ["ready\n"] * 8
    go.touch()
    racers.communicate(timeout=GENEROUS_S)
    winners = [json.loads(path.read_text()) for path in tmp_path.glob("go.*")]
    assert racers.returncode == 0 and len(winners) == 8
    assert all(winner == winners[0] for winner in winners)
    with Store(path) as store:
        assert store.count() == 300
        stored = store.get_many([str(key) for key in range(300)])
    assert {key: value["replies"][0] for key, value in stored.items()} == winners[0]


WRITER = """
import sys
from judges.store import Store
store = Store(sys.argv[1])
with open(sys.argv[3], "w") as acknowledged:
    for number in range(10**9):
        key = f"{sys.argv[2]}-{number}"
        reply = {"text": key * 50}
        store.put(key, {"replies": [reply], "attempts": 1, "latency_s": 0.0})
        print(key, file=acknowledged, flush=True)
"""


def have_written(files: list[Path], writers: list[Any], count: int) -> bool:
    """Whether each of the files has so many lines, while those who write them live."""
    assert all(writer.poll() is None for writer in writers)
    return all(file.exists() and file.read_bytes().count(b"\n") >= count for file in files)


def test_kill_9_loses_no_acknowledged_row(tmp_path: Path) -> None:
    path = tmp_path / "replies.db"
    acknowledged: list[str] = []
    for round_ in range(2):
        names = [f"{round_}.{me}" for me in range(2)]
        files = [tmp_path / name for name in names]
        writers = [python(WRITER, path, name, tmp_path / name) for name in names]
        wait_for(partial(have_written, files, writers, 10 * (round_ + 1)))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer, file in zip(writers, files, strict=True):
            writer.communicate(timeout=GENEROUS_S)
            assert writer.returncode == -signal.SIGKILL
            # The last line may be torn; the others were written after put() had returned.
            lines = file.read_text().splitlines(True)
            acknowledged += [line[:-1] for line in lines if line.endswith("\n")]
    assert len(acknowledged) > 50
    with Store(path) as store:
        stored = store.get_many(acknowledged)
    texts = {key: value["replies"][0]["text"] for key, value in stored.items()}
    assert texts == {key: key * 50 for key in acknowledged}
    assert run(path, "PRAGMA integrity_check") == [("ok",)]


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
    written = b'{"a":"\\u00e9","b":[1,2.0,null,true]}'
    assert canonical({"b": [1, 2.0, None, True], "a": "é"}) == written
    assert content_key({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_has_no_word_for_has_no_key(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        content_key({"x": value})


def reply(text: str, **more: Any) -> dict[str, Any]:
    return {"text": text, "tokens_in": 10, "tokens_out": 2, "model": "m", **more}


def filled(tmp_path: Path) -> Path:
    path = tmp_path / "replies.db"
    with Store(path) as store:
        values = [
            {"replies": [reply("met")], "attempts": 1, "latency_s": 0.5},
            {
                "replies": [reply("hm"), reply("met", asked="with a format reminder")],
                "attempts": 3,
                "latency_s": 1.0,
            },
            {
                "replies": [reply("é", logprobs=[{"token": "é", "logprob": -1.0}])],
                "attempts": 1,
                "latency_s": 2.0,
            },
        ]
        store.put_many({content_key(n): value for n, value in enumerate(values)})
    return path


def test_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = filled(tmp_path)
    counts = stats(path)
    assert (counts["replies"], counts["requests"]) == (3, 4)
    assert (counts["tokens_in"], counts["tokens_out"]) == (40, 8)
    assert counts["models"] == {"m": 4}
    assert main(["stats", f"db={path}"]) == 0
    assert "tokens_in   40" in capsys.readouterr().out


@pytest.mark.parametrize("at_once", [1, 3, 2_000])
def test_export(at_once, tmp_path, capsys, monkeypatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(stored, "AT_ONCE", at_once)

    path, out = filled(tmp_path), tmp_path / "replies.parquet"
    assert main(["export", f"db={path}", f"out={out}"]) == 0
    assert "4 requests" in capsys.readouterr().out
    rows = pq.read_table(out).to_pylist()
    assert sorted((row["text"], row["number"], row["asked"] or "") for row in rows) == [
        ("hm", 0, ""), ("met", 0, ""), ("met", 1, "with a format reminder"), ("é", 0, ""),
    ]  # fmt: skip
    assert {row["key"] for row in rows} == {content_key(n) for n in range(3)}
    (probed,) = [row for row in rows if row["text"] == "é"]
    assert json.loads(probed["logprobs"]) == [{"token": "é", "logprob": -1.0}]


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = filled(tmp_path)
    assert main(["verify", f"db={path}"]) == 0
    assert "3 replies, all sound" in capsys.readouterr().out
    with Store(path) as store:
        store.put("short", USABLE)
        store.put(content_key("odd"), {"replies": [{"txt": "met"}], "attempts": 1})
        unsound = {line.split(":")[0] for line in verify(path)}
        assert unsound == {"short", content_key("odd")}
    assert main(["verify", f"db={path}"]) == 1
    run(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert main(["verify", f"db={path}"]) != 0


def test_a_store_of_the_first_version_is_carried_over(tmp_path: Path) -> None:
    path = filled(tmp_path)
    run(path, "DROP TABLE leases")
    run(path, "PRAGMA user_version=1")
    with Store(path) as store:
        assert store.count() == 3
        assert store.lease([content_key("new")], "me", 1.0)[0] == {content_key("new")}


def test_leases(store: Store) -> None:
    store.put("there", USABLE)
    assert store.lease(["a", "b", "there"], "me", 60.0) == ({"a", "b"}, {"there": USABLE})
    assert store.lease(["a", "c"], "you", 60.0) == ({"c"}, {})
    store.renew(["c"], "me", -1.0)  # not mine: nothing happens
    store.renew(["b"], "me", -1.0)
    assert store.lease(["a", "b", "c"], "them", 60.0) == ({"b"}, {})
    before = store.clock()
    store.release({"a": {"outcome": "timeout"}, "c": {"outcome": "not mine"}}, "me")
    assert store.failed(["a", "b", "c"], before) == {"a": {"outcome": "timeout"}}
    assert store.failed(["a"], store.clock() + 1) == {}
    assert store.lease(["a"], "you", 60.0) == ({"a"}, {})
    assert store.failed(["a"], 0.0) == {}
    store.put("a", USABLE)
    assert store._connection().execute("SELECT key FROM leases ORDER BY key").fetchall() == [
        ("b",), ("c",),
    ]  # fmt: skip


def test_a_batch_is_stored_as_a_whole_or_not_at_all(store: Store) -> None:
    one, two = USABLE | {"by": 1}, USABLE | {"by": 2}
    assert store.put_many({"a": one}) == {"a": one}
    assert store.put_many({"a": two, "b": two}) == {"a": one, "b": two}
    with pytest.raises(TypeError):
        store.put_many({"c": USABLE, "d": USABLE | {"by": object()}})
    assert store.count() == 2


BROKEN_REPLY = {
    "too many tokens": {"tokens_in": 2**63},
    "half a pair": {"text": "a\ud800"},
    "a count that is a text": {"tokens_out": "5"},
    "a count that is true": {"tokens_cached": True},
    "a negative count": {"tokens_in": -1},
    "a count with a point": {"tokens_in": 5.0},
    "no text": {"text": None},
    "a field of nobody": {"txt": "met"},
    "log-probs that are none": {"logprobs": [{"token": "a", "logprob": float("nan")}]},
    "a model of a kilometre": {"model": "m" * 10_000},
    "a model that is none": {"model": ["m"]},
}
BROKEN_VALUE = {
    "no replies": {"replies": []},
    "replies that are none": {"replies": "met"},
    "a reply that is none": {"replies": ["met"]},
    "latency without end": {"latency_s": float("inf")},
    "latency that is no number": {"latency_s": None},
    "attempts beyond 32 bits": {"attempts": 2**40},
    "attempts by halves": {"attempts": 1.5},
}
BROKEN_TEXT = {
    "no JSON": b"{oops",
    "no object": b"[1]",
    "no UTF-8": b'{"replies": "\xff"}',
    "a number without end": b'{"attempts": ' + b"9" * 5_000 + b"}",
    "nested without end": b"[" * 100_000,
    "nothing": b"",
}


def broken_rows() -> dict[str, bytes]:
    whole = {**USABLE, "replies": [reply("met")]}
    rows = dict(BROKEN_TEXT)
    for name, more in BROKEN_REPLY.items():
        rows[name] = json.dumps({**whole, "replies": [reply("met") | more]}).encode()
    for name, more in BROKEN_VALUE.items():
        rows[name] = json.dumps(whole | more).encode()
    return rows


@pytest.mark.parametrize("as_text", [True, False])
def test_a_row_that_nobody_can_use_is_not_there_and_verify_says_so(as_text, tmp_path, capsys):
    path, out = tmp_path / "replies.db", tmp_path / "replies.parquet"
    rows = {content_key(name): data for name, data in broken_rows().items()}
    with Store(path) as store:
        store.put(content_key("good"), USABLE)
        store._connection().executemany(
            f"INSERT INTO replies VALUES (?, CAST(? AS {'TEXT' if as_text else 'BLOB'}), 1.0)",
            rows.items(),
        )
        keys = [content_key("good"), *rows]
        assert store.get_many(keys) == {content_key("good"): USABLE}
        assert stats(path)["unusable"] == len(rows)
        problems = verify(path)
        assert sorted(line.partition(":")[0] for line in problems) == sorted(rows)
        assert all("counts as missing" in line and len(line) < 1_200 for line in problems)
        assert main(["export", f"db={path}", f"out={out}"]) == 0
        assert "1 requests" in capsys.readouterr().out
        # Each is asked for again, and what comes then takes its place.
        granted, stored = store.lease(keys, "me", 10.0)
        assert (granted, list(stored)) == (set(rows), [content_key("good")])
        again = USABLE | {"attempts": 2}
        assert store.put_many(dict.fromkeys(keys, again))[content_key("good")] == USABLE
        assert [store.get(key) for key in rows] == [again] * len(rows)
        assert verify(path) == []


def test_a_reply_that_will_not_do_gives_way(store: Store) -> None:
    mine, theirs = ({**USABLE, "replies": [reply("met", model=name)]} for name in "ab")

    def accept(value: dict[str, Any]) -> bool:
        return value["replies"][0]["model"] == "a"

    store.put("k", theirs)
    assert store.get_many(["k"]) == {"k": theirs}
    assert store.get_many(["k"], accept) == {}
    assert store.lease(["k"], "me", 10.0, accept) == ({"k"}, {})
    assert store.put_many({"k": mine}, accept) == {"k": mine}
    assert store.put_many({"k": theirs}) == {"k": mine}


def test_a_lease_of_another_time_holds_nobody_up(tmp_path: Path) -> None:
    path, now = tmp_path / "replies.db", [10_000.0]

    def opened(boot: str) -> Store:
        return Store(path, clock=lambda: now[0], boot=boot)

    with opened("a") as store:
        assert store.lease(["k", "l"], "holder", 15.0)[0] == {"k", "l"}
        assert store.lease(["k"], "other", 15.0)[0] == set()
        now[0] -= 3_600  # as if the clock could be put back
        assert store.lease(["k"], "other", 15.0)[0] == {"k"}
        assert store.lease(["k"], "third", 15.0)[0] == set()
        store.release({"k": {"outcome": "timeout"}}, "other")
        assert store.failed(["k"], now[0]) == {"k": {"outcome": "timeout"}}
    with opened("b") as store:  # the host was started anew, and its clock begins at 0
        assert store.failed(["k"], 0.0) == {}
        now[0] = 20.0
        assert store.lease(["k", "l"], "other", 15.0)[0] == {"k", "l"}


def test_a_damaged_page_is_told_in_a_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "replies.db"
    with Store(path) as store:
        store.put_many({f"{n}": USABLE | {"more": "x" * 2_000} for n in range(200)})
    data = bytearray(path.read_bytes())
    for page in range(3, len(data) // 4096):
        data[page * 4096 : page * 4096 + 100] = b"\xff" * 100
    path.write_bytes(data)
    with Store(path) as store, pytest.raises(UserError, match=r"replies\.db is damaged.*verify"):
        store.get_many([f"{n}" for n in range(200)])
    assert main(["verify", f"db={path}"]) == 1
