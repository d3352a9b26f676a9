"""An event loop in a thread of its own, so that a trainer can ask many judges and just wait."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


AT_ONCE = 200
"""Coroutines that are started before replies get a turn again."""
LAST_S = 5.0
"""How long what runs in a loop may take to end once the loop is closed."""


async def gather(
    calls: Iterable[Callable[[], Coroutine[Any, Any, T]]], ended: Callable[[], None] = lambda: None
) -> list[T]:
    """Call all of them and await their results, in their order; ``ended`` is called at the end of
    each. If one raises, the others are cancelled."""
    tasks: list[asyncio.Task[T]] = []
    try:
        for number, call in enumerate(calls, 1):
            task = asyncio.create_task(call())
            task.add_done_callback(lambda _: ended())
            tasks.append(task)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return list(await asyncio.gather(*tasks))
    except BaseException:
        await cancel(tasks)
        raise


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Loop:
    """An event loop in a thread that starts on first use; ``shut`` is awaited before it ends."""

    def __init__(self, shut: Callable[[], Awaitable[None]]) -> None:
        self._shut = shut
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop: asyncio.AbstractEventLoop
        self._jobs: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop and wait for what it returns or raises."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt in this thread leaves nothing behind in the other
            raise

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop; to be awaited in any loop, this one too."""
        if threading.current_thread() is self._thread:
            return await work
        return await asyncio.wrap_future(self.submit(work))

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin ``work`` in the loop; to cancel the future cancels the work."""
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError("the session is closed")
            if self._thread is None:
                self._loop = self._runner.get_loop()
                self._thread = threading.Thread(target=self._main, name="judge", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(self._job(work), self._loop)

    def close(self) -> None:
        """End the loop and everything in it; a second call does nothing."""
        with self._lock:
            closed, self._closed = self._closed, True
        if self._thread is not None and not closed:
            ended = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            self._thread.join()
            ended.result()

    async def _job(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._jobs.add(task)
        try:
            return await work
        finally:
            self._jobs.discard(task)

    def _main(self) -> None:
        with self._runner:
            self._loop.run_forever()

    async def _end(self) -> None:
        try:
            await self._shut()
            # Those who wait for a verdict get their `aborted` before the loop is gone.
            if self._jobs:
                await asyncio.wait(self._jobs, timeout=LAST_S)
            # An interrupt may have come before anybody waited for a job, so that nobody ends it.
            await cancel(self._jobs)
        finally:
            self._loop.stop()
