"""What the judges of one folder of probes may cost together: ``cost.max_calls``, ``cost.max_usd``.

What the store holds is free and never held back. The rest is sent in batches that grow while the
limits have room for requests like the dearest before; what is left then is ``aborted``, unsent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from judges.aggregate import Got
from judges.budget import Spent, check_limits, usd_of
from judges.endpoint.client import Fetched
from study.verdict import Outcome

if TYPE_CHECKING:
    from study.schema import Cost, Judge

T = TypeVar("T")
MOST = 64
"""Requests of a batch, at most; the limits are looked at between batches."""
ROUNDING = 1e-9


class Allowance:
    """The running total of one folder, all judges and the rewriter together.

    Args:
        cost: the limits.
        judges: everybody who will be asked.
        before: what earlier commands spent on the same folder.

    Raises:
        UserError: a limit that allows nothing, or one in dollars for a judge without a price.
    """

    def __init__(self, cost: Cost, judges: Iterable[Judge], before: Spent | None = None) -> None:
        check_limits(cost, judges)
        self.cost = cost
        self.spent = before or Spent()
        self._seen: dict[str, tuple[int, Spent]] = {}
        """Judge -> requests of its last batch, and the dearest mean of a batch."""

    @property
    def reason(self) -> str:
        """Why something was not sent."""
        limits = {"max_calls": self.cost.max_calls, "max_usd": self.cost.max_usd}
        named = [f"cost.{name}={limit:g}" for name, limit in limits.items() if limit is not None]
        return f"not asked: {' and '.join(named)} had no room"

    def spend(
        self, judge: Judge, wanted: Sequence[T], send: Callable[[Sequence[T]], list[Got]]
    ) -> list[Got]:
        """Send what the limits have room for.

        Args:
            judge: who is asked.
            wanted: requests that the store cannot answer.
            send: sends some of them and waits.
        """
        got: list[Got] = []
        while len(got) < len(wanted):
            size = self._room(judge)
            if size == 0:
                nothing = Got(Fetched((), Outcome.aborted, self.reason, 0, 0.0), 0.0)
                return got + [nothing] * (len(wanted) - len(got))
            part = send(wanted[len(got) : len(got) + size])
            self._count(judge, part)
            got += part
        return got

    def _room(self, judge: Judge) -> int:
        """Requests that may be sent at once now."""
        if self.cost.max_calls is None and self.cost.max_usd is None:
            return sys.maxsize
        last, dearest = self._seen.get(judge.name, (0, Spent()))
        size = min(MOST, max(1, 2 * last))
        for limit, spent, each in (
            (self.cost.max_calls, self.spent.calls, max(1.0, dearest.calls)),
            (self.cost.max_usd, self.spent.usd, dearest.usd),
        ):
            if limit is None:
                continue
            if spent >= limit:
                return 0
            if each:
                size = min(size, int((limit - spent) / each + ROUNDING))
        return size

    def _count(self, judge: Judge, part: Sequence[Got]) -> None:
        sent = [got for got in part if not got.from_cache]
        rows = [
            {
                "from_cache": False,
                "finish_reason": bool(got.attempted.replies),
                "cost_usd": got.cost_usd,
            }
            for got in sent
        ]
        spent = Spent(sum(got.attempted.attempts for got in sent), usd_of(rows))
        self.spent += spent
        _, dearest = self._seen.get(judge.name, (0, Spent()))
        if sent:
            calls, usd = spent.calls / len(sent), spent.usd / len(sent)
            dearest = Spent(max(dearest.calls, math.ceil(calls)), max(dearest.usd, usd))
        self._seen[judge.name] = (len(part), dearest)
