"""A warm pool: calls of untrusted code at the price of one fork each, none seeing another.

Each worker belongs to one thread for life, because a sandbox dies with the *thread* that made it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from study.sandbox import tiers
from study.sandbox.calls import Call, Outcome, Result
from study.sandbox.inside.literal import dumps
from study.sandbox.worker import Broken

TRIES = 2


class Crew:
    """``workers`` processes that answer calls one by one. ``start`` starts each when it is first
    needed; it is ended where it must not be used again. Use it as a context, or `close` it.

    A worker has ``call(call)``, which raises Broken where the worker failed; ``dirty``, which says
    whether to throw it away; and ``close()``.

    Attributes:
        outcomes: how many calls ended how.
    """

    def __init__(self, workers: int, start: Callable[[], Any]) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self._start = start
        self._threads = ThreadPoolExecutor(workers)
        self._workers: dict[int, Any] = {}
        """Thread -> the worker that it has started."""
        self._lock = threading.Lock()

    def submit(self, call: Any) -> Future[Result]:
        """Queue one call. Raises RuntimeError: it is closed."""
        return self._threads.submit(self._ask, call)

    def run(self, calls: Iterable[Any]) -> list[Result]:
        """The results of ``calls``, in their order."""
        futures = [self.submit(call) for call in calls]
        return [future.result() for future in futures]

    def close(self) -> None:
        """Finish what is queued, then end every worker."""
        self._threads.shutdown()
        while self._workers:
            self._workers.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, call: Any) -> Result:
        """Make a call in this thread's worker, which is ended where it must not be used again."""
        thread = threading.get_ident()
        result = Result(Outcome.SANDBOX)
        for _ in range(TRIES):
            try:
                if thread not in self._workers:
                    self._workers[thread] = self._start()
                result = self._workers[thread].call(call)
                is_dirty = self._workers[thread].dirty
            except Broken as error:
                result, is_dirty = Result(Outcome.SANDBOX, None, str(error)), True
            if is_dirty and (worker := self._workers.pop(thread, None)) is not None:
                worker.close()
            if result.outcome is not Outcome.SANDBOX:
                break
        with self._lock:
            self.outcomes[result.outcome] += 1
        return result


class Pool(Crew):
    """A crew of ``workers`` sandboxes.

    Attributes:
        tier: how calls are isolated, for the record of the run.
    """

    def __init__(
        self, workers: int = 2, unsafe: bool = False, tier: tiers.Tier | None = None
    ) -> None:
        """Start the workers, on the best tier of this machine or the one that is given.
        Raises SandboxUnavailable: no tier is given, no isolation here, and ``unsafe`` is false."""
        self.tier = tier or tiers.find(unsafe)
        super().__init__(workers, self.start)

    def start(self) -> Any:
        """A new worker."""
        return tiers.start(self.tier)

    def submit(self, call: Call) -> Future[Result]:
        """Queue one call. Raises NotLiteral: an argument is not a literal.
        Raises RuntimeError: the pool is closed."""
        dumps(list(call.args))
        return super().submit(call)
