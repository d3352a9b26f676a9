"""A judge of known bias behind the OpenAI chat-completions protocol, as an ASGI application.

It gets nothing but the messages, like any judge: it finds the task row by the prompt in them and
asks its own oracle for the rule truth, so truth never crosses the wire.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from experiments.config import Judge
from experiments.errors import UserError
from experiments.tasks.row import Truth
from judges.bias import TRANSIENT, Bias
from judges.fence import fenced
from judges.grading.likert import MARKER

Oracle = Callable[[str, str], Truth | None]
"""(prompt text, answer) -> what the rules say, None for an unknown prompt."""

LOGPROB_FLOOR = -9999.0
"""What vLLM writes for a probability of 0: JSON has no infinity."""
PIECE = 4
"""Characters per streamed chunk, and per token where tokens are counted."""
OFF_MENU = "It is hard to put this into one grade."


class Unanswerable(Exception):
    """A request that a judge cannot serve; becomes an error response."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Question:
    """One request, taken apart."""

    prompt: str
    answer: str
    words: tuple[str, str] | None
    """The positive and the negative word of a choice; None where a number is asked for."""
    logprobs: bool
    content: bytes
    """Hash of the messages and the seed: what makes a question the same question."""
    characters: int


@dataclass(frozen=True)
class Said:
    """What the judge says."""

    text: str
    finish_reason: str = "stop"
    logprobs: list[dict[str, Any]] | None = None


def simulated_app(judge: Judge, oracle: Oracle, calls_before: int = 0) -> Starlette:
    """The application of one simulated judge.

    Args:
        judge: its ``simulated`` settings, and the name that it reports.
        oracle: finds the rule truth of (prompt text, answer).
        calls_before: questions that count as already asked, for the drift of a resumed run.

    Raises:
        UserError: the judge has no ``simulated`` settings, or they mean nothing.
    """
    server = SimulatedJudge(judge, oracle, calls_before)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", server.complete, methods=["POST"]),
            Route("/v1/models", server.models),
            Route("/health", server.health),
        ]
    )


class SimulatedJudge:
    """The endpoints and the two counters that a judge remembers between questions."""

    def __init__(self, judge: Judge, oracle: Oracle, calls_before: int = 0) -> None:
        if judge.simulated is None:
            raise UserError(
                f"judge={judge.name} has no `simulated` settings, so it cannot be simulated; type"
                " for example judge=sim-fair."
            )
        self._model = judge.endpoint.model or judge.name
        self._bias = Bias(judge.simulated)
        self._seed = judge.simulated.seed
        self._oracle = oracle
        self._calls = calls_before
        self._asked: Counter[bytes] = Counter()

    async def health(self, _: Request) -> Response:
        """Says that the server is up."""
        return JSONResponse({"status": "ok"})

    async def models(self, _: Request) -> Response:
        """The one model there is."""
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "judgedrift"}
        return JSONResponse({"object": "list", "data": [model]})

    async def complete(self, request: Request) -> Response:
        """One chat completion, plain or as server-sent events."""
        try:
            body = read_body(await request.body())
            if body.get("model") not in (None, "", self._model):
                raise Unanswerable(
                    404, f"The model {body['model']!r} does not exist here.", "model_not_found"
                )
            question = read_question(body)
            truth = self._oracle(question.prompt, question.answer)
            if truth is None:
                raise Unanswerable(404, "No task row has this prompt.", "unknown_prompt")
        except Unanswerable as refusal:
            return error(refusal.status, str(refusal), refusal.code)
        nth = self._asked[question.content]
        self._asked[question.content] += 1
        calls, self._calls = self._calls, self._calls + 1
        draw = generator(self._seed, question.content, nth)
        value, failure = self._bias.decide(question.answer, truth, draw, calls)
        if failure in TRANSIENT and nth:
            failure = None
        if failure == "hang":
            await _gone(request)
            return Response(status_code=503)
        if failure == "http_500":
            return error(500, "The simulated judge failed on this request.", "internal_error")
        if failure == "rate_limited":
            response = error(429, "Too many requests to the simulated judge.", "rate_limited")
            response.headers["retry-after"] = "0"
            return response
        said = spoil(failure, grade(value, question))
        usage = count(question.characters, len(said.text))
        head = {
            "id": f"chatcmpl-{question.content.hex()}-{nth}",
            "created": 0,
            "model": self._model,
        }
        if not body.get("stream"):
            return JSONResponse(plain(head, said, usage))
        options = body.get("stream_options")
        with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        events = stream(head, said, usage if with_usage else None)
        return StreamingResponse(_paced(events), media_type="text/event-stream")


