"""What a folder of probes may spend: the store is free, the rest stops before a limit."""

import asyncio

import pytest

from judges.ask.allowance import MOST, Allowance
from judges.ask.budget import Spent
from judges.endpoint.client import Fetched
from study.config.schema import Cost, Judge, Price, Simulated
from study.errors import UserError
from study.verdict import Outcome, Reply
from tests.waiting import on_own_clock

PRICED = Judge(name="dear", price=Price(input=1.0, output=2.0))


def reply(calls: int = 1, usd: float | None = 0.01, cached: bool = False) -> Fetched:
    return Fetched((Reply("x"),), None, "", calls, 0.1, cost_usd=usd, from_cache=cached)


def spend(
    allowance: Allowance, judge: Judge, count: int, each: Fetched
) -> tuple[list[int], list[Fetched]]:
    """Ask ``count`` times an endpoint that answers everything alike; the sizes of the batches."""
    sizes: list[int] = []
    under_way = 0

    async def send() -> Fetched:
        nonlocal under_way
        if not under_way:
            sizes.append(0)
        sizes[-1] += 1
        under_way += 1
        await asyncio.sleep(0.001)
        under_way -= 1
        return each

    async def main() -> list[Fetched]:
        return await asyncio.gather(*(allowance.spend(judge, send) for _ in range(count)))

    return sizes, on_own_clock(main())


def test_without_a_limit_all_is_sent_at_once_and_counted() -> None:
    allowance = Allowance(Cost(), [PRICED])
    sizes, results = spend(allowance, PRICED, 1000, reply(usd=0.5))
    assert sizes == [1000] and len(results) == 1000
    assert allowance.spent == Spent(1000, 500.0)


def test_calls_are_never_more_than_the_limit() -> None:
    allowance = Allowance(Cost(max_calls=100), [PRICED])
    sizes, results = spend(allowance, PRICED, 150, reply())
    assert sizes == [1, 2, 4, 8, 16, 32, 37] and max(sizes) <= MOST
    assert [one.outcome for one in results] == [None] * 100 + [Outcome.aborted] * 50
    assert all(one.attempts == 0 and one.cost_usd == 0.0 for one in results[100:])
    assert "cost.max_calls=100" in results[-1].reason
    assert allowance.spent.calls == 100
    assert spend(allowance, PRICED, 2, reply())[1][0].outcome is Outcome.aborted


def test_requests_are_foreseen_to_take_what_the_dearest_took() -> None:
    tried_thrice = Allowance(Cost(max_calls=10), [PRICED])
    sizes, _ = spend(tried_thrice, PRICED, 9, reply(calls=3))
    assert sum(sizes) == 3 and tried_thrice.spent.calls == 9, "no room for another three"
    paid = Allowance(Cost(max_usd=0.1), [PRICED])
    sizes, _ = spend(paid, PRICED, 99, reply(usd=0.01))
    assert sum(sizes) == 10 and paid.spent.usd == pytest.approx(0.1)


def test_the_judges_share_the_limit_and_each_has_its_own_price() -> None:
    other = Judge(name="cheap", price=Price(input=0.1, output=0.2))
    allowance = Allowance(Cost(max_usd=1.0), [PRICED, other])
    sizes, _ = spend(allowance, PRICED, 5, reply(usd=0.3))
    assert sizes == [1, 2], "0.9 of 1"
    sizes, _ = spend(allowance, other, 99, reply(usd=0.02))
    assert sum(sizes) == 5 and allowance.spent.usd == pytest.approx(1.0)


def test_what_others_asked_meanwhile_is_free() -> None:
    allowance = Allowance(Cost(max_calls=5), [PRICED])
    _, results = spend(allowance, PRICED, 50, reply(cached=True))
    assert [one.outcome for one in results] == [None] * 50
    assert allowance.spent == Spent()


def test_who_gives_up_leaves_the_room_to_others() -> None:
    allowance = Allowance(Cost(max_calls=2), [PRICED])

    async def hang() -> Fetched:
        return await asyncio.get_running_loop().create_future()

    async def send() -> Fetched:
        return reply()

    async def main() -> Fetched:
        task = asyncio.create_task(allowance.spend(PRICED, hang))
        queued = asyncio.create_task(allowance.spend(PRICED, send))
        last = asyncio.create_task(allowance.spend(PRICED, send))
        await asyncio.sleep(0)
        queued.cancel()
        await asyncio.sleep(0)
        task.cancel()
        return await last

    assert on_own_clock(main()) == reply()
    assert allowance.spent.calls == 1


def test_what_was_spent_before_counts() -> None:
    allowance = Allowance(Cost(max_calls=10), [PRICED], Spent(7, 0.0))
    sizes, _ = spend(allowance, PRICED, 9, reply())
    assert sum(sizes) == 3


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(UserError, match=r"cost\.max_calls=0 .* above 0"):
        Allowance(Cost(max_calls=0), [])
    with pytest.raises(UserError, match="judge=free has no price"):
        Allowance(Cost(max_usd=1.0), [PRICED, Judge(name="free")])
    Allowance(Cost(max_usd=1.0), [Judge(name="sim", simulated=Simulated())])
