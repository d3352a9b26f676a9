"""The pace that refusals teach, and what comes through endpoints that refuse."""

import asyncio
import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from judges.endpoint.client import Channel
from judges.endpoint.pace import KEPT_S, LONGEST_PAUSE_S, SAFETY, Pace
from judges.endpoint.replicas import open_wire
from judges.endpoint.throttle import Numbers, Throttle, address
from study.config.schema import Endpoint
from study.system import clock as host
from tests.judges.limited import Case, Counts, ask_without_pause, limited, measure
from tests.waiting import on_own_clock

START = 1000.0


def drive(
    pace: Pace, refuses: Callable[[float, int], bool], count: int, asked_per_s: float, now: float
) -> float:
    """Send so many requests, whose fate is known at once; the time after them."""
    for number in range(count):
        while (wait_s := pace.wait_s(now)) > 0:
            now += wait_s
        pace.note(now, pace.number, refuses(now, number), asked_s=1.0)
        now += 1 / asked_per_s
    return now


def bucket(per_s: float) -> Callable[[float, int], bool]:
    level, at = per_s, START

    def refuses(now: float, number: int) -> bool:
        nonlocal level, at
        level, at = min(per_s, level + (now - at) * per_s), now
        if level < 1:
            return True
        level -= 1
        return False

    return refuses


def test_without_refusals_nothing_is_held_back() -> None:
    pace = Pace.beginning(START)
    assert drive(pace, lambda *_: False, 1000, 100.0, START) == pytest.approx(START + 10)
    assert pace.rate == math.inf


def test_a_limit_is_the_pace() -> None:
    pace = Pace.beginning(START)
    now = drive(pace, bucket(10.0), 300, 100.0, START)
    refuses, refused = bucket(10.0), []
    end = drive(pace, lambda *at: refused.append(refuses(*at)) or refused[-1], 1000, 100.0, now)
    assert 1000 / (end - now) == pytest.approx(10.0, rel=0.1)
    assert sum(refused) <= 30


@pytest.mark.parametrize("every", [12, 4])
def test_refusals_that_no_pace_ends_hold_nothing_back(every: int) -> None:
    pace = Pace.beginning(START)
    now = drive(pace, lambda _, number: number % every == 0, 1000, 100.0, START)
    assert pace.rate == math.inf
    assert pace.usual == pytest.approx(1 / every, rel=0.5)
    later = drive(pace, lambda _, number: number % every == 0, 1000, 100.0, now)
    assert later - now == pytest.approx(10.0, rel=0.1)


def test_a_share_that_rises_above_chance_is_a_limit() -> None:
    pace = Pace.beginning(START)
    now = drive(pace, lambda _, number: number % 12 == 0, 1000, 100.0, START)
    limited = bucket(10.0)
    drive(pace, lambda at, number: number % 12 == 0 or limited(at, number), 500, 100.0, now)
    assert 5 <= pace.rate <= 20


def test_where_all_are_refused_nothing_is_sent_for_as_long_as_is_asked() -> None:
    pace = Pace.beginning(START)
    now = START
    for _ in range(30):
        assert pace.wait_s(now) == 0
        pace.note(now, pace.number, refused=False)
        now += 0.1
    for _ in range(3):
        assert pace.wait_s(now) == 0
        pace.note(now, pace.number, refused=True, asked_s=27.0)
    assert pace.wait_s(now) == pytest.approx(27.0)
    assert pace.wait_s(now + 27.0) == 0
    assert pace.rate == pytest.approx(SAFETY * 30 / 30.0)  # as they came, with the pause
    assert pace.wait_s(now + 27.0) == pytest.approx(1 / pace.rate)


def test_no_wish_closes_an_endpoint_for_good() -> None:
    pace = Pace.beginning(START)
    for _ in range(3):
        pace.note(START, pace.number, refused=True, asked_s=1e9)
    assert pace.wait_s(START) == LONGEST_PAUSE_S


def test_the_pause_doubles_while_nothing_comes_through() -> None:
    pace, now, pauses = Pace.beginning(START), START, []
    for _ in range(3):
        pace.note(now, pace.number, refused=True)
    for _ in range(6):
        pauses.append(pace.wait_s(now))
        now += pauses[-1]
        assert pace.wait_s(now) == 0
        pace.note(now, pace.number, refused=True)
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 8])


def test_what_was_sent_at_another_pace_says_nothing() -> None:
    pace = Pace.beginning(START)
    before = pace.number
    for _ in range(3):
        pace.note(START, before, refused=True, asked_s=1.0)
    closed_until = pace.closed_until
    for _ in range(50):
        pace.note(START + 0.5, before, refused=True, asked_s=30.0)
    assert pace.closed_until == closed_until


