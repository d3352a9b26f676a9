"""Many stores make one: in any order, any number of times, and after any kill."""

import contextlib
import json
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judges.ask import connections
from judges.ask.connections import open_to_read
from judges.ask.merging import merge
from judges.ask.replies import Store, content_key, open_store, read_value
from judges.ask.session import Session
from judges.ask.stored import copy
from judges.store import main
from study.config.schema import Judge, Simulated, VerdictStore
from study.errors import UserError
from study.rows import Truth, make_row
from tests.conftest import python
from tests.waiting import GENEROUS_S


def value(text: str) -> dict[str, Any]:
    return {"replies": [{"text": text}], "attempts": 1, "latency_s": 0.0}


def text_of(stored: dict[str, Any] | None) -> str:
    return stored["replies"][0]["text"]


def make_store(path: Path, rows: dict[Any, tuple[Any, Any]]) -> Path:
    """A store of rows key -> (value or text, time), written past all checks."""
    with Store(path) as store:
        store._connection().executemany(
            "INSERT INTO replies VALUES (?, ?, ?)",
            [
                (key, json.dumps(entry) if isinstance(entry, dict) else entry, created)
                for key, (entry, created) in rows.items()
            ],
        )
    return path


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT key, value, created FROM replies ORDER BY key").fetchall()


