"""An event loop in a thread of its own, so that a trainer can ask many judges and just wait."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


AT_ONCE = 200
"""Coroutines that are begun before replies get a turn again."""


async def gather(calls: Iterable[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Call all of them and await what they give, in their order; where one raises the others are
    given up."""
    tasks: list[asyncio.Task[T]] = []
    try:
        for number, call in enumerate(calls, 1):
            tasks.append(asyncio.create_task(call()))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class Loop:
    """An event loop in a thread that starts on first use and ends with everything in it."""

    def __init__(
        self, opened: Callable[[], Awaitable[None]], shut: Callable[[], Awaitable[None]]
    ) -> None:
        self._opened, self._shut = opened, shut
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._jobs: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop and wait for what it gives or raises."""
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt in this thread leaves nothing behind in the other
            raise

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop; to be awaited in any loop, this one too."""
        if threading.current_thread() is self._thread:
            return await work
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError("the session is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="judge", daemon=True)
                self._thread.start()
            self._ready.wait()
            return asyncio.run_coroutine_threadsafe(self._job(work), self._loop)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _job(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._jobs.add(task)
        try:
            return await work
        finally:
            self._jobs.discard(task)

    def _main(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self._opened()
        self._ready.set()
        await self._stop.wait()
        await self._shut()
        # Those who wait for a verdict get their `aborted` before the loop is gone.
        await asyncio.gather(*self._jobs, return_exceptions=True)
