"""The endpoint of a rehearsal: every named model at a path of its own, as its profile says.

It speaks the protocol of simulated judges (`judges.simulated.protocol`) and reads what they read.
Its verdicts are drawn and judge nothing. What a real endpoint does besides is here: a reply takes
its time, a reasoning model thinks first, a hosted one wants a key, may answer as a stream alone and
sends back what passes its limits. All times are divided by one factor.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount

from experiments.rehearsal.filler import text_of
from experiments.rehearsal.profiles import Draw, Profile
from judges.endpoint.dialects import dialect_of
from judges.endpoint.throttle import RateLimit
from judges.serving.server import ANY_PORT, listen
from judges.simulated import protocol
from judges.simulated.bias import Bias
from judges.simulated.operators import SimulatedOperators
from judges.simulated.protocol import generator, hang, tokens
from judges.simulated.reply_format import (
    Message,
    Unanswerable,
    judged,
    read_messages,
    read_question,
    spoil,
)
from study.config.schema import Model, Simulated
from study.config.simulated_executor import SimulatedExecutor
from study.rows import Truth
from study.truth.oracle import Oracle

PAUSES = 8
"""Pieces in which a streamed reply comes."""
LATE = "late"
"""Outcome of a request whose reply would take longer than it is waited for."""
END_S = 60.0
VERDICTS = Simulated(noise_sd=0.15, tpr=0.9, fpr=0.2)
"""Turns a drawn truth into a verdict, so that the answers of a group differ in reward."""

Say = Callable[[Mapping[str, object], Request], Awaitable[Message]]
"""(body, request) -> what a model that works at once would say."""


@dataclass(frozen=True)
class Pace:
    """What is divided in a rehearsal."""

    factor: float
    """Of all times."""
    share: float
    """Of the limits on requests and tokens: that of a step's rollouts which is rehearsed."""


def address(model: Model) -> str:
    """The path of a model below the endpoint's address, which is unlike that of any other."""
    return f"{model.role}/{model.name}"


class Rehearsed(protocol.Simulated):
    """One named model.

    Args:
        say: what it says; when, and what comes instead, is the profile's.
        note: called with a line for each request.
    """

    def __init__(
        self,
        model: Model,
        profile: Profile,
        say: Say,
        pace: Pace,
        note: Callable[[Mapping[str, object]], None],
    ) -> None:
        super().__init__(model.endpoint.model or model.name)
        self._served, self._profile, self._say = model, profile, say
        self._factor, self._write = pace.factor, note
        self._request_counts: Counter[bytes] = Counter()
        requests, count = (
            None if limit is None else limit * pace.share
            for limit in (profile.requests_per_min, profile.tokens_per_min)
        )
        self._limit = RateLimit(
            requests, count, clock=lambda: time.monotonic() * pace.factor, boot=""
        )

    async def reply(self, body: Mapping[str, object], request: Request) -> Response:
        """The reply, or the failure in its place, once its time has passed."""
        self._refuse(body, request)
        turns, content = read_messages(body)
        nth = self._request_counts[content]
        self._request_counts[content] += 1
        random_numbers = generator(1, content, nth)
        draw = self._profile.draw(random_numbers)
        message = await self._say(body, request)
        is_forced = bool(body.get("structured_outputs") or body.get("response_format"))
        message, completion = _whole(message, draw, body, is_forced, random_numbers)
        message = replace(
            spoil(draw.failure, message),
            reasoning=message.reasoning,
            reasoning_field=self._reasoning_field,
        )
        prompt = tokens(sum(map(len, turns)))
        self._keep_limits(prompt + completion)
        seconds, failure = draw.seconds(completion), draw.failure
        patience_s = self._served.endpoint.deadline_s
        if not body.get("stream"):  # nothing new comes before all of it
            patience_s = min(patience_s, self._served.endpoint.idle_timeout_s)
        if failure == "hang" or seconds > patience_s:
            self._note(failure if failure == "hang" else LATE, patience_s, prompt, 0)
            return await hang(request)
        await asyncio.sleep(draw.first_token_s / self._factor)
        if failure == "http_500":
            self._note(failure, draw.first_token_s, prompt, 0)
            raise Unanswerable(500, "The rehearsed model failed on this request.", "internal_error")
        rest_s = (seconds - draw.first_token_s) / self._factor
        response = self.respond(body, message, prompt, completion, f"{content.hex()}-{nth}")
        self._note(failure or message.finish_reason, seconds, prompt, completion)
        if isinstance(response, StreamingResponse):
            response.body_iterator = _paced(response.body_iterator, rest_s)
        else:
            await asyncio.sleep(rest_s)
        return response

    @property
    def _reasoning_field(self) -> str:
        hosted = self._served.endpoint.dialect.startswith("dashscope")
        return "reasoning_content" if hosted else "reasoning"

    def _refuse(self, body: Mapping[str, object], request: Request) -> None:
        """Raises Unanswerable: the model is not asked as it has to be."""
        if self._served.endpoint.api_key_env and "authorization" not in request.headers:
            raise Unanswerable(401, "An API key is needed.", "invalid_api_key")
        if dialect_of(self._served).stream == "required" and not body.get("stream"):
            raise Unanswerable(400, "This model only supports streaming.", "invalid_parameter")

    def _keep_limits(self, count: int) -> None:
        """Raises Unanswerable: the request passes a limit."""
        wait_s = self._limit.reserve(1, count)
        if wait_s > 0:
            self._limit.reserve(-1, -count)
            self._note("rate_limited", 0.0, 0, 0)
            raise Unanswerable(
                429, "Requests rate limit exceeded.", "rate_limited", wait_s / self._factor
            )

    def _note(self, outcome: str, seconds: float, prompt: int, completion: int) -> None:
        self._write(
            {
                "model": address(self._served),
                "outcome": outcome,
                "seconds": round(seconds, 4),
                "tokens_in": prompt,
                "tokens_out": completion,
            }
        )