def oracle(*sources: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The same by sorting every row of every source."""
    first: dict[str, tuple[Any, ...]] = {}
    for key, data, created in sorted(
        (row for rows in sources for row in rows), key=lambda row: (row[2], row[1])
    ):
        with contextlib.suppress(ValueError):
            read_value(data.encode())
            first.setdefault(key, (key, data, created))
    return sorted(first.values())


STORED = st.dictionaries(
    st.integers(0, 6).map(content_key),
    st.tuples(st.sampled_from([value("a"), value("b"), "{broken", '{"replies": []}']),
              st.integers(0, 2).map(float)),
    max_size=5,
)  # fmt: skip


@settings(max_examples=25)
@given(stores=st.lists(STORED, min_size=1, max_size=3), random=st.randoms())
def test_any_order_any_split_and_again_give_the_same(stores, random, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("merge")
    sources = [make_store(folder / f"{n}.db", rows) for n, rows in enumerate(stores)]
    wanted = oracle(*map(rows_of, sources))
    with Store(folder / "all.db") as whole, Store(folder / "by-turns.db") as by_turns:
        merged = merge(sources, whole.transaction)
        turned = random.sample(sources, len(sources))
        for source in [*turned, turned[0]]:
            merge([source], by_turns.transaction)
        again = merge(turned, whole.transaction)
    assert rows_of(folder / "all.db") == rows_of(folder / "by-turns.db") == wanted
    assert (merged.new, merged.replaced) == (len(wanted), 0)
    assert (again.new, again.replaced, again.kept) == (0, 0, len(wanted))
    unusable = sum(isinstance(entry, str) for rows in stores for entry, _ in rows.values())
    assert sum(merged.unusable.values()) == unusable


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [content_key(n) for n in range(4)]
    first = make_store(
        tmp_path / "a.db", {keys[0]: (value("late"), 9.0), keys[1]: ("no JSON", 1.0)}
    )
    second = make_store(
        tmp_path / "b.db",
        {keys[0]: (value("early"), 8.0), keys[2]: (value("c"), -5.0), "short": (value("d"), 1.0),
         "zoo": (value("e"), 1.0), b"\xff": (value("f"), 1.0)},
    )  # fmt: skip
    target = make_store(tmp_path / "all.db", {keys[2]: (value("legal time"), 7.0)})
    assert main(["merge", f"from={first},{second}", f"db={target}"]) == 0
    out = capsys.readouterr().out
    assert (
        f"{target} holds 2 replies: 1 are new, 0 were replaced by earlier ones, 1 were kept" in out
    )
    assert f"1 rows of {first} cannot" in out and f"3 rows of {second} cannot" in out
    with Store(target) as store:
        assert text_of(store.get(keys[0])) == "early"
        assert text_of(store.get(keys[2])) == "legal time"


def test_a_reply_that_cannot_be_used_gives_way(tmp_path: Path) -> None:
    key = content_key(0)
    target = make_store(tmp_path / "all.db", {key: ("broken", 1.0)})
    source = make_store(tmp_path / "a.db", {key: (value("sound"), 2.0)})
    with Store(target) as store:
        assert merge([source], store.transaction).replaced == 1
        assert text_of(store.get(key)) == "sound"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["merge", "db=all.db"], "needs from="),
        (["merge", "from=no.db", "db=all.db"], "no reply store no.db"),
        (["merge", "from=a.db,all.db", "db=./all.db"], "all.db is db itself"),
        (["merge", "from=notes.txt", "db=all.db"], "notes.txt cannot be read"),
        (["merge", "from=other.db", "db=all.db"], "lacks its -wal file"),
        (["merge", "from=newer.db", "db=all.db"], "schema version 99"),
        (["copy", "db=a.db"], "needs out="),
        (["copy", "db=a.db", "out=a.db"], "a.db is db itself"),
        (["stats", "from=a.db"], "only with merge"),
    ],
)
def test_what_cannot_be_merged_is_told_in_a_paragraph(
    arguments, words, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    make_store(tmp_path / "a.db", {})
    (tmp_path / "notes.txt").write_text("nothing like a database " * 100)
    for name, version in (("other", 0), ("newer", 99)):
        with contextlib.closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            connection.execute("CREATE TABLE t (x)")
            connection.execute(f"PRAGMA user_version={version}")
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert words in errors and errors.count("\n") == 1
    assert not (tmp_path / "all.db").exists()


KILLED = """
import contextlib, os, signal, sys
from pathlib import Path
from judges.ask import merging
from judges.store import Store
moment, target, *sources = sys.argv[1:]
merging.BATCH_KEYS = merging.PAGE = 50
with Store(target) as store:
    begun = 0
    @contextlib.contextmanager
    def transaction():
        global begun
        begun += 1
        with store.transaction() as connection:
            yield connection
            if begun == int(moment):
                os.kill(os.getpid(), signal.SIGKILL)
    merging.merge([Path(source) for source in sources], transaction)
"""


def test_after_a_kill_in_any_transaction_the_same_command_goes_on(tmp_path: Path) -> None:
    """What was committed stays, and the last merge adds only what the others left."""
    sources = [
        make_store(tmp_path / f"{part}.db",
                   {content_key([part * n]): (value(f"{part} {n}"), float(part))
                    for n in range(400)})
        for part in (1, 2)
    ]  # fmt: skip
    target = tmp_path / "all.db"
    wanted = oracle(*map(rows_of, sources))
    for moment in (1, 2, 7, 4, 12):
        with python(KILLED, moment, target, *sources) as killed:
            assert killed.wait(GENEROUS_S) == -signal.SIGKILL
        assert rows_of(target) == wanted[: 50 * (max(moment, 7 * (moment == 4)) - 1)]
    with Store(target) as store:
        merged = merge(sources, store.transaction)
    assert rows_of(target) == wanted
    assert (merged.new, merged.kept) == (len(wanted) - 550, 550)


def test_a_source_in_use_is_read_with_its_last_rows(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as writer, Store(tmp_path / "all.db") as target:
        writer.put_many({content_key(n): value(str(n)) for n in range(2500)})
        assert (tmp_path / "a.db-wal").stat().st_size > 0
        assert merge([tmp_path / "a.db"], target.transaction).new == 2500
        writer.put(content_key("more"), value("more"))
        assert merge([tmp_path / "a.db"], target.transaction).new == 1


def test_a_copy_without_its_wal_is_told_as_one(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as writer:
        writer.put_many({content_key(n): value(str(n)) for n in range(300)})
        shutil.copy(tmp_path / "a.db", tmp_path / "half.db")
        assert copy(tmp_path / "a.db", tmp_path / "there" / "whole.db") > 300 * 64
    with pytest.raises(UserError, match=r"half\.db cannot be read.*lacks its -wal file.*copy db="):
        open_to_read(tmp_path / "half.db")
    assert rows_of(tmp_path / "there" / "whole.db") == rows_of(tmp_path / "a.db")
    assert (tmp_path / "there" / "whole.db").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["whole.db"]


def test_a_source_whose_pages_are_damaged_is_told_and_what_came_before_stays(tmp_path) -> None:
    sound = make_store(tmp_path / "b.db", {"0" * 64: (value("b"), 1.0)})
    rows = {content_key(n): (value("x" * 500), 1.0) for n in range(2000)}
    damaged = make_store(tmp_path / "a.db", rows)
    data = bytearray(damaged.read_bytes())
    for page in range(9, len(data) // 4096, 3):
        data[page * 4096 : page * 4096 + 100] = b"\xff" * 100
    damaged.write_bytes(data)
    with Store(tmp_path / "all.db") as store:
        with pytest.raises(UserError, match=r"a\.db cannot be read"):
            merge([damaged, sound], store.transaction)
        assert merge([sound], store.transaction).unusable == {sound: 0}
        assert store.count() >= 1


# --- where a store may lie


def on_network(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make ``folder`` a network file system for whoever asks."""
    monkeypatch.setattr(
        connections, "network_kind", lambda path: "nfs4" if path.is_relative_to(folder) else ""
    )


def test_a_store_on_a_network_file_system_is_refused(tmp_path, monkeypatch) -> None:
    on_network(monkeypatch, tmp_path / "shared")
    for runs_dir, settings_ in (
        (tmp_path / "shared", None),
        (tmp_path, VerdictStore(dir=str(tmp_path / "shared"))),
    ):
        with pytest.raises(UserError, match=r"nfs4.*store\.dir=/var/tmp") as caught:
            open_store(runs_dir, settings_)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "shared").exists()
    local = VerdictStore(dir=str(tmp_path / "local"))
    with open_store(tmp_path / "shared", local) as store:
        assert store.path == tmp_path / "local" / "verdicts.db"


