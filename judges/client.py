"""Asks a judge once: one owner of retries, one deadline, and a typed reason for every failure.

Nothing else in the project repeats a judge call. A failure of the wire is tried again while the
deadline lasts; a reply that arrived but holds no grade is asked for once more, changed, since at
temperature 0 the same question has the same answer. Nothing here ever makes up a grade.
"""

from __future__ import annotations

import asyncio
import dataclasses
import email.utils
import json
import logging
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from judges.envelope import FILTERED, BadEnvelope, ErrorBody, Stream, excerpt, read_plain
from judges.secrets import redact
from judges.transport import Answer, TooLarge, Unreachable, Wire, WireError
from judges.verdict import Outcome, Parsed, Reply

if TYPE_CHECKING:
    from experiments.config import Endpoint, Judge

log = logging.getLogger(__name__)

AGAIN = {408, 409, 425, 429}
"""Besides 5xx, what a later attempt may cure."""
BARRED = {401, 402, 403, 404}
"""No later verdict will fare better: the key, the bill or the model's name is wrong."""
LONGEST_WAIT_S = 30.0
DRAIN_S = 0.1
"""How long the end of a finished stream may take, to keep its connection."""
ERROR_BYTES = 65_536
REMINDER = (
    "Your last reply could not be read. Answer now, and give only what was asked for, in exactly "
    "the format asked for."
)

_REFUSED = re.compile(
    rb"data_?inspection_?failed|content_filter|content_policy_violation|ResponsibleAIPolicy", re.I
)
_OUT_OF_CREDIT = re.compile(rb"insufficient_quota|arrearage|insufficient_balance", re.I)


class EndpointRefused(Exception):
    """The endpoint will not serve this judge at all: its key, its bill or its model is wrong."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.attempts = 1


class Fault(Exception):
    """One attempt failed; ``again`` says whether another one may fare better."""

    def __init__(
        self, outcome: Outcome, reason: str, again: bool = True, wait_s: float = 0.0
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.again = again
        self.wait_s = wait_s


@dataclass
class Channel:
    """An endpoint as this process uses it: the wire, the key, the free slots and the call count."""

    endpoint: Endpoint
    wire: Wire
    key: str = field(default="", repr=False)
    calls: int = 0
    """Requests for verdicts sent so far, failed ones too."""
    slots: asyncio.Semaphore = field(init=False)
    jitter: random.Random = field(default_factory=random.Random, repr=False)
    """Its own generator: a retry must not move the random numbers of the training."""

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.endpoint.max_concurrency)

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        plain = {"content-type": "application/json"}
        return plain | {"authorization": f"Bearer {self.key}"} if self.key else plain


@dataclass(frozen=True)
class Attempt:
    """What a fresh request for the same verdict changes: it reminds, or it allows more tokens."""

    remind: bool = False
    budget: int = 1


@dataclass(frozen=True)
class Attempted:
    """How asking ended: the replies that were obtained, oldest first, or why there is none."""

    replies: tuple[Reply, ...]
    outcome: Outcome | None
    """Why the last request brought nothing; None where it brought a reply."""
    reason: str
    attempts: int
    latency_s: float


@dataclass
class _Track:
    """What is known so far of one verdict; read when the deadline cuts the work short."""

    deadline: float
    """By the event loop's clock."""
    replies: list[Reply] = field(default_factory=list)
    attempts: int = 0
    waiting: Fault | None = None
    """Set while nothing is in flight: the fault that the next attempt should cure."""


def request_body(
    judge: Judge,
    grading: Any,
    messages: Sequence[dict[str, str]],
    sample_index: int,
    attempt: Attempt = Attempt(),
) -> dict[str, Any]:
    """The JSON body of one request: the one place that knows what an endpoint is sent.

    ``grading.body()`` and then ``endpoint.extra_body`` overrule what the sampling gives. Whether
    the answer is streamed is the transport's choice and is added on sending.
    """
    sampling, endpoint = judge.sampling, judge.endpoint
    turns = list(messages)
    if attempt.remind:
        # In the last turn and not in one more: many chat templates want roles to alternate.
        last = turns[-1]
        turns[-1] = {**last, "content": f"{last['content']}\n\n{REMINDER}"}
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": turns,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        endpoint.max_tokens_field: sampling.max_tokens,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed + sample_index
    extra = dict(grading.body())
    if "max_tokens" in extra:  # gradings do not know how the endpoint spells it
        extra[endpoint.max_tokens_field] = extra.pop("max_tokens")
    body |= extra
    body |= endpoint.extra_body
    if attempt.budget > 1:
        body[endpoint.max_tokens_field] *= attempt.budget
    return body