@pytest.mark.parametrize(
    ("limit", "latency_s", "in_flight", "seconds"),
    [
        ("bucket-10", 0.1, 6, 60),
        ("bucket-10", 1.0, 32, 60),
        ("bucket-20", 0.2, 16, 60),
        ("requests-300", 0.2, 16, 120),
        ("tokens-66000", 0.2, 16, 120),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_limit_is_used_and_hardly_passed(
    limit: str, latency_s: float, in_flight: int, seconds: int, processes: int
) -> None:
    case = Case(limit, latency_s, in_flight)
    counts = measure(case, seconds, processes)
    assert counts.used(case, seconds) >= 0.9
    assert counts.refused_share() <= 0.03


@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_what_an_endpoint_works_on_at_once_is_shared_by_all_processes(
    processes: int, spread: float
) -> None:
    case = Case("at_once-4", 0.2, 16, spread=spread)
    counts = measure(case, 60, processes)
    assert counts.used(case, 60) >= 0.9
    assert counts.refused_share() <= 0.03


@pytest.mark.parametrize("share", [0.04, 0.25])
@pytest.mark.parametrize("processes", [1, 2])
def test_refusals_by_chance_that_take_as_long_as_replies_cost_their_time(
    share: float, processes: int
) -> None:
    case = Case(f"random-{share}", 0.2, 8, spread=0.25, refused_s=0.2)
    assert measure(case, 30, processes).used(case, 30) >= 0.6 * (1 - share)


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("share", [0.0833, 0.25])
def test_refusals_by_chance_cost_little_more_than_their_share(share: float, tells: bool) -> None:
    case = Case(f"random-{share}", 0.1, 6, tells)
    assert measure(case, 40).used(case, 40) >= 0.6


async def test_a_pace_file_that_is_damaged_holds_nobody_up(tmp_path: Path) -> None:
    endpoint = Endpoint(url="http://a/v1")
    count = len(vars(Pace()))
    for numbers in (
        [math.nan] * count,
        [1e-9, host.now() + 1e6, *[host.now() + 1e6] * (count - 2)],
        [0.0, host.now(), host.now(), *[0.0] * (count - 3)],
    ):
        file = tmp_path / address(endpoint) / "pace"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(struct.pack(f"<32s{count}d", host.boot().encode(), *numbers))
        throttle = Throttle(endpoint, tmp_path)
        async with asyncio.timeout(5):
            await asyncio.gather(*(throttle.permit(10.0, 1.0) for _ in range(20)))


async def test_processes_share_a_pace_and_none_is_kept_for_ever(tmp_path: Path) -> None:
    endpoint = Endpoint(url="http://a/v1")
    first, second = Throttle(endpoint, tmp_path), Throttle(endpoint, tmp_path)
    await second.permit(0.0)
    assert not list(tmp_path.rglob("pace"))  # most endpoints refuse nothing
    for _ in range(3):
        first.end(first.send(), refused=True, asked_s=30.0)
    await asyncio.sleep(0.1)  # until they are counted
    for throttle in (first, second):
        with pytest.raises(Exception, match=r"past the deadline of 1 s"):
            await throttle.permit(0.0, 1.0)
    pace = Pace.beginning(START)
    assert pace.is_of(START + KEPT_S - 1) and not pace.is_of(START + KEPT_S + 1)
    numbers = Numbers((1.0, 2.0), tmp_path / "numbers")
    assert numbers.change(lambda pair: ((pair[1], pair[0]), sum(pair))) == 3.0
    assert Numbers((0.0, 0.0), tmp_path / "numbers").change(lambda pair: (pair, pair)) == (2, 1)


@pytest.mark.parametrize(
    ("limit", "held_back"), [("bucket-6", (6, 50)), ("at_once-2", (20, 50)), ("random-0.1", None)]
)
def test_what_is_held_back_is_told(limit: str, held_back: tuple[int, int] | None) -> None:
    case = Case(limit, 0.1, 5)

    async def work() -> tuple[float, float] | None:
        endpoint = Endpoint("asgi://limited", "m", max_concurrency=case.in_flight)
        channel = Channel(endpoint, open_wire(endpoint, limited(case, Counts())))
        assert channel.throttle.throttled() is None
        asking = asyncio.create_task(ask_without_pause(channel, 60.0))
        await asyncio.sleep(59.0)
        rates = await asyncio.to_thread(channel.throttle.throttled)
        await asking
        return rates

    rates = on_own_clock(work())
    assert rates == (held_back and pytest.approx(held_back, rel=0.2))
