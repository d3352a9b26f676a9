"""Keeps a cell within ``cost.max_usd`` and ``cost.max_calls``.

The limits are checked before each step, so a step is either paid for and recorded or not begun;
the evaluation at its end counts with it.
The cell stops, and goes on from there once the limit is raised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from study.cell.folder import CellFolder
from study.cell.parts import Part, read_part
from study.cell.records import CALLS, EVAL_COST, MISSING
from study.config.schema import Cost, Model, freeze
from study.errors import UserError


class BudgetSpent(UserError):
    """The next step may pass a limit; the run stops here and can be resumed."""


@dataclass(frozen=True)
class Spent:
    """Requests sent and US dollars paid for them."""

    calls: int = 0
    usd: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.calls + other.calls, self.usd + other.usd)


class Budget:
    """The running total of one cell, the acting judge and the shadow judges together; ``before`` is
    what earlier processes of this cell spent, and of that the last step; ``last_evaluation`` what
    the last evaluation of held-out rows did.
    Raises UserError: a limit that allows nothing, or one in dollars for a judge without a price."""

    def __init__(
        self,
        cost: Cost,
        models: Iterable[Model],
        before: tuple[Spent, Spent] = (Spent(), Spent()),
        last_evaluation: Spent = Spent(),
    ) -> None:
        check_limits(cost, models)
        self.cost = cost
        self.spent, self.last = before
        self.last_evaluation = last_evaluation

    def check(self, evaluates: bool = False) -> None:
        """Raise if another step like the last one does not fit; one that ``evaluates`` takes as
        much as the last evaluation besides.
        Raises BudgetSpent: with the limit, what is spent and how to go on."""
        after = self.spent + self.last + (self.last_evaluation if evaluates else Spent())
        evaluated = " and evaluation" if evaluates else ""
        for name, limit, spent, step, shown, typed in (
            ("max_calls", self.cost.max_calls, self.spent.calls, after.calls, "{:d}", "{:d}"),
            ("max_usd", self.cost.max_usd, self.spent.usd, after.usd, "${:.4f}", "{:g}"),
        ):
            if limit is not None and (spent >= limit or step > limit):
                raise BudgetSpent(
                    f"cost.{name}={typed.format(limit)} has no room for another step: this cell has"
                    f" spent {shown.format(spent)}, and its last step{evaluated} took "
                    f"{shown.format(step - spent)}. To resume, raise the limit and rerun the"
                    f" command with cost.{name}={typed.format(2 * limit)}"
                )

    def add(
        self,
        calls: int,
        verdicts: Sequence[PricedVerdict],
        operators: Sequence[PricedCall] = (),
    ) -> None:
        """Count one step: its requests, and the rows of its verdicts and of the calls of
        ``operators`` for what they cost."""
        self.last = Spent(calls, usd_of(verdicts) + usd_of_calls(operators))
        self.spent += self.last

    def add_evaluation(self, calls: int, usd: float) -> None:
        """Count one evaluation of held-out rows."""
        self.last_evaluation = Spent(calls, usd)
        self.spent += self.last_evaluation


class PricedVerdict(TypedDict):
    """What of a `study.verdict.VerdictRow` says what it cost."""

    from_cache: bool
    finish_reason: str
    attempts: int
    cost_usd: float | None


class PricedCall(TypedDict):
    """What of a `study.cell.records.CallRow` says what it cost."""

    attempts: int
    cost_usd: float | None


def usd_of(verdicts: Sequence[PricedVerdict]) -> float:
    """Dollars of some verdict rows, as `usd_of_requests` counts those that were sent."""
    sent = [row for row in verdicts if not row["from_cache"] and row["finish_reason"]]
    return usd_of_requests([row["cost_usd"] for row in sent])


def usd_of_requests(costs: Sequence[float | None]) -> float:
    """Dollars of some requests. One of unknown cost counts as the mean of the others."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) * len(costs) / len(known) if known else 0.0


def usd_of_calls(calls: Sequence[PricedCall]) -> float:
    """Dollars of some rows of operator calls. One of unknown cost counts as the mean request."""
    sent = [row for row in calls if row["attempts"]]
    priced = [(usd, row["attempts"]) for row in sent if (usd := row["cost_usd"]) is not None]
    if not priced:
        return 0.0
    requests = sum(attempts for _, attempts in priced)
    each = sum(usd for usd, _ in priced) / requests
    return each * sum(row["attempts"] for row in sent)


def check_limits(cost: Cost, models: Iterable[Model]) -> None:
    """Refuse limits that cannot be kept.
    Raises UserError: a limit that allows nothing, or one in dollars for a judge without a price."""
    freeze(Cost, dataclasses.asdict(cost), "cost.")
    if cost.max_usd is None:
        return
    for model in models:
        if not model.computed and not (model.price.input or model.price.output):
            raise UserError(
                f"cost.max_usd={cost.max_usd} cannot be kept: {model.role}={model.name} has no "
                f"price. Give it one in US dollars per million tokens, {model.role}.price.input=..."
                f" {model.role}.price.output=..., or limit the calls instead: cost.max_calls=10000"
            )


def evaluations_before(folder: CellFolder) -> list[Spent]:
    """What each recorded evaluation of a cell spent, in order."""
    costs = [[line["metrics"].get(name) for name in EVAL_COST] for line in folder.lines()]
    return [Spent(round(calls), usd or 0.0) for calls, usd in costs if calls is not None]


def spent_before(folder: CellFolder) -> tuple[Spent, Spent]:
    """What the recorded steps and evaluations of a cell spent, and of that the last step; reused
    replies are free. A step that was stopped because verdicts were missing counts too.
    Raises UserError: a part that cannot be read."""

    def spent(part: Part | Path) -> Spent:
        rows = [dict.fromkeys(columns) | row for row in read_part(part, columns).to_pylist()]
        calls = sum(row["attempts"] or 0 for row in rows if not row["from_cache"])
        return Spent(calls, usd_of(rows))

    def executed(part: Part | Path) -> Spent:
        rows = read_part(part, ["attempts", "cost_usd"]).to_pylist()
        return Spent(sum(row["attempts"] for row in rows), usd_of_calls(rows))

    columns = ["from_cache", "finish_reason", "attempts", "cost_usd"]
    steps = {part.step: spent(part) for part in folder.parts("verdicts")}
    for part in folder.parts(CALLS):
        steps[part.step] = steps.get(part.step, Spent()) + executed(part)
    missing_folder = folder / MISSING
    missing = [spent(part) for part in sorted((missing_folder / "verdicts").glob("*.parquet"))]
    missing += [executed(part) for part in sorted((missing_folder / CALLS).glob("*.parquet"))]
    total = sum([*steps.values(), *missing, *evaluations_before(folder)], Spent())
    return total, list(steps.values())[-1] if steps else Spent()
