"""A cell stops before the step that may pass a limit, and knows what it spent when it goes on."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from judges.ask.budget import (
    Budget,
    BudgetSpent,
    Spent,
    check_limits,
    spent_before,
    usd_of,
    usd_of_calls,
)
from study.cell.folder import CellFolder
from study.cell.records import part_name, write_rows
from study.config.schema import Cost, Executor, Judge, Price, Simulated
from study.errors import UserError

PRICED = Judge(name="dear", price=Price(input=1.0, output=2.0))


def row(usd: float | None = 0.01, cached: bool = False, finish: str = "stop", attempts: int = 1):
    return {"cost_usd": usd, "from_cache": cached, "finish_reason": finish, "attempts": attempts}


def save(folder: Path, step: int, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    table = pa.Table.from_pylist([{"step": step} | one for one in rows])
    write_rows(folder / part_name(step), table)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (Cost(max_calls=25), r"cost\.max_calls=25 .*spent 20, .*took 10.*max_calls=50"),
        (Cost(max_calls=20), r"cost\.max_calls=20 .*spent 20"),  # which is just met
        (Cost(max_usd=0.25), r"cost\.max_usd=0\.25 .*spent \$0\.2000"),
    ],
)
def test_a_run_stops_before_a_limit_would_be_passed(cost: Cost, words: str) -> None:
    budget = Budget(cost, [PRICED])
    for _ in range(2):
        budget.check()
        budget.add(10, [row()] * 10 + [row(cached=True, usd=0.0)])
    with pytest.raises(BudgetSpent, match=words):
        budget.check()
    assert budget.spent.calls == 20


def test_a_run_stops_at_a_limit_that_can_be_typed_and_without_one_nowhere() -> None:
    budget = Budget(Cost(max_calls=1_000_001), [PRICED], (Spent(999_999), Spent(100)))
    with pytest.raises(BudgetSpent, match=r"max_calls=1000001 .*cost\.max_calls=2000002$"):
        budget.check()
    budget = Budget(Cost(), [Judge(name="free")])
    budget.add(10**9, [row(usd=1e9)])
    budget.check()


def test_what_an_endpoint_kept_counts_as_the_mean_and_dollars_need_a_price() -> None:
    rows = [row(0.02), row(0.04), row(None), row(None, finish=""), row(0.0, cached=True)]
    assert usd_of(rows) == pytest.approx(0.09)
    assert usd_of([row(None)]) == 0.0
    assert usd_of([]) == 0.0
    check_limits(Cost(max_usd=1.0), [PRICED, Judge(name="sim", simulated=Simulated())])
    check_limits(Cost(max_calls=1), [Judge(name="free")])
    with pytest.raises(UserError, match=r"judge=free has no price.*cost\.max_calls"):
        check_limits(Cost(max_usd=1.0), [PRICED, Judge(name="free")])
    with pytest.raises(UserError, match=r"executor=free has no price.*executor\.price\.input"):
        check_limits(Cost(max_usd=1.0), [PRICED, Executor(name="free")])


@pytest.mark.parametrize("cost", [Cost(max_usd=0.0), Cost(max_calls=0), Cost(max_usd=-1.0)])
def test_a_limit_that_allows_nothing_is_refused(cost: Cost) -> None:
    with pytest.raises(UserError, match=r"above 0\. Type for example: cost\.max_\w+=null$"):
        Budget(cost, [PRICED])


def test_a_resumed_cell_goes_on_counting(tmp_path: Path) -> None:
    assert spent_before(CellFolder(tmp_path)) == (Spent(), Spent())
    steps: list[list[dict[str, Any]]] = [
        [row(0.01), row(0.01, attempts=3)],
        [row(0.02), row(None, finish="", attempts=4), row(0.0, cached=True, attempts=9)],
    ]
    for number, rows in enumerate(steps, 1):
        save(tmp_path / "verdicts", number, rows)
    total, last = spent_before(CellFolder(tmp_path))
    assert (total.calls, last.calls) == (9, 5)
    assert (total.usd, last.usd) == pytest.approx((0.04, 0.02))
    with pytest.raises(BudgetSpent):
        Budget(Cost(max_calls=13), [PRICED], (total, last)).check()
    Budget(Cost(max_calls=14), [PRICED], (total, last)).check()


def test_calls_of_operators_count_too(tmp_path: Path) -> None:
    calls = [
        {"attempts": 2, "cost_usd": 0.02},
        {"attempts": 0, "cost_usd": 0.0},
        {"attempts": 1, "cost_usd": None},  # as the mean of the requests whose cost is known
    ]
    assert usd_of_calls(calls) == pytest.approx(0.03)
    budget = Budget(Cost(max_calls=10), [PRICED, Executor(name="free")])
    budget.add(4, [row(0.01)], calls)
    assert (budget.spent.calls, budget.spent.usd) == (4, pytest.approx(0.04))
    for kind, rows in (("verdicts", [row(0.01)]), ("calls", calls)):
        save(tmp_path / kind, 1, rows)
    total, last = spent_before(CellFolder(tmp_path))
    assert total == last == Spent(4, pytest.approx(0.04))
