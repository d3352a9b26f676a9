"""A client that asks the fault server, or an application on a clock of its own, for one word."""

import asyncio
from collections.abc import Iterable
from typing import Any

from judges.ask.reading import Retry
from judges.endpoint.client import Channel, Fetched, ask
from judges.endpoint.dialects import judge_body
from judges.endpoint.replicas import open_wire
from judges.endpoint.transport import Asgi
from judges.grading.base import NOTHING, OneRequest
from study.config.schema import Endpoint, Grading, Judge, Sampling
from study.verdict import Outcome, Parsed, Reply, Request
from tests.waiting import on_own_clock

DEADLINE_S = 6.0
IDLE_S = 1.5
"""Longer than a busy machine lets an answer wait that is there at once."""
TRIES = 3
BACKOFF_S = 0.01
MESSAGES = [{"role": "user", "content": "grade this"}]
APPLICATION = "asgi://application"
"""The address of a judge that is asked by `ask_on_own_clock`."""


class OneWord(OneRequest):
    """A grading whose replies are ``met`` or ``not_met`` and nothing else."""

    name = "one-word"
    version = "1"
    prompt_sha = "0" * 16
    option_names = ("body",)
    _template = ""

    def messages(self, row: Any, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{row.prompt_text()}\n---\n{answer}"}]

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        return dict(self.options.get("body", {}))

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        if reply.finish_reason == "length":
            return Parsed(Outcome.truncated, reason="cut by the token limit")
        if not reply.text:
            return Parsed(Outcome.empty, reason="only thinking" if reply.reasoning else "no text")
        if reply.text == "explode":
            raise IndexError("a bug in the parser")
        if reply.text not in ("met", "not_met"):
            return Parsed(Outcome.unparsed, reason="neither met nor not_met")
        return Parsed(Outcome.scored, (reply.text,), float(reply.text == "met"))


def a_judge(url: str, **endpoint: Any) -> Judge:
    settings: dict[str, Any] = {
        **{"url": url, "model": "m", "deadline_s": DEADLINE_S, "idle_timeout_s": IDLE_S},
        **{"attempts": TRIES, "backoff_s": BACKOFF_S, "max_reply_bytes": 200_000},
        **endpoint,
    }
    return Judge(
        name="j",
        endpoint=Endpoint(**settings),
        grading=Grading("one-word"),
        sampling=Sampling(max_tokens=8, seed=7),
    )


async def asking(channel: Channel, judge: Judge, grading: Any, index: int = 0) -> Fetched:
    body = judge_body(judge, grading.body(), MESSAGES, index)
    return await ask(channel, body, Retry(judge, body, grading.parse))


async def _ask(
    judge: Judge, grading: Any, app: Asgi | None, key: str, count: int
) -> tuple[Any, Channel, float]:
    wire = open_wire(judge.endpoint, app)
    channel = Channel(judge.endpoint, wire, key)
    clock = asyncio.get_running_loop().time
    start = clock()
    results = await asyncio.gather(
        *(asking(channel, judge, grading, index) for index in range(count)), return_exceptions=True
    )
    seconds = clock() - start
    await wire.close()
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left
    return results[0] if count == 1 else results, channel, seconds


def ask_judge(judge: Judge, grading: Any, key: str = "", count: int = 1) -> tuple[Any, Channel]:
    """What ``ask`` gave or raised, and the channel."""
    return asyncio.run(_ask(judge, grading, None, key, count))[:2]


def ask_on_own_clock(
    judge: Judge, grading: Any, app: Asgi, count: int = 1
) -> tuple[Any, Channel, float]:
    """What ``ask`` gave or raised, the channel, and the seconds by the clock of the event loop."""
    return on_own_clock(_ask(judge, grading, app, "", count))


def playing(answers: Iterable[bytes], after_s: float = 0.0) -> Asgi:
    """An application that gives these answers of the fault server, one after the other."""
    turns = iter(answers)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        head, _, body = next(turns).partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        headers = [tuple(each.split(b": ", 1)) for each in lines]
        await asyncio.sleep(after_s)
        status = int(line.split()[1])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app