def settle(grading: Any, replies: Sequence[Reply]) -> tuple[Reply, Parsed]:
    """Read the replies to one question: the first that holds a grade counts, else the last."""
    reply, parsed = replies[-1], Parsed(Outcome.empty)
    for reply in replies:
        parsed = _read(grading, reply)
        if parsed.outcome in (Outcome.scored, Outcome.refused):
            break
    return reply, parsed


async def ask(
    channel: Channel,
    judge: Judge,
    grading: Any,
    messages: Sequence[dict[str, str]],
    sample_index: int = 0,
) -> Attempted:
    """Obtain one verdict's reply, within ``endpoint.deadline_s`` from when a slot is free.

    Raises:
        EndpointRefused: the endpoint serves this judge nothing at all.
    """
    outcome, reason = None, ""
    limit = judge.endpoint.deadline_s
    clock = asyncio.get_running_loop().time
    async with channel.slots:
        started = clock()
        track = _Track(started + limit)
        try:
            async with asyncio.timeout_at(track.deadline):
                await _converse(channel, judge, grading, messages, sample_index, track)
        except Fault as fault:
            outcome, reason = fault.outcome, fault.reason
        except EndpointRefused as refusal:
            refusal.attempts = track.attempts
            raise
        except TimeoutError:
            late = f"no reply within {limit:g} s"
            if track.waiting is None:
                outcome, reason = Outcome.timeout, late
            else:
                outcome, reason = track.waiting.outcome, f"{track.waiting.reason}; {late}"
        latency = clock() - started
    return Attempted(tuple(track.replies), outcome, reason, track.attempts, latency)


async def list_models(channel: Channel) -> list[str] | None:
    """The names of the models that the endpoint says it serves; None where it has no such list.

    Raises:
        EndpointRefused: it does not accept the key.
        Fault: it does not answer, or not as a judge's endpoint does.
        TimeoutError: not within the deadline.
    """

    async def read(answer: Answer, alive: Callable[[], None]) -> list[str] | None:
        try:
            listed = json.loads((await _whole(answer, alive)).decode())
            return [model["id"] for model in listed["data"] if isinstance(model["id"], str)]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise Fault(Outcome.transport, "its list of models is not one", again=False) from None

    deadline = asyncio.get_running_loop().time() + channel.endpoint.deadline_s
    async with asyncio.timeout_at(deadline):
        try:
            return await _obtain(channel, "GET", "/models", b"", read, _Track(deadline))
        except EndpointRefused as refusal:
            if refusal.status == 404:
                return None
            raise


async def _converse(
    channel: Channel,
    judge: Judge,
    grading: Any,
    messages: Sequence[dict[str, str]],
    sample_index: int,
    track: _Track,
) -> None:
    stream = channel.endpoint.stream
    read = _read_stream if stream else _read_whole
    attempt: Attempt | None = Attempt()
    while attempt is not None:
        body = request_body(judge, grading, messages, sample_index, attempt)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        sent = json.dumps(body).encode()
        reply = await _obtain(channel, "POST", "/chat/completions", sent, read, track)
        track.replies.append(reply)
        # What a simulated judge fails at is a planted dose, which asking again would dilute.
        again = judge.simulated is None
        attempt = _another(attempt, _read(grading, reply).outcome) if again else None


def _another(attempt: Attempt, outcome: Outcome) -> Attempt | None:
    """The change that may cure a reply without a grade; None where there is nothing to try."""
    if outcome is Outcome.truncated and attempt.budget == 1:
        return dataclasses.replace(attempt, budget=2)
    if outcome in (Outcome.unparsed, Outcome.empty) and not attempt.remind:
        return dataclasses.replace(attempt, remind=True)
    return None


def _read(grading: Any, reply: Reply) -> Parsed:
    if reply.finish_reason == FILTERED:
        return Parsed(Outcome.refused, reason="the endpoint filtered the answer")
    try:
        return grading.parse(reply)
    except Exception as error:  # a parser's bug costs this verdict, not the run
        log.exception("the grading failed on a reply")
        return Parsed(Outcome.unparsed, reason=f"reading failed: {type(error).__name__}: {error}")


