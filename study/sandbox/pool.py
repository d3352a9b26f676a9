"""A warm pool: calls of untrusted code at the price of one fork each, none seeing another.

Each worker belongs to one thread for life, because a sandbox dies with the *thread* that made it.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future

from study.sandbox import tiers
from study.sandbox.calls import Call, Outcome, Result
from study.sandbox.inside.literal import dumps
from study.sandbox.worker import Broken, Worker

TRIES = 2


class Pool:
    """``workers`` sandboxes. Use it as a context, or `close` it.

    Attributes:
        tier: how calls are isolated, for the record of the run.
        outcomes: how many calls ended how.
    """

    def __init__(
        self, workers: int = 2, unsafe: bool = False, tier: tiers.Tier | None = None
    ) -> None:
        """Start the workers, on the best tier of this machine or the one that is given.
        Raises SandboxUnavailable: no tier is given, no isolation here, and ``unsafe`` is false."""
        self.tier = tier or tiers.find(unsafe)
        self.outcomes: Counter[Outcome] = Counter()
        self._calls: queue.SimpleQueue[tuple[Call, Future[Result]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Call) -> Future[Result]:
        """Queue one call. Raises NotLiteral: an argument is not a literal.
        Raises RuntimeError: the pool is closed."""
        dumps(list(call.args))
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("this pool is closed")
            self._calls.put((call, future))
        return future

    def run(self, calls: Iterable[Call]) -> list[Result]:
        """The results of ``calls``, in their order."""
        futures = [self.submit(call) for call in calls]
        return [future.result() for future in futures]

    def close(self) -> None:
        """Finish what is queued, then end every worker."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        worker: Worker | None = None
        while (item := self._calls.get()) is not None:
            call, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result, worker = self._ask(worker, call)
            except Exception as error:  # whoever waits must hear of it
                future.set_exception(error)
                continue
            with self._lock:
                self.outcomes[result.outcome] += 1
            future.set_result(result)
        if worker is not None:
            worker.close()

    def _ask(self, worker: Worker | None, call: Call) -> tuple[Result, Worker | None]:
        """The result, and the worker for the next call: none where this one must not be reused."""
        fault = ""
        for _ in range(TRIES):
            try:
                worker = worker or tiers.start(self.tier)
                result = worker.call(call)
            except Broken as error:
                fault = str(error)
            else:
                if not worker.dirty:
                    return result, worker
                worker.close()
                return result, None
            if worker is not None:
                worker.close()
                worker = None
        return Result(Outcome.SANDBOX, None, fault), None
