"""Concurrency that adapt, and rates and places that hold for all processes together."""

import asyncio
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from judges.endpoint.failures import Fault
from judges.endpoint.throttle import (
    WINDOW,
    Concurrency,
    RateLimit,
    SharedConcurrency,
    Throttle,
    address,
)
from study.config.schema import Endpoint
from study.errors import UserError
from study.system import clock as host
from study.verdict import Outcome
from tests.conftest import python
from tests.waiting import GENEROUS_S, on_own_clock, wait_for


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def most_at_once(concurrency: Concurrency, count: int) -> int:
    """How many of ``count`` tasks had a place at the same time."""
    peak = 0

    async def use() -> None:
        nonlocal peak
        async with concurrency:
            peak = max(peak, concurrency.taken)
            await asyncio.sleep(0.001)

    async def main() -> None:
        await asyncio.gather(*(use() for _ in range(count)))
        assert concurrency.taken == 0

    on_own_clock(main())
    return peak


def test_places_are_bounded_and_stay_where_nothing_is_known() -> None:
    assert most_at_once(Concurrency(5), 40) == 5
    assert most_at_once(Concurrency(5), 3) == 3
    concurrency = Concurrency(20)
    concurrency.limit = 10.0
    for _ in range(100):
        concurrency.answered(1.0)
        concurrency.answered(9.0)
    assert concurrency.limit == 10
    concurrency = Concurrency(20, adaptive=False)
    window(concurrency, 1.0)
    window(concurrency, 9.0)
    assert concurrency.limit == 20


def window(concurrency: Concurrency, seconds: float) -> None:
    """All places taken, and a window of replies."""
    concurrency.taken = concurrency._peak = int(concurrency.limit)
    for _ in range(max(WINDOW, 2 * int(concurrency.limit))):
        concurrency.answered(seconds)


def test_what_only_got_slower_takes_places_and_calm_gives_them_back() -> None:
    concurrency = Concurrency(20)
    window(concurrency, 1.0)
    assert concurrency.limit == 20  # never above what was asked for
    window(concurrency, 1.6)
    assert concurrency.limit == 16
    window(concurrency, 1.3)
    assert concurrency.limit == 17
    window(concurrency, 1.3)
    window(concurrency, 1.4)
    assert concurrency.limit == 19


async def test_a_cancelled_wait_loses_no_place() -> None:
    concurrency = Concurrency(1)

    async def hold(seconds: float) -> None:
        async with concurrency:
            await asyncio.sleep(seconds)

    first = asyncio.create_task(hold(0.02))
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(hold(0)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await first  # the place goes to waiting[1] in the very step in which it is cancelled
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[2].done() and not waiting[2].cancelled()
    assert concurrency.taken == 0
    async with asyncio.timeout(1), concurrency:
        pass


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_rate_says_when_the_turn_is(on_disk: bool, tmp_path: Path) -> None:
    clock = Clock()
    rate = RateLimit(61, None, tmp_path / "a" / "rate" if on_disk else None, clock)  # one a second
    assert [rate.reserve(1, 0) for _ in range(4)] == pytest.approx([0, 0, 1, 2])
    clock.now += 10
    assert [rate.reserve(1, 0) for _ in range(3)] == pytest.approx([0, 0, 1])
    rate.reserve(-2, 0)
    assert rate.reserve(1, 0) == pytest.approx(0)


def test_tokens_are_set_right_and_no_minute_holds_more() -> None:
    clock = Clock()
    rate = RateLimit(None, 6100, None, clock)  # a hundred a second
    assert rate.reserve(1, 300) == 0
    assert rate.reserve(1, 100) == pytest.approx(2)
    rate.reserve(0, 200)  # the first took more than it had set aside
    assert rate.reserve(1, 100) == pytest.approx(5)
    rate.reserve(0, -500)
    assert rate.reserve(1, 100) == pytest.approx(1)
    clock = Clock()
    rate = RateLimit(30, None, None, clock)
    turns = sorted(clock.now + rate.reserve(1, 0) for _ in range(200))
    for start in turns:
        assert sum(start <= turn < start + 60 for turn in turns) <= 31
    assert turns[-1] - turns[0] < 1.05 * 199 * 2  # and hardly less


def test_a_rate_file_is_begun_again_or_named(tmp_path: Path) -> None:
    (tmp_path / "rate").write_bytes(b"half")
    assert RateLimit(60, None, tmp_path / "rate").reserve(1, 0) == 0
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="limits that all processes share cannot be written"):
        RateLimit(60, None, tmp_path / "folder").reserve(1, 0)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_rate_from_another_time_is_void(on_disk: bool, tmp_path: Path) -> None:
    clock = Clock()
    file = tmp_path / "rate" if on_disk else None
    rate = RateLimit(61, None, file, clock, boot="a" * 32)
    assert [rate.reserve(1, 0) for _ in range(3)] == pytest.approx([0, 0, 1])
    clock.now -= 3_600  # as if it could be put back
    assert [rate.reserve(1, 0) for _ in range(3)] == pytest.approx([0, 0, 1])
    if on_disk:
        assert RateLimit(61, None, file, clock, boot="a" * 32).reserve(1, 0) == pytest.approx(2)
        assert RateLimit(61, None, file, clock, boot="b" * 32).reserve(1, 0) == 0


