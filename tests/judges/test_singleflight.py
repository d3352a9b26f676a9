"""One call per key among all processes, whoever dies or fails."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from judges.ask.asker import POLL_S, TAKE_OVER_S, SingleFlight
from judges.ask.replies import Store, content_key
from judges.endpoint.chat_completions import Stored
from judges.fault_injection.server import choice, completion, whole
from judges.faults import FaultServer
from tests.conftest import python
from tests.waiting import GENEROUS_S, on_own_clock, wait_for

VALUE = {"replies": [{"text": "met"}], "attempts": 1, "latency_s": 0.0}
ASKER = """
import json, os, sys, time
from study.config.schema import Endpoint, Grading, Judge, Sampling
from study.rows import make_row
from judges.ask.session import Session
from judges.store import Store
db, url, go, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
judge = Judge(name="j", endpoint=Endpoint(url=url, model="m", attempts=1, max_concurrency=4,
              idle_timeout_s=float(sys.argv[5])), grading=Grading("likert"), sampling=Sampling())
row = make_row(({"role": "user", "content": "Write."},))
me = int(sys.argv[6]) - 1
while me and os.fork():
    me -= 1
with Store(db) as store, Session(judge, store) as session:
    os.write(1, b"ready\\n")
    while not os.path.exists(go):
        time.sleep(0.002)
    found = session.ask_many([(row, f"answer {number}") for number in range(count)])
    said = {"calls": session.calls, "hits": session.hits,
            "keys": [draws[0].key for draws in found],
            "said": [draws[0].outcome + draws[0].text for draws in found],
            "paid": sum(not draws[0].from_cache for draws in found)}
    with open(f"{go}.{me}", "w") as file:
        json.dump(said, file)
"""


def askers(
    tmp_path: Path, url: str, processes: int, count: int, idle_s: float = 60.0
) -> subprocess.Popen[str]:
    """Processes that begin to ask at once; each writes a file of what it got. They are forks of
    one, so that what they need is imported once."""
    go = tmp_path / "go"
    first = python(ASKER, tmp_path / "replies.db", url, go, count, idle_s, processes)
    assert [first.stdout.readline() for _ in range(processes)] == ["ready\n"] * processes
    go.touch()
    return first


def told_by(first: subprocess.Popen[str], tmp_path: Path) -> list[dict[str, Any]]:
    """What each of the processes wrote, once all have ended."""
    first.communicate(timeout=GENEROUS_S)
    return [json.loads(path.read_text()) for path in sorted(tmp_path.glob("go.*"))]


async def fifty(body: bytes) -> bytes:
    await asyncio.sleep(0.05)
    return whole(completion(choice("[[50]]")))


def test_eight_processes_make_one_call_per_question(tmp_path: Path) -> None:
    with FaultServer(good=fifty) as server:
        reports = told_by(askers(tmp_path, server.url("mix_0"), processes=8, count=40), tmp_path)
        assert len(reports) == 8
        assert server.calls["mix_0"] == 40  # of 320 questions
        questions = [body["messages"][0]["content"] for body in server.bodies["mix_0"]]
    assert len(set(questions)) == 40
    assert sum(each["calls"] for each in reports) == sum(each["paid"] for each in reports) == 40
    assert all(each["hits"] + each["calls"] == 40 for each in reports)
    assert all(each["keys"] == reports[0]["keys"] for each in reports)
    assert {text for each in reports for text in each["said"]} == {"scored[[50]]"}
    with Store(tmp_path / "replies.db") as store:
        assert store.count() == 40


def test_a_failure_is_shared_by_those_who_waited(tmp_path: Path) -> None:
    with FaultServer() as server:
        first = askers(tmp_path, server.url("hang"), processes=4, count=2, idle_s=1.5)
        reports = told_by(first, tmp_path)
        assert server.calls["hang"] == 2
    assert [each["said"] for each in reports] == [["timeout", "timeout"]] * 4
    assert sum(each["paid"] for each in reports) == 2
    with Store(tmp_path / "replies.db") as store:
        assert store.count() == 0


def test_a_waiter_takes_over_from_a_killed_process(tmp_path: Path) -> None:
    with FaultServer() as server:
        holder = askers(tmp_path, server.url("hang"), processes=1, count=1)
        wait_for(lambda: server.calls["hang"], "it has asked")
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=GENEROUS_S)
    with Store(tmp_path / "replies.db") as store:
        ((key, expires),) = store._connection().execute("SELECT key, expires FROM leases")
        assert 0 < expires - store.clock() < 20
        assert store.lease([key], "me", 10.0) == (set(), {})  # it may be alive yet
        store._connection().execute("UPDATE leases SET expires = expires - 20")  # time passes

        async def main() -> Stored | None:
            single_flight = SingleFlight(store)
            shared = await single_flight.claim(key)
            await single_flight.put(key, VALUE)
            await single_flight.close()
            return shared

        assert on_own_clock(main()) is None  # ours to ask for
        assert store.get(key) == VALUE


def keys(count: int) -> list[str]:
    return [content_key(number) for number in range(count)]


async def claimed_by_two(store: Store, **settings: float) -> tuple[Any, Any, str, Any]:
    """Two flights over a store, a key that the first one holds, and the second's wait for it."""
    one, two = SingleFlight(store, **settings), SingleFlight(store, **settings)
    (key,) = keys(1)
    assert await one.claim(key) is None
    return one, two, key, asyncio.create_task(two.claim(key))


