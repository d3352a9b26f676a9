"""A simulated judge as an ASGI application that speaks OpenAI's chat-completions protocol.

Like any judge it gets only the messages. It finds the task row by the prompt in them and asks its
own oracle for the rule truth, so the truth is never sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from judges.grading.reply_format import Said, Unanswerable, judged, read_question, spoil
from judges.simulated.bias import Bias, check
from judges.simulated.truths import Single, Truths
from study.errors import UserError
from study.oracle import Oracle
from study.rows import Missing, Truth
from study.schema import Judge
from study.simulated import DOMAINS, in_domain

TRANSIENT = {
    "http_500": (500, "The simulated judge failed on this request.", "internal_error"),
    "rate_limited": (429, "Too many requests to the simulated judge.", "rate_limited"),
}
"""Failures that are over when the same question is asked again, and what they answer."""
PIECE = 4
"""Characters per streamed chunk, and per token where tokens are counted."""


def simulated_app(judge: Judge, oracle: Oracle | Single, calls_before: int = 0) -> Starlette:
    """The application of one simulated judge; ``calls_before`` are questions answered before, for
    the drift of a resumed run.
    Raises UserError: the judge has no ``simulated`` settings, or one is not legal."""
    server = SimulatedJudge(judge, oracle, calls_before)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", server.complete, methods=["POST"]),
            Route("/v1/models", server.models),
            Route("/health", server.health),
        ]
    )


class SimulatedJudge:
    """The routes, and what is remembered between questions: how many came, and how often each."""

    def __init__(self, judge: Judge, oracle: Oracle | Single, calls_before: int = 0) -> None:
        if judge.simulated is None:
            raise UserError(
                f"judge={judge.name} has no `simulated` settings, so it cannot be simulated; type"
                " for example judge=sim-fair."
            )
        self._model = judge.endpoint.model or judge.name
        check(judge.simulated)
        self._bias = {name: Bias(in_domain(judge.simulated, name)) for name in ("", *DOMAINS)}
        """By the domain of a row; "" is of any other row."""
        self._truths = Truths(oracle)
        self._calls = calls_before
        self._asked: Counter[bytes] = Counter()

    async def health(self, _: Request) -> Response:
        """The server is up."""
        return JSONResponse({"status": "ok"})

    async def models(self, _: Request) -> Response:
        """The list of the one model."""
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "judgedrift"}
        return JSONResponse({"object": "list", "data": [model]})

    async def complete(self, request: Request) -> Response:
        """One chat completion, plain or as server-sent events."""
        try:
            return await self._complete(request)
        except Unanswerable as refusal:
            status, code = refusal.status, refusal.code
            # as OpenAI's API words it
            kind = "invalid_request_error" if status < 500 and status != 429 else code
            body = {"message": str(refusal), "type": kind, "param": None, "code": code}
            headers = {"retry-after": "0"} if status == 429 else None
            return JSONResponse({"error": body}, status, headers)

    async def _complete(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise Unanswerable(400, "The body is not a JSON object.", "invalid_json")
        if body.get("model") not in (None, "", self._model):
            raise Unanswerable(
                404, f"The model {body['model']!r} does not exist here.", "model_not_found"
            )
        question = read_question(body)
        row, told = await self._truths.of(question.prompt, question.answers)
        truths = [truth for truth in told if isinstance(truth, Truth)]
        if None in told:
            raise Unanswerable(404, "No task row has this prompt.", "unknown_prompt")
        if lost := next((truth for truth in told if isinstance(truth, Missing)), None):
            # A status that is not asked again: whoever finds truths has tried as often as it may.
            message = f"The rule truth could not be had: {lost.reason}"
            raise Unanswerable(424, message, "no_truth")
        bias = self._bias.get(row.domain if row else "", self._bias[""])
        nth = self._asked[question.content]
        self._asked[question.content] += 1
        calls, self._calls = self._calls, self._calls + 1
        draw = generator(bias.seed, question.content, nth)
        verdict, failure = judged(bias, question, truths, draw, calls)
        if failure == "hang":
            while (await request.receive())["type"] != "http.disconnect":
                await asyncio.sleep(0.05)
            return Response(status_code=503)
        if failure in TRANSIENT and not nth:
            raise Unanswerable(*TRANSIENT[failure])
        reply = spoil(failure, verdict)
        prompt, completion = (
            math.ceil(characters / PIECE) for characters in (question.characters, len(reply.text))
        )
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        head = {
            "id": f"chatcmpl-{question.content.hex()}-{nth}",
            "created": 0,
            "model": self._model,
        }
        if not body.get("stream"):
            return JSONResponse(plain(head, reply, usage))
        options = body.get("stream_options")
        with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        events = stream(head, reply, usage if with_usage else None)
        return StreamingResponse(events, media_type="text/event-stream")


def generator(seed: int, content: bytes, nth: int) -> random.Random:
    """The random numbers of the n-th time that one question is asked."""
    digest = hashlib.blake2b(f"{seed} {nth} ".encode() + content, digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))


def plain(head: dict[str, Any], said: Said, usage: dict[str, Any]) -> dict[str, Any]:
    """The completion as one object."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": said.text},
        "logprobs": None if said.logprobs is None else {"content": said.logprobs},
        "finish_reason": said.finish_reason,
    }
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


async def stream(
    head: dict[str, Any], said: Said, usage: dict[str, Any] | None
) -> AsyncIterator[str]:
    """The completion as server-sent events: role, content, finish, usage if wanted, end.

    Asynchronous, since Starlette runs a plain iterator in a thread, at a cost above the verdict's.
    """
    head = {**head, "object": "chat.completion.chunk"}

    def event(delta: dict[str, Any], finish: str | None = None, **extra: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **extra}
        return _event({**head, "choices": [choice]})

    yield event({"role": "assistant", "content": ""})
    if said.logprobs is not None:
        yield event({"content": said.text}, logprobs={"content": said.logprobs})
    else:
        for start in range(0, len(said.text), PIECE):
            yield event({"content": said.text[start : start + PIECE]})
    yield event({}, said.finish_reason)
    if usage is not None:
        yield _event({**head, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"
