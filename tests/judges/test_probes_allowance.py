"""What a folder of probes may spend: the store is free, the rest stops before a limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from judges.aggregate import Got
from judges.budget import Spent
from judges.endpoint.client import Fetched
from judges.probes.allowance import MOST, Allowance
from study.errors import UserError
from study.schema import Cost, Judge, Price, Simulated
from study.verdict import Outcome, Reply

PRICED = Judge(name="dear", price=Price(input=1.0, output=2.0))


def got(calls: int = 1, usd: float | None = 0.01, cached: bool = False) -> Got:
    return Got(Fetched((Reply("x"),), None, "", calls, 0.1), usd, cached)


def sender(each: Got) -> tuple[list[int], Callable[[Sequence[int]], list[Got]]]:
    """A wire that answers everything alike and notes the sizes of its batches."""
    sizes: list[int] = []

    def send(wanted: Sequence[int]) -> list[Got]:
        sizes.append(len(wanted))
        return [each] * len(wanted)

    return sizes, send


def test_without_a_limit_all_is_sent_at_once_and_counted() -> None:
    allowance = Allowance(Cost(), [PRICED])
    sizes, send = sender(got(usd=0.5))
    found = allowance.spend(PRICED, range(1000), send)
    assert sizes == [1000] and len(found) == 1000
    assert allowance.spent == Spent(1000, 500.0)


def test_calls_are_never_more_than_the_limit() -> None:
    allowance = Allowance(Cost(max_calls=100), [PRICED])
    sizes, send = sender(got())
    found = allowance.spend(PRICED, range(150), send)
    assert sizes == [1, 2, 4, 8, 16, 32, 37] and max(sizes) <= MOST
    assert [one.attempted.outcome for one in found] == [None] * 100 + [Outcome.aborted] * 50
    assert all(one.attempted.attempts == 0 and one.cost_usd == 0.0 for one in found[100:])
    assert "cost.max_calls=100" in found[-1].attempted.reason
    assert allowance.spent.calls == 100
    assert allowance.spend(PRICED, range(2), send)[0].attempted.outcome is Outcome.aborted


def test_requests_are_foreseen_to_take_what_the_dearest_took() -> None:
    tried_thrice = Allowance(Cost(max_calls=10), [PRICED])
    sizes, send = sender(got(calls=3))
    tried_thrice.spend(PRICED, range(9), send)
    assert sum(sizes) == 3 and tried_thrice.spent.calls == 9, "no room for another three"
    paid = Allowance(Cost(max_usd=0.1), [PRICED])
    sizes, send = sender(got(usd=0.01))
    paid.spend(PRICED, range(99), send)
    assert sum(sizes) == 10 and paid.spent.usd == pytest.approx(0.1)


def test_the_judges_share_the_limit_and_each_has_its_own_price() -> None:
    other = Judge(name="cheap", price=Price(input=0.1, output=0.2))
    allowance = Allowance(Cost(max_usd=1.0), [PRICED, other])
    sizes, send = sender(got(usd=0.3))
    allowance.spend(PRICED, range(5), send)
    assert sizes == [1, 2], "0.9 of 1"
    sizes, send = sender(got(usd=0.02))
    allowance.spend(other, range(99), send)
    assert sum(sizes) == 5 and allowance.spent.usd == pytest.approx(1.0)


def test_what_others_asked_meanwhile_is_free() -> None:
    allowance = Allowance(Cost(max_calls=5), [PRICED])
    _, send = sender(got(cached=True))
    assert len(allowance.spend(PRICED, range(50), send)) == 50
    assert allowance.spent == Spent()


def test_what_was_spent_before_counts() -> None:
    allowance = Allowance(Cost(max_calls=10), [PRICED], Spent(7, 0.0))
    sizes, send = sender(got())
    allowance.spend(PRICED, range(9), send)
    assert sum(sizes) == 3


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(UserError, match=r"cost\.max_calls=0 allows nothing"):
        Allowance(Cost(max_calls=0), [])
    with pytest.raises(UserError, match="judge=free has no price"):
        Allowance(Cost(max_usd=1.0), [PRICED, Judge(name="free")])
    Allowance(Cost(max_usd=1.0), [Judge(name="sim", simulated=Simulated())])
