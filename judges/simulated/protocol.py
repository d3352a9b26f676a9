"""OpenAI's chat-completions protocol, as simulated judges and executors speak it: routes, errors,
and a reply as one object or as server-sent events."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
from collections.abc import AsyncIterator, Mapping
from typing import TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from judges.simulated.reply_format import Message, Unanswerable
from study.rows import Missing, RuleTruth, Truth

PIECE = 4
"""Characters per streamed chunk, and per token where tokens are counted."""
THOUGHT = 16
"""Characters per streamed chunk of reasoning, of which there is much."""


class Head(TypedDict):
    """What every object of one reply begins with."""

    id: str
    created: int
    model: str


class Usage(TypedDict):
    """The tokens of one reply."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class Simulated:
    """The routes of one simulated ``model``; what is answered is said by `reply`."""

    def __init__(self, model: str) -> None:
        self._model = model

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/health", self.health),
            ]
        )

    async def reply(self, body: Mapping[str, object], request: Request) -> Response:
        """The response to a body. Raises Unanswerable: it has none."""
        raise NotImplementedError

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
            headers = {"retry-after": f"{refusal.retry_after_s:g}"} if status == 429 else None
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
        return await self.reply(body, request)

    def respond(
        self, body: Mapping[str, object], message: Message, prompt: int, completion: int, id: str
    ) -> Response:
        """What is said, in the form that the body asks for; ``prompt`` and ``completion`` are
        tokens, ``id`` is of this reply."""
        usage: Usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        head: Head = {"id": f"chatcmpl-{id}", "created": 0, "model": self._model}
        if not body.get("stream"):
            return JSONResponse(plain(head, message, usage))
        options = body.get("stream_options")
        with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        events = stream(head, message, usage if with_usage else None)
        return StreamingResponse(events, media_type="text/event-stream")


async def hang(request: Request) -> Response:
    """No answer, for as long as the client waits."""
    while (await request.receive())["type"] != "http.disconnect":
        await asyncio.sleep(0.05)
    return Response(status_code=503)


def truths_of(rule_truths: list[RuleTruth]) -> list[Truth]:
    """The truths that were asked for. Raises Unanswerable: there is none, of a prompt that no row
    has, or one could not be had."""
    if None in rule_truths:
        raise Unanswerable(404, "No task row has this prompt.", "unknown_prompt")
    if lost := next((truth for truth in rule_truths if isinstance(truth, Missing)), None):
        # A status that is not asked again: whoever finds truths has tried as often as it may.
        message = f"The rule truth is missing: {lost.reason}"
        raise Unanswerable(424, message, "no_truth")
    return [truth for truth in rule_truths if isinstance(truth, Truth)]


def tokens(characters: int) -> int:
    """Approximate tokens of a text, by its characters."""
    return math.ceil(characters / PIECE)


def generator(seed: int, content: bytes, nth: int) -> random.Random:
    """The random numbers of the n-th time that one question is asked."""
    digest = hashlib.blake2b(f"{seed} {nth} ".encode() + content, digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))


def _thought(message: Message) -> dict[str, str]:
    return {message.reasoning_field: message.reasoning} if message.reasoning else {}


def plain(head: Head, message: Message, usage: Usage) -> dict[str, object]:
    """The completion as one object."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": message.text} | _thought(message),
        "logprobs": None if message.logprobs is None else {"content": message.logprobs},
        "finish_reason": message.finish_reason,
    }
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


async def stream(head: Head, message: Message, usage: Usage | None) -> AsyncIterator[str]:
    """The completion as server-sent events: role, reasoning, content, finish, usage if wanted, end.

    Asynchronous, since Starlette runs a plain iterator in a thread, at a cost above the verdict's.
    """
    opening = {**head, "object": "chat.completion.chunk"}

    def event(delta: dict[str, str], finish: str | None = None, logprobs: object = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _event({**opening, "choices": [choice]})

    yield event({"role": "assistant", "content": ""})
    for start in range(0, len(message.reasoning), THOUGHT):
        yield event({message.reasoning_field: message.reasoning[start : start + THOUGHT]})
    if message.logprobs is not None:
        yield event({"content": message.text}, logprobs={"content": message.logprobs})
    else:
        for start in range(0, len(message.text), PIECE):
            yield event({"content": message.text[start : start + PIECE]})
    yield event({}, message.finish_reason)
    if usage is not None:
        yield _event({**opening, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _event(chunk: Mapping[str, object]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"
