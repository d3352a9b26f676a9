"""A client that asks the fault server, and the seconds that it took."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from judges.endpoint.client import Channel, Fetched, ask
from judges.endpoint.dialects import judge_body
from judges.endpoint.replicas import open_wire
from judges.reading import Retry
from study.schema import Endpoint, Grading, Judge, Sampling

DEADLINE_S = 2.5
IDLE_S = 0.6
SLACK_S = 1.25
"""For a busy machine; a call that hangs would be over it by a minute."""
TRIES = 3
MESSAGES = [{"role": "user", "content": "grade this"}]


def a_judge(url: str, **endpoint: Any) -> Judge:
    settings: dict[str, Any] = {
        "url": url,
        "model": "m",
        "deadline_s": DEADLINE_S,
        "idle_timeout_s": IDLE_S,
        "attempts": TRIES,
        "backoff_s": 0.01,
        "max_reply_bytes": 200_000,
    }
    return Judge(
        name="j",
        endpoint=Endpoint(**{**settings, **endpoint}),
        grading=Grading("one-word"),
        sampling=Sampling(max_tokens=8, seed=7),
    )


async def asking(channel: Channel, judge: Judge, grading: Any, index: int = 0) -> Fetched:
    body = judge_body(judge, grading.body(), MESSAGES, index)
    return await ask(channel, body, Retry(judge, body, grading.parse))


def asked(judge: Judge, grading: Any, key: str = "", count: int = 1) -> tuple[Any, Channel, float]:
    """What ``ask`` gave or raised, the channel, and the seconds it took."""

    async def main() -> tuple[Any, Channel, float]:
        wire = open_wire(judge.endpoint)
        channel = Channel(judge.endpoint, wire, key)
        start = time.monotonic()
        results = await asyncio.gather(
            *(asking(channel, judge, grading, index) for index in range(count)),
            return_exceptions=True,
        )
        wall = time.monotonic() - start
        await wire.close()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return results[0] if count == 1 else results, channel, wall

    return asyncio.run(main())