def shared(endpoint: Endpoint, folder: Path, rate: bytes) -> Throttle:
    """A throttle that finds this in the file of its rate."""
    file = folder / address(endpoint) / "rate"
    file.parent.mkdir()
    file.write_bytes(rate)
    return Throttle(endpoint, folder)


HOUR_S = 3_600.0


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<2d", time.time() + HOUR_S, time.time() + HOUR_S),  # as it once was
        struct.pack("<32s2d", host.boot().encode(), *2 * [host.now() + 100 * HOUR_S]),
        struct.pack("<32s2d", b"0" * 31 + b"x", host.now() + 100, host.now() + 100),
        struct.pack("<32s2d", host.boot().encode(), float("nan"), float("inf")),
        b"\xff" * 48,
        b"",
    ],
    ids=["as it once was", "hours ahead", "of another boot", "no number", "no text", "empty"],
)
async def test_a_rate_file_from_the_future_holds_nobody_up(content: bytes, tmp_path: Path) -> None:
    endpoint = Endpoint(url="http://a/v1", requests_per_min=6_000.0, tokens_per_min=1e6)
    throttle = shared(endpoint, tmp_path, content)
    async with asyncio.timeout(5):
        await asyncio.gather(*(throttle.permit(10.0, 1.0) for _ in range(20)))


def by(clock: Clock, throttle: Throttle) -> RateLimit:
    """The rate of a throttle, with another clock."""
    throttle._rate._clock = clock
    return throttle._rate


async def test_a_turn_past_the_deadline_is_not_waited_for(tmp_path: Path) -> None:
    endpoint = Endpoint(url="http://a/v1", requests_per_min=60.0)
    clock = Clock()
    ahead = clock.now + 300  # what an honest backlog may just be
    kept = struct.pack("<32s2d", host.boot().encode(), ahead, 0.0)
    throttle = shared(endpoint, tmp_path, kept)
    rate = by(clock, throttle)
    for _ in range(2):
        with pytest.raises(Fault, match=r"299 s away, past the deadline of 0\.1 s") as late:
            await throttle.permit(0.0, 0.1)
        assert (late.value.outcome, late.value.again) == (Outcome.rate_limited, False)
    assert rate.reserve(1, 0) == pytest.approx(299)  # the turns not taken were given back


async def test_a_count_that_is_a_lie_costs_a_minute_at_most() -> None:
    throttle = Throttle(Endpoint(url="http://a/v1", tokens_per_min=6_100.0))
    rate = by(Clock(), throttle)
    permit = await throttle.permit(10.0)
    throttle.settle(permit, 10_000_000, 10_000_000)
    assert rate.reserve(1, 1) == pytest.approx(60, abs=1)


async def test_without_limits_nothing_is_shared(tmp_path: Path) -> None:
    throttle = Throttle(Endpoint(url="http://a/v1"), tmp_path / "limits")
    async with throttle.slot():
        assert await throttle.permit(1e9) == 0.0
    throttle.settle(0.0, 5, 5)
    assert not (tmp_path / "limits").exists()