def test_a_place_may_name_a_variable_of_the_node(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NODE_DISK", str(tmp_path))
    with open_store(tmp_path / "runs", VerdictStore(dir="$NODE_DISK/mine")) as store:
        assert store.path == tmp_path / "mine" / "verdicts.db"
    for text in ("$NOT_SET/mine", "relative/folder"):
        with pytest.raises(UserError, match=r"store\.dir=.*absolute path on every node"):
            open_store(tmp_path, VerdictStore(dir=text))


def test_a_merged_store_on_a_network_file_system_is_read_if_it_is_whole(tmp_path, monkeypatch):
    whole = make_store(tmp_path / "shared" / "all.db", {content_key(0): (value("a"), 1.0)})
    on_network(monkeypatch, tmp_path / "shared")
    open_to_read(whole).close()
    Path(f"{whole}-wal").write_bytes(b"x")
    with pytest.raises(UserError, match=r"all\.db-wal.*judges\.store copy"):
        open_to_read(whole)


# --- a merged store beside


def test_what_a_store_beside_holds_is_copied_and_not_asked_for(tmp_path: Path) -> None:
    keys = [content_key(n) for n in range(5)]
    first = make_store(tmp_path / "a.db", {keys[0]: (value("a"), 3.0), keys[1]: ("broken", 3.0)})
    second = make_store(tmp_path / "b.db", {keys[0]: (value("b"), 1.0), keys[1]: (value("c"), 4.0)})
    before = (first.read_bytes(), second.read_bytes())
    with open_store(tmp_path / "runs", VerdictStore(beside=[str(first), str(second)])) as store:
        store.put(keys[2], value("mine"))
        granted, stored = store.lease(keys, "me", 10.0)
        assert granted == {keys[3], keys[4]}
        assert {key: text_of(each) for key, each in stored.items()} == {
            keys[0]: "a", keys[1]: "c", keys[2]: "mine",
        }  # fmt: skip
        assert store.get_many(keys, lambda each: text_of(each) == "b") == {keys[0]: value("b")}
    assert (first.read_bytes(), second.read_bytes()) == before
    with open_store(tmp_path / "runs") as store:  # the copies stay, with the time of their first
        assert text_of(store.get(keys[1])) == "c"
    times = {key: created for key, _, created in rows_of(tmp_path / "runs" / "verdicts.db")}
    assert times[keys[1]] == 4.0


def test_a_session_asks_nobody_for_what_is_beside(tmp_path: Path) -> None:
    judge = Judge(name="sim", simulated=Simulated())
    row = make_row(({"role": "user", "content": "Say it."},))
    verdicts = []
    for runs, beside in (("first", []), ("second", [str(tmp_path / "first" / "verdicts.db")])):
        with (
            open_store(tmp_path / runs, VerdictStore(beside=beside)) as store,
            Session(judge, store, lambda prompt, answer: Truth(0.5)) as session,
        ):
            ((vote,),) = session.ask_many([(row, "an answer")])
            verdicts.append((vote.from_cache, vote.score))
    assert verdicts == [(False, 0.5), (True, 0.5)]


def test_a_store_beside_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no reply store .*all\.db"):
        open_store(tmp_path, VerdictStore(beside=[str(tmp_path / "all.db")]))
