"""Which of several replicas gets a request, and what becomes of one that is gone."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from judges.endpoint.replicas import (
    MOVED,
    REST_S,
    Following,
    Replicas,
    open_wire,
)
from judges.endpoint.transport import Answer, Unreachable, WireError
from study.config.schema import Endpoint
from study.errors import UserError


async def nothing():
    return
    yield b""


class FakeWire:
    def __init__(self, error: Exception | None = None, free: bool = False) -> None:
        self.requests = 0
        self.error = error
        self.release = asyncio.Event()
        if free:
            self.release.set()
        self.closed = False

    @asynccontextmanager
    async def exchange(self, method, path, headers, body):
        self.requests += 1
        if self.error is not None:
            raise self.error
        await self.release.wait()
        yield Answer(200, {}, nothing())

    async def close(self):
        self.closed = True


async def ask(replicas):
    async with replicas.exchange("POST", "/chat/completions", {}, b"{}"):
        pass


async def test_requests_spread_and_a_slow_replica_gets_no_more():
    wires = [FakeWire() for _ in range(3)]
    replicas = Replicas(wires)
    first = [asyncio.create_task(ask(replicas)) for _ in range(6)]
    await asyncio.sleep(0)
    assert replicas.in_flight == [2, 2, 2]
    wires[1].release.set()
    await asyncio.gather(first[1], first[4])
    assert replicas.in_flight == [2, 0, 2]
    for _ in range(5):  # one after the other, while the others are still busy
        await ask(replicas)
    assert [wire.requests for wire in wires] == [2, 7, 2]
    wires[0].release.set()
    wires[2].release.set()
    await asyncio.gather(*first)
    assert replicas.in_flight == [0, 0, 0]


async def test_idle_replicas_take_turns():
    wires = [FakeWire(free=True) for _ in range(3)]
    replicas = Replicas(wires)
    for _ in range(9):
        await ask(replicas)
    assert [wire.requests for wire in wires] == [3, 3, 3]


async def test_a_replica_that_is_gone_draws_no_requests_until_it_has_rested():
    now = 100.0
    wires = [FakeWire(Unreachable("refused")), FakeWire(free=True)]
    replicas = Replicas(wires, clock=lambda: now)
    with pytest.raises(Unreachable):
        await ask(replicas)
    for _ in range(4):
        await ask(replicas)
    assert [wire.requests for wire in wires] == [1, 4]
    now += REST_S
    wires[0].error = None
    wires[0].release.set()
    for _ in range(4):
        await ask(replicas)
    # Rested and asked longest ago, it comes first, and then in turn.
    assert [wire.requests for wire in wires] == [3, 6]
    assert replicas.in_flight == [0, 0]


async def test_where_all_are_gone_each_is_tried_and_a_reply_that_broke_off_bars_none():
    wires = [FakeWire(Unreachable("refused")) for _ in range(2)]
    replicas = Replicas(wires, clock=lambda: 0.0)
    for _ in range(4):
        with pytest.raises(Unreachable):
            await ask(replicas)
    assert [wire.requests for wire in wires] == [2, 2]
    replicas = Replicas([FakeWire(WireError("cut")), FakeWire(free=True)], clock=lambda: 0.0)
    with pytest.raises(WireError):
        await ask(replicas)
    await ask(replicas)
    assert replicas.choose() == 0


def test_each_replica_has_a_wire_and_closing_closes_all():
    urls = [f"http://127.0.0.1:{port}/v1" for port in (8001, 8002)]
    wire = open_wire(Endpoint(url="http://127.0.0.1:8000/v1", replicas=urls))
    assert isinstance(wire, Replicas) and len(wire.in_flight) == 3
    asyncio.run(wire.close())
    with pytest.raises(UserError, match="ftp://"):
        open_wire(Endpoint(url="http://127.0.0.1:8000/v1", replicas=["ftp://host/v1"]))
    wires = [FakeWire(), FakeWire()]
    asyncio.run(Replicas(wires).close())
    assert [wire.closed for wire in wires] == [True, True]


async def test_replicas_of_a_service_are_those_that_there_are_now(monkeypatch):
    urls = tuple(f"http://h:{port}/v1" for port in (1, 2))
    opened = {url: FakeWire(free=True) for url in (*urls, "http://h:3/v1")}
    following = Following(urls, opened.__getitem__)
    for _ in range(4):
        await ask(following)
    assert [wire.requests for wire in opened.values()] == [2, 2, 0]
    opened[urls[1]].release.clear()
    busy = asyncio.create_task(ask(following)), asyncio.create_task(ask(following))
    await asyncio.sleep(0)
    monkeypatch.setitem(MOVED, urls, ("http://h:3/v1", urls[0]))
    for _ in range(4):
        await ask(following)
    assert [wire.requests for wire in opened.values()] == [5, 3, 2]
    assert following.in_flight == [0, 0]
    for moved, place in ((urls[:1], 0), (("http://h:3/v1",), 2), (urls[:1], 0)):
        monkeypatch.setitem(MOVED, urls, moved)
        before = [wire.requests for wire in opened.values()]
        await ask(following)
        before[place] += 1  # the very first request goes to where it is now
        assert [wire.requests for wire in opened.values()] == before
    opened[urls[1]].release.set()
    await asyncio.gather(*busy)  # what a replica that is gone still answers is taken
    await following.close()
    assert all(wire.closed for wire in opened.values())