def _whole(
    message: Message, draw: Draw, body: Mapping[str, object], is_forced: bool, random_numbers: Any
) -> tuple[Message, int]:
    """What is said with what is thought and told besides, and its tokens; cut off by the request's
    limit on tokens, as a real reply is."""
    spoken = 0 if is_forced else draw.spoken_tokens
    count = draw.reasoning_tokens + spoken + tokens(len(message.text))
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    if not isinstance(limit, int) or count <= limit:
        prose = f"{text_of(spoken, random_numbers)}\n" if spoken else ""
        thought = text_of(draw.reasoning_tokens, random_numbers)
        return replace(message, text=prose + message.text, reasoning=thought), count
    thought = text_of(min(draw.reasoning_tokens, limit), random_numbers)
    prose = text_of(max(0, limit - draw.reasoning_tokens), random_numbers)
    return Message(prose, "length", reasoning=thought), limit


async def _paced(events: Any, seconds: float) -> AsyncIterator[str]:
    """The events of a stream over so many seconds, in `PAUSES` pieces."""
    every = [event async for event in events]
    size = max(1, math.ceil(len(every) / PAUSES))
    for start in range(0, len(every), size):
        await asyncio.sleep(seconds / PAUSES)
        yield "".join(every[start : start + size])


def drawn_verdicts(model: Model) -> Say:
    """Verdicts in the form that is asked for, of truths that are drawn: they judge nothing."""
    bias, seed = Bias(VERDICTS), zlib.crc32(address(model).encode())

    async def say(body: Mapping[str, object], request: Request) -> Message:
        question = read_question(body)
        random_numbers = generator(seed, question.content, 0)
        truths = [Truth(random_numbers.random()) for _ in question.answers]
        message, _ = judged(bias, question, truths, random_numbers, 0)
        return message

    return say


def table_executor(settings: SimulatedExecutor, model: Model, oracle: Oracle) -> Say:
    """What the simulated executor of ``settings`` says to an operator's prompt."""
    inside = SimulatedOperators(settings, model.endpoint.model, oracle)

    async def say(body: Mapping[str, object], request: Request) -> Message:
        response = await inside.reply({**body, "stream": False}, request)
        choice = json.loads(bytes(response.body))["choices"][0]
        return Message(choice["message"]["content"], choice["finish_reason"])

    return say


class RehearsalEndpoint:
    """The server, in a thread of its own; a context manager.

    Args:
        models: each model with its profile and what it says.
        pace: what is divided.
        log: file of lines of JSON to which each request is added.
    Raises UserError: it cannot listen.
    """

    def __init__(self, models: Sequence[tuple[Model, Profile, Say]], pace: Pace, log: Path) -> None:
        self._models, self._pace, self._log = models, pace, log
        self.port = 0

    def url(self, model: Model) -> str:
        """Where a model answers."""
        return f"http://127.0.0.1:{self.port}/{address(model)}/v1"

    def __enter__(self) -> RehearsalEndpoint:
        import uvicorn

        served = {
            address(model): Rehearsed(model, profile, say, self._pace, self._note)
            for model, profile, say in self._models
        }
        app = Starlette(
            routes=[Mount(f"/{where}", app=each.app()) for where, each in served.items()]
        )
        listener = listen("127.0.0.1", 0, ANY_PORT)
        self.port = listener.getsockname()[1]
        self._file: TextIO = self._log.open("a", encoding="utf-8", buffering=1)
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        self._thread.start()
        return self

    def _note(self, line: Mapping[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(END_S)
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The requests that an endpoint noted; a line that a kill cut off is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines
