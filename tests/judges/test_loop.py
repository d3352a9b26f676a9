"""The loop in a thread of its own ends, whatever still runs in it."""

import asyncio
import concurrent.futures

import pytest

from judges.endpoint import loop
from judges.endpoint.loop import Loop


async def nothing() -> None:
    """There is nothing to shut."""


def test_a_job_that_nobody_waits_for_does_not_keep_the_loop_open(monkeypatch) -> None:
    monkeypatch.setattr(loop, "LAST_S", 0.01)
    jobs = Loop(nothing)
    endless = jobs.submit(asyncio.sleep(3600))
    jobs.run(asyncio.sleep(0))  # the first one has begun
    jobs.close()
    with pytest.raises(concurrent.futures.CancelledError):
        endless.result(timeout=0)


def test_a_job_that_ends_in_time_keeps_its_result() -> None:
    jobs = Loop(nothing)
    result = jobs.submit(asyncio.sleep(0.05, result=7))
    jobs.run(asyncio.sleep(0))
    jobs.close()
    assert result.result(timeout=0) == 7
    with pytest.raises(RuntimeError, match="closed"):
        jobs.run(asyncio.sleep(0))