def test_whose_limits_are_the_same() -> None:
    one = Endpoint(url="http://a/v1", model="m", api_key_env="K", max_concurrency=3)
    assert address(one) == address(Endpoint(url="http://a/v1", model="m", api_key_env="K"))
    others = [
        Endpoint(url="http://b/v1", model="m", api_key_env="K"),
        Endpoint(url="http://a/v1", model="n", api_key_env="K"),
        Endpoint(url="http://a/v1", model="m", api_key_env="L"),
    ]
    assert len({address(endpoint) for endpoint in [one, *others]}) == 4


async def test_a_permit_that_is_not_used_is_given_back(tmp_path: Path) -> None:
    throttle = Throttle(Endpoint(requests_per_min=61.0), tmp_path)
    rate = by(Clock(), throttle)
    await throttle.permit(0)
    await throttle.permit(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await throttle.permit(0)
    assert rate.reserve(1, 0) == pytest.approx(1.0)  # and not 2


WORKER = """
import asyncio, json, os, sys, time
from pathlib import Path
from study.system import clock
from study.config.schema import Endpoint
from judges.endpoint.throttle import Throttle
go, folder = Path(sys.argv[1]), Path(sys.argv[2])
endpoint = Endpoint(**json.loads(sys.argv[3]))
count, hold = int(sys.argv[4]), float(sys.argv[5])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.002)
turns, spans = [], []
def noted(rate):
    reserve, read = rate.reserve, []
    rate._clock = lambda: read.append(clock.now()) or read[-1]
    def turn(*amounts):
        wait = reserve(*amounts)
        turns.append(read[-1] + wait)
        return wait
    rate.reserve = turn
async def ask(throttle):
    async with throttle.slot():
        await throttle.permit(0)
        start = clock.now()
        await asyncio.sleep(hold)
        spans.append((start, clock.now()))
async def main():
    throttle = Throttle(endpoint, folder)
    if throttle._rate is not None:
        noted(throttle._rate)
    await asyncio.gather(*(ask(throttle) for _ in range(count)))
asyncio.run(main())
print(json.dumps([turns, spans]), flush=True)
"""
"""Prints the turns that its rate gave it, and from when to when each request held its place."""


def workers(tmp_path: Path, count: int, endpoint: dict[str, Any], each: int, hold: float) -> Any:
    go = tmp_path / "go"
    words = [go, tmp_path / "limits", json.dumps(endpoint), each, hold]
    running = [python(WORKER, *words) for _ in range(count)]
    for worker in running:
        assert worker.stdout.readline() == "ready\n"
    go.touch()
    return running


def test_processes_share_a_rate(tmp_path: Path) -> None:
    running = workers(tmp_path, 3, {"requests_per_min": 1220.0}, 15, 0.0)  # 20 a second
    reports = [json.loads(worker.communicate(timeout=GENEROUS_S)[0]) for worker in running]
    for turns_of_one, spans in reports:  # nobody asks before its turn
        starts = sorted(start for start, _ in spans)
        assert all(s >= t - 1e-4 for s, t in zip(starts, sorted(turns_of_one), strict=True))
    turns = sorted(turn for turns_of_one, _ in reports for turn in turns_of_one)
    assert len(turns) == 45
    # 45 at 20 a second with one second's worth at once: the last is 24 steps of 50 ms later.
    assert turns[-1] - turns[0] >= 1.1
    for turn in turns:
        assert sum(turn <= other < turn + 0.5 for other in turns) <= 21 + 10


def test_processes_share_places_and_a_killed_one_keeps_none(tmp_path: Path) -> None:
    endpoint = {"max_concurrency": 3, "shared": True}
    running = workers(tmp_path, 3, endpoint, 6, 0.05)
    reports = [json.loads(worker.communicate(timeout=GENEROUS_S)[0]) for worker in running]
    spans = [span for _, spans in reports for span in spans]
    assert len(spans) == 18
    for start, _ in spans:
        assert sum(begin <= start < end for begin, end in spans) <= 3
    (tmp_path / "go").unlink()
    (holder,) = workers(tmp_path, 1, endpoint, 3, 60.0)
    concurrency = SharedConcurrency(3, tmp_path / "limits" / address(Endpoint(**endpoint)))

    def all_are_taken() -> bool:
        held = concurrency._try()
        if held is not None:
            held.close()
        return held is None

    wait_for(all_are_taken, "the other process had all places")
    holder.kill()
    holder.communicate(timeout=GENEROUS_S)
    held = concurrency._try()
    assert held is not None
    held.close()