def read_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        Unanswerable: it is none.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Unanswerable(400, "The body is not a JSON object.", "invalid_json")
    return body


def read_question(body: dict[str, Any]) -> Question:
    """What is asked, found in the messages as a judge finds it.

    Raises:
        Unanswerable: no messages, no fenced prompt and answer, or no form of reply asked for.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Unanswerable(400, "`messages` must be a list of chat turns.", "invalid_messages")
    found = [turn.get("content") if isinstance(turn, dict) else None for turn in messages]
    turns = [content for content in found if isinstance(content, str)]
    if len(turns) < len(found):
        raise Unanswerable(400, "The content of every turn must be text.", "invalid_messages")
    if body.get("n") not in (None, 1):
        raise Unanswerable(400, "`n` must be 1.", "invalid_n")
    text = "\n".join(turns)
    prompt, answer = fenced("prompt", text), fenced("answer", text)
    if prompt is None or answer is None:
        raise Unanswerable(404, "The messages hold no fenced prompt and answer.", "unknown_prompt")
    words = _choice(body)
    if words is None and MARKER not in text:
        raise Unanswerable(400, f"Ask for {MARKER} or for one of two words.", "unknown_grading")
    canonical = json.dumps([messages, body.get("seed")], sort_keys=True).encode()
    content = hashlib.blake2b(canonical, digest_size=12).digest()
    return Question(prompt, answer, words, bool(body.get("logprobs")), content, len(text))


def _choice(body: dict[str, Any]) -> tuple[str, str] | None:
    wanted = body.get("structured_outputs")
    choice = wanted.get("choice") if isinstance(wanted, dict) else None
    if choice is None:
        return None
    if not isinstance(choice, list) or [type(word) for word in choice] != [str, str]:
        raise Unanswerable(400, "A choice is between two words.", "invalid_choice")
    return choice[0], choice[1]


def generator(seed: int, content: bytes, nth: int) -> random.Random:
    """The random numbers of the n-th time that one question is asked."""
    digest = hashlib.blake2b(f"{seed} {nth} ".encode() + content, digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))


def grade(value: float, question: Question) -> Said:
    """A verdict in [0, 1] in the form that was asked for."""
    if question.words is None:
        number = f"{100 * value:.6f}".rstrip("0").rstrip(".")
        return Said(f"[[{number}]]")
    positive, negative = question.words
    said = positive if value >= 0.5 else negative
    if not question.logprobs:
        return Said(said)
    chances = {positive: value, negative: 1.0 - value}
    top = [
        {"token": word, "logprob": math.log(chance) if chance > 0 else LOGPROB_FLOOR}
        for word, chance in sorted(chances.items(), key=lambda item: -item[1])
    ]
    token = next(item for item in top if item["token"] == said)
    return Said(said, logprobs=[{**token, "top_logprobs": top}])


def spoil(failure: str | None, said: Said) -> Said:
    """What is left of a reply after a failure that still gives one."""
    if failure == "unparsed":
        return Said(OFF_MENU)
    if failure == "empty":
        return Said("")
    if failure == "truncated":
        return Said(said.text[: len(said.text) // 2], "length")
    if failure == "refused":
        return Said("", "content_filter")
    return said


def count(asked: int, answered: int) -> dict[str, Any]:
    """The usage of a request, with a token per four characters."""
    prompt, completion = math.ceil(asked / PIECE), math.ceil(answered / PIECE)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def plain(head: dict[str, Any], said: Said, usage: dict[str, Any]) -> dict[str, Any]:
    """The completion as one object."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": said.text},
        "logprobs": None if said.logprobs is None else {"content": said.logprobs},
        "finish_reason": said.finish_reason,
    }
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def stream(head: dict[str, Any], said: Said, usage: dict[str, Any] | None) -> Iterator[str]:
    """The completion as server-sent events: role, content, finish, usage if wanted, end."""
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


async def _paced(events: Iterator[str]) -> Any:
    """Starlette would run a plain iterator in a thread, at a cost above that of the verdict."""
    for event in events:
        yield event


async def _gone(request: Request) -> None:
    """Wait until the client gives up."""
    while (await request.receive())["type"] != "http.disconnect":
        await asyncio.sleep(0.05)


def error(status: int, message: str, code: str) -> JSONResponse:
    """An error as OpenAI's API words it."""
    kind = "invalid_request_error" if status < 500 and status != 429 else code
    body = {"message": message, "type": kind, "param": None, "code": code}
    return JSONResponse({"error": body}, status_code=status)