async def _obtain(
    channel: Channel, method: str, path: str, body: bytes, read: Any, track: _Track
) -> Any:
    """Try up to ``endpoint.attempts`` times, with full jitter, while the deadline lasts."""
    endpoint = channel.endpoint
    clock = asyncio.get_running_loop().time
    connected = False
    number = 0
    while True:
        number += 1
        track.waiting = None
        track.attempts += 1
        try:
            return await _once(channel, method, path, body, read)
        except Fault as fault:
            connected |= fault.outcome is not Outcome.endpoint_down
            if connected and fault.outcome is Outcome.endpoint_down:
                # It was there a moment ago: gone for one attempt is not down.
                fault.outcome = Outcome.transport
            fault.reason = redact(fault.reason, [channel.key])
            if not fault.again or number >= endpoint.attempts:
                raise
            scale = min(LONGEST_WAIT_S, endpoint.backoff_s * 2 ** (number - 1))
            wait = fault.wait_s + channel.jitter.uniform(0.0, scale)
            if fault.wait_s >= track.deadline - clock():
                fault.reason += f"; it asks to wait {fault.wait_s:g} s, past the deadline"
                raise
            track.waiting = fault
        await asyncio.sleep(wait)


async def _once(channel: Channel, method: str, path: str, body: bytes, read: Any) -> Any:
    idle_s = channel.endpoint.idle_timeout_s
    loop = asyncio.get_running_loop()
    channel.calls += method == "POST"
    try:
        async with asyncio.timeout(idle_s) as idle:

            def alive() -> None:
                idle.reschedule(loop.time() + idle_s)

            headers = channel.headers()
            async with channel.wire.exchange(method, path, headers, body) as answer:
                if answer.status != 200:
                    return _error(answer, await _begin(answer), channel.key)
                try:
                    return await read(answer, alive)
                except ErrorBody as error:
                    return _error(answer, error.body, channel.key)
    except TimeoutError:
        raise Fault(Outcome.timeout, f"nothing new for {idle_s:g} s") from None
    except Unreachable as error:
        raise Fault(Outcome.endpoint_down, str(error)) from None
    except TooLarge as error:
        raise Fault(Outcome.transport, str(error), again=False) from None
    except (WireError, BadEnvelope) as error:
        raise Fault(Outcome.transport, str(error)) from None


async def _read_whole(answer: Answer, alive: Callable[[], None]) -> Reply:
    return read_plain(await _whole(answer, alive))


async def _read_stream(answer: Answer, alive: Callable[[], None]) -> Reply:
    kind = answer.headers.get("content-type", "nothing")
    if not kind.startswith("text/event-stream"):
        raise BadEnvelope(f"a stream was asked for, and {kind} came")
    stream = Stream()
    try:
        async for data in answer.chunks:
            if stream.feed(data):
                alive()
            if stream.done:
                break
    except TooLarge:
        raise
    except WireError:
        if not stream.finished:  # a connection lost after the last word has lost nothing
            raise
    reply = stream.end()
    # Behind [DONE] there is only the end; having read it, the connection can be used again.
    with suppress(TimeoutError, WireError):
        async with asyncio.timeout(DRAIN_S):
            async for _ in answer.chunks:
                pass
    return reply


async def _whole(answer: Answer, alive: Callable[[], None]) -> bytes:
    parts = []
    async for data in answer.chunks:
        parts.append(data)
        alive()
    return b"".join(parts)


async def _begin(answer: Answer) -> bytes:
    """As much of an error's body as a message needs."""
    body = b""
    with suppress(WireError):
        async for data in answer.chunks:
            body += data
            if len(body) > ERROR_BYTES:
                break
    return body


def _error(answer: Answer, body: bytes, key: str) -> Reply:
    """An answer that is no completion: a refusal is a reply, all the rest is raised."""
    status = answer.status
    # Redact before cutting to length: half a key is still half a key.
    text = redact(body[:ERROR_BYTES].decode("utf-8", "replace"), [key]).encode()
    message = f"HTTP {status}: {excerpt(_message(text))}"
    if status < 500 and status != 429 and _REFUSED.search(body):
        return Reply(text="", finish_reason=FILTERED)
    if status in BARRED or _OUT_OF_CREDIT.search(body):
        raise EndpointRefused(status, excerpt(_message(text)))
    if status == 429:
        raise Fault(Outcome.rate_limited, message, wait_s=_retry_after(answer))
    if status in AGAIN or status >= 500 or status == 200:
        raise Fault(Outcome.transport, message, wait_s=_retry_after(answer))
    raise Fault(Outcome.transport, message, again=False)


def _message(body: bytes) -> bytes:
    """The message inside an error body, or the body."""
    try:
        found = json.loads(body)
        inner = found.get("error", found)
        return str(inner.get("message", inner) if isinstance(inner, dict) else inner).encode()
    except (ValueError, AttributeError, RecursionError):
        return body


def _retry_after(answer: Answer) -> float:
    """Seconds that the endpoint asks to wait: it gives seconds or a date; 0 where neither."""
    value = answer.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