async def test_the_second_waits_for_the_first(store: Store) -> None:
    one, two = SingleFlight(store), SingleFlight(store)
    names = keys(50)
    assert await asyncio.gather(*(one.claim(key) for key in names)) == [None] * 50
    waiting = [asyncio.create_task(two.claim(key)) for key in names]
    await asyncio.sleep(10 * POLL_S)
    assert not any(task.done() for task in waiting)
    values = [{**VALUE, "attempts": number} for number in range(50)]
    await asyncio.gather(*(one.put(key, value) for key, value in zip(names, values, strict=True)))
    async with asyncio.timeout(2 * POLL_S):
        shared = await asyncio.gather(*waiting)
    assert shared == values
    assert await two.claim(names[3]) == values[3]
    await one.close()
    await two.close()
    assert store._connection().execute("SELECT count(*) FROM leases").fetchone() == (0,)


async def test_the_waiter_learns_how_it_failed_and_a_later_one_asks(store: Store) -> None:
    one, two, key, waiting = await claimed_by_two(store)
    await asyncio.sleep(0.05)
    failure = {**VALUE, "outcome": "timeout", "reason": "late"}
    one.give_up(key, failure)
    async with asyncio.timeout(2 * POLL_S):
        assert await waiting == failure
    assert await two.claim(key) is None  # a failure is not for ever
    await two.close()
    assert await one.claim(key) is None  # closing gives back what is held
    await one.close()


async def test_a_lease_outlives_its_term_while_its_holder_lives(store: Store) -> None:
    store.clock = asyncio.get_running_loop().time
    one, two, _, waiting = await claimed_by_two(store, lease_s=0.4)
    await asyncio.sleep(20)
    assert not waiting.done()
    one._held.clear()  # as if it had died
    async with asyncio.timeout(0.4 + TAKE_OVER_S + POLL_S):
        assert await waiting is None
    await one.close()
    await two.close()


async def test_a_cancelled_claim_leaves_nothing_behind(store: Store) -> None:
    one, two = SingleFlight(store), SingleFlight(store)
    first, second = keys(2)
    claim = asyncio.create_task(one.claim(first))
    await asyncio.sleep(0)
    claim.cancel()
    await asyncio.gather(claim, return_exceptions=True)
    assert await two.claim(first) is None
    assert await one.claim(second) is None
    waiting = asyncio.create_task(two.claim(second))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not two._waiting and not two._claims
    one.give_up(second)
    await one.close()
    await two.close()
    third = SingleFlight(store)
    assert [await third.claim(first), await third.claim(second)] == [None, None]
    await third.close()


async def test_a_store_that_broke_is_said_and_nobody_waits_for_ever(store: Store) -> None:
    one, two, key, waiting = await claimed_by_two(store)
    await asyncio.sleep(0.05)

    def broken(*_: Any) -> Any:
        raise OSError("disk full")

    for name in ("get_many", "put_many", "lease", "release", "renew"):
        setattr(store, name, broken)
    async with asyncio.timeout(2):
        with pytest.raises(OSError, match="disk full"):
            await waiting
        with pytest.raises(OSError, match="disk full"):
            await one.put(key, VALUE)
        with pytest.raises(OSError, match="disk full"):
            await two.claim(content_key("other"))
    await one.close()
    await two.close()
