"""What the judges of one folder of probes may cost together: ``cost.max_calls``, ``cost.max_usd``.

What the store holds is free and never held back. The rest is sent in batches that grow while the
limits have room for requests like the dearest before; what is left then is ``aborted``, unsent.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence

from judges.ask.budget import Spent, check_limits, usd_of_requests
from judges.endpoint.client import Fetched
from study.config.schema import Cost, Model
from study.verdict import Outcome

MOST = 64
"""Requests of a batch, at most; the limits are looked at between batches."""
ROUNDING = 1e-9


class Allowance:
    """The running total of one folder, all judges and the rewriter together; ``before`` is what
    earlier commands spent on it.
    Raises UserError: a limit that allows nothing, or one in dollars for a judge without a price."""

    def __init__(self, cost: Cost, judges: Iterable[Model], before: Spent | None = None) -> None:
        check_limits(cost, judges)
        limits = {"max_calls": cost.max_calls, "max_usd": cost.max_usd}
        self._limits = {name: limit for name, limit in limits.items() if limit is not None}
        self.spent = before or Spent()
        self._last_batches: dict[str, tuple[int, Spent]] = {}
        """Judge -> requests of its last batch, and the dearest mean of a batch."""
        self._waiting: list[asyncio.Future[bool]] = []
        """Requests that wait for the next batch, in the order in which they came."""
        self._under_way = 0
        """Requests of the batch that have not ended."""
        self._batch: list[Fetched] = []

    @property
    def reason(self) -> str:
        """Why something was not sent."""
        limits = [f"cost.{name}={limit:g}" for name, limit in self._limits.items()]
        return f"not asked: {' and '.join(limits)} left no room"

    async def spend(self, judge: Model, send: Callable[[], Awaitable[Fetched]]) -> Fetched:
        """Send a request that the store cannot answer once the limits have room for it; without
        room it is ``aborted``."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit(judge)
        try:
            if not await turn:
                return Fetched((), Outcome.aborted, self.reason, cost_usd=0.0)
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.done() and not turn.cancelled() and turn.result():
                self._leave(judge)
            raise
        try:
            fetched = await send()
            self._batch.append(fetched)
            return fetched
        finally:
            self._leave(judge)

    def _admit(self, judge: Model) -> None:
        """Begin the next batch out of what waits, once the one before has ended."""
        if not self._waiting or (self._limits and self._under_way):
            return
        size = self._room(judge)
        waiting = [turn for turn in self._waiting if not turn.done()]
        batch = waiting[: size or None]
        self._waiting = waiting[len(batch) :]
        self._under_way += len(batch) if size else 0
        for turn in batch:
            turn.set_result(size > 0)

    def _leave(self, judge: Model) -> None:
        self._under_way -= 1
        if not self._under_way:
            batch, self._batch = self._batch, []
            self._count(judge, batch)
            self._admit(judge)

    def _room(self, judge: Model) -> int:
        """Requests that may be sent at once now."""
        if not self._limits:
            return sys.maxsize
        last, dearest = self._last_batches.get(judge.name, (0, Spent()))
        size = min(MOST, max(1, 2 * last))
        each = {"max_calls": max(1.0, dearest.calls), "max_usd": dearest.usd}
        spent_by_limit = {"max_calls": self.spent.calls, "max_usd": self.spent.usd}
        for name, limit in self._limits.items():
            if spent_by_limit[name] >= limit:
                return 0
            if each[name]:
                size = min(size, int((limit - spent_by_limit[name]) / each[name] + ROUNDING))
        return size

    def _count(self, judge: Model, batch: Sequence[Fetched]) -> None:
        sent = [fetched for fetched in batch if not fetched.from_cache]
        usd = usd_of_requests([fetched.cost_usd for fetched in sent if fetched.replies])
        spent = Spent(sum(fetched.attempts for fetched in sent), usd)
        self.spent += spent
        _, dearest = self._last_batches.get(judge.name, (0, Spent()))
        if sent:
            calls, usd = spent.calls / len(sent), spent.usd / len(sent)
            dearest = Spent(max(dearest.calls, math.ceil(calls)), max(dearest.usd, usd))
        self._last_batches[judge.name] = (len(batch), dearest)
