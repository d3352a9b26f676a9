"""Sends one request until it has a reply, within one deadline; each failure has its outcome.

Only this file repeats calls to a model. A failed attempt is repeated while the deadline lasts. A
reply that cannot be used is asked for again with a request that the caller has changed, since at
temperature 0 the same question has the same answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judges.endpoint.chat_completions import (
    NAME_CHARACTERS,
    BadCompletion,
    ErrorBody,
    Stored,
    Stream,
    clean,
    is_requested_model,
    read_plain,
)
from judges.endpoint.dialects import Body
from judges.endpoint.embeddings import EMBEDDINGS, read_vector
from judges.endpoint.failures import (
    ERROR_BYTES,
    FINAL,
    EndpointRefused,
    Fault,
    read_error,
    shorten_message,
)
from judges.endpoint.throttle import Slot, Throttle
from judges.endpoint.transport import Answer, TooLarge, Unreachable, Unsolicited, Wire, WireError
from study.config.schema import Endpoint
from study.screen import one_line
from study.verdict import Outcome, Parsed, Reply, Request

LONGEST_WAIT_S = 30.0
WRONG_MODELS = 2
"""Replies of another model before it is the outcome: a router may flap."""
MOST_LISTED = 10_000
"""Models of an endpoint's list that are read."""
BARRED_S = 30.0
"""How long nothing is sent after a final refusal."""
REST_S = 1.0
"""How long a stream may go on after its finish reason, to bring the usage and `[DONE]`."""
DRAIN_S = 0.1
"""How long to wait for the end of a stream after `[DONE]`, to keep its connection."""
MANY_REFUSALS = 8
"""Refusals in a row that are not about single questions any more."""
CHARACTERS_PER_TOKEN = 4
"""For an estimate before the endpoint has counted."""

Again = Callable[[Reply], tuple[Body, str] | None]
"""Reply -> a changed request and what it changes; None if the reply is good enough."""

NO_REQUEST, UNREAD = Request(), Parsed(Outcome.empty, reason="it was not read")


@dataclass(frozen=True)
class Fetched:
    """How one request ended: its replies, oldest first, or why there is none."""

    replies: tuple[Reply, ...] = ()
    outcome: Outcome | None = None
    """Why the last attempt failed; None if it brought a reply."""
    reason: str = ""
    attempts: int = 0
    latency_s: float = 0.0
    served: str = ""
    """The model that answered, if not the one asked for."""
    request: Request = NO_REQUEST
    reply: Reply | None = None
    """The one among the replies that counts; None until they are read."""
    parsed: Parsed = UNREAD
    """What it says, or why there is none."""
    cost_usd: float | None = None
    """What it cost now; None if unknown."""
    from_cache: bool = False
    """Whether it came from the store or another request in flight."""

    @classmethod
    def stored(cls, value: Stored) -> Fetched:
        """From a value of the store: it cost nothing now."""
        return cls(
            tuple(Reply(**reply) for reply in value["replies"]),
            Outcome(value["outcome"]) if "outcome" in value else None,
            value.get("reason", ""),
            value["attempts"],
            value["latency_s"],
            value.get("served", ""),
            cost_usd=0.0,
            from_cache=True,
        )

    def value(self) -> Stored:
        """The value for the store; that of a failure is only told to those who wait."""
        value: Stored = {
            "replies": [dataclasses.asdict(reply) for reply in self.replies],
            "attempts": self.attempts,
            "latency_s": round(self.latency_s, 4),
        }
        if self.outcome is not None:
            value |= {"outcome": self.outcome.value, "reason": self.reason, "served": self.served}
        return value


@dataclass
class Channel:
    """An endpoint as this process uses it: the wire, the key, the limits and the call count."""

    endpoint: Endpoint
    wire: Wire
    key: str = field(default="", repr=False)
    folder: Path | None = None
    """Where limits are shared with other processes; None keeps them to this one."""
    calls: int = 0
    """Requests for verdicts sent so far, failed ones too."""
    throttle: Throttle = field(init=False)
    jitter: random.Random = field(default_factory=random.Random, repr=False)
    """Its own generator: a retry must not move the random numbers of the training."""
    refusal: EndpointRefused | None = None
    """The last one, where no reply has come since."""
    refusals: int = 0
    """How many have come since the last reply."""
    answers: int = 0
    """Replies so far."""
    barred_until: float = float("-inf")
    """By the event loop's clock: ``refusal`` is the answer to whatever is asked before."""

    def __post_init__(self) -> None:
        self.throttle = Throttle(self.endpoint, self.folder)

    @property
    def refused(self) -> EndpointRefused | None:
        """The refusal that holds for all verdicts, or None.

        That of a key, an account or a model does. "Forbidden" may be about one question: it holds
        for all only if nothing was ever answered, or after `MANY_REFUSALS` in a row.
        """
        refusal = self.refusal
        if refusal is None:
            return None
        final = refusal.why in FINAL or not self.answers or self.refusals >= MANY_REFUSALS
        return refusal if final else None

    def answered(self) -> None:
        """A reply came, so earlier refusals do not hold."""
        self.refusal, self.refusals, self.barred_until = None, 0, float("-inf")
        self.answers += 1

    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        plain = {"content-type": "application/json"}
        return plain | ({"authorization": f"Bearer {self.key}"} if self.key else {})


@dataclass
class _Track:
    """The state of one `ask`, for when the deadline ends it."""

    deadline: float
    """By the event loop's clock."""
    slot: Slot | None = None
    tokens: float = 0.0
    """About how many the prompt has."""
    permit: float | None = None
    """Tokens reserved for the next request, if it may be sent already."""
    replies: list[Reply] = field(default_factory=list)
    attempts: int = 0
    waiting: Fault | None = None
    """The fault before the next attempt, while nothing is in flight."""
    wrong: int = 0
    """Replies that came from another model."""


async def ask(
    channel: Channel, body: Body, again: Again | None = None, within_s: float | None = None
) -> Fetched:
    """Obtain a reply to one request, within ``endpoint.deadline_s`` from when it may be sent.

    ``again`` says how to ask for a better reply; ``within_s`` is another limit, for a follow-up in
    the time that is left. If the endpoint refuses the key, the account or the model, the outcome is
    ``endpoint_down`` and ``channel.refused`` says whether all requests are refused."""
    limit = channel.endpoint.deadline_s if within_s is None else within_s
    clock = asyncio.get_running_loop().time
    texts = (
        [turn["content"] for turn in body["messages"]] if "messages" in body else [body["input"]]
    )
    tokens = sum(map(len, texts)) / CHARACTERS_PER_TOKEN
    async with channel.throttle.slot() as slot:
        if channel.refusal is not None and clock() < channel.barred_until:
            return Fetched((), Outcome.endpoint_down, str(channel.refusal))
        waited = clock()
        try:
            permit = await channel.throttle.permit(tokens, limit)
        except Fault as late:
            return Fetched((), late.outcome, late.reason, 0, clock() - waited)
        started = clock()
        track = _Track(started + limit, slot, tokens, permit)
        fault = None
        try:
            async with asyncio.timeout_at(track.deadline):
                await _converse(channel, body, again, track)
        except Fault as error:
            fault = error
        except EndpointRefused as refusal:
            channel.refusal = refusal
            channel.refusals += 1
            if refusal.why in FINAL:
                channel.barred_until = clock() + BARRED_S
            return Fetched((), Outcome.endpoint_down, str(refusal), track.attempts)
        except TimeoutError:
            late = f"no reply within {limit:g} s"
            fault = track.waiting or Fault(Outcome.timeout, late)
            if track.waiting is not None:
                fault.reason += f"; {late}"
        finally:
            if track.permit is not None:
                channel.throttle.unused(track.permit)
        fetched = Fetched(tuple(track.replies), None, "", track.attempts, clock() - started)
    if fault is None:
        return fetched
    return dataclasses.replace(
        fetched, outcome=fault.outcome, reason=fault.reason, served=fault.served
    )


async def list_models(channel: Channel) -> list[str] | None:
    """The names of the models that the endpoint lists; None if it has no list.
    Raises EndpointRefused: it does not accept the key.
    Raises Fault, TimeoutError: it does not answer, not in time, or with something else."""

    async def read(answer: Answer, alive: Callable[[], None]) -> list[str] | None:
        try:
            model_list = json.loads((await _whole(answer, alive)).decode())
            names = [model["id"] for model in model_list["data"][:MOST_LISTED]]
            return [
                one_line(shorten_message(name, channel.key), NAME_CHARACTERS)
                for name in names
                if isinstance(name, str)
            ]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise Fault(
                Outcome.transport, "its list of models is not a list", again=False
            ) from None

    deadline = asyncio.get_running_loop().time() + channel.endpoint.deadline_s
    async with asyncio.timeout_at(deadline):
        try:
            return await _obtain(channel, "GET", "/models", b"", read, _Track(deadline))
        except EndpointRefused as refusal:
            if refusal.status == 404:
                return None
            raise


async def _converse(channel: Channel, body: Body, again: Again | None, track: _Track) -> None:
    embeds = "input" in body
    path, read_whole = (EMBEDDINGS, read_vector) if embeds else ("/chat/completions", read_plain)
    stream = channel.endpoint.stream and not embeds
    asked_model = ""

    async def read(answer: Answer, alive: Callable[[], None]) -> Reply:
        if stream:
            reply = await _read_stream(
                answer, alive, channel.endpoint.idle_timeout_s, track.deadline
            )
        else:
            reply = read_whole(await _whole(answer, alive))
        reply = clean(reply, channel.key)
        if is_requested_model(asked_model, reply.model, channel.endpoint.served_as):
            return reply
        track.wrong += 1
        raise Fault(
            Outcome.wrong_model,
            f"{reply.model!r} answered and {asked_model!r} was asked for",
            again=track.wrong < WRONG_MODELS,
            served=reply.model,
        )

    request: tuple[Body, str] | None = (body, "")
    while request is not None:
        body, change = request
        asked_model = str(body.get("model") or "")
        if stream:
            body = body | {"stream": True, "stream_options": {"include_usage": True}}
        payload = json.dumps(body).encode()
        reply = await _obtain(channel, "POST", path, payload, read, track)
        if change:
            reply = dataclasses.replace(reply, asked=change)
        track.replies.append(reply)
        request = None if again is None else again(reply)


async def _obtain(
    channel: Channel, method: str, path: str, body: bytes, read: Any, track: _Track
) -> Any:
    """Try up to ``endpoint.attempts`` times, with full jitter, while the deadline lasts."""
    endpoint = channel.endpoint
    clock = asyncio.get_running_loop().time
    connected = False
    for number in itertools.count():
        permit, track.permit = track.permit, None
        if permit is None:
            permit = await channel.throttle.permit(track.tokens, track.deadline - clock())
        track.waiting = None
        track.attempts += 1
        began, answers = clock(), channel.answers
        sent = channel.throttle.send()
        try:
            reply = await _once(channel, method, path, body, read)
            if isinstance(reply, Reply):
                channel.answered()
                channel.throttle.concurrency.answered(clock() - began)
                channel.throttle.settle(permit, reply.tokens_in, reply.tokens_out)
                channel.throttle.end(sent, refused=False)
            return reply
        except Fault as fault:
            overrun, uncounted_s = fault.overrun, 0.0
            if overrun:
                channel.throttle.end(sent, refused=True, asked_s=fault.wait_s)
                uncounted_s = channel.throttle.uncounted_s(sent)
                await asyncio.sleep(uncounted_s)  # the pace may change
            connected |= fault.outcome is not Outcome.endpoint_down
            if connected and fault.outcome is Outcome.endpoint_down:
                # it answered a moment ago, so it is not down
                fault.outcome = Outcome.transport
            fault.reason = shorten_message(fault.reason, channel.key)
            if not fault.again or number + 1 >= endpoint.attempts:
                raise
            scale = min(LONGEST_WAIT_S, endpoint.backoff_s * 2**number)
            left_s = max(0.0, fault.wait_s - uncounted_s)
            wait = left_s + channel.jitter.uniform(0.0, scale)
            if left_s >= track.deadline - clock():
                fault.reason += f"; it asks to wait {fault.wait_s:g} s, past the deadline"
                raise
            track.waiting = fault
        finally:
            channel.throttle.end(sent)
        others_pass = channel.answers > answers
        if (overrun or others_pass) and track.slot is not None:
            async with track.slot.left():  # this call has to wait, and no other
                await asyncio.sleep(wait)
        else:
            await asyncio.sleep(wait)


async def _once(channel: Channel, method: str, path: str, body: bytes, read: Any) -> Any:
    """One attempt; it ends if nothing new comes for ``endpoint.idle_timeout_s``.
    Raises Fault: it failed. Raises EndpointRefused: no later one can fare better."""
    idle_s = channel.endpoint.idle_timeout_s
    channel.calls += method == "POST"
    loop = asyncio.get_running_loop()
    last = loop.time()
    timer: asyncio.TimerHandle | None = None

    def alive() -> None:
        """Something new has come."""
        nonlocal last
        last = loop.time()

    def look() -> None:
        """End the attempt, or look again later: cheaper than moving a timer at each piece."""
        nonlocal timer
        if last + idle_s <= loop.time():
            idle.reschedule(last + idle_s)
        else:
            timer = loop.call_at(last + idle_s, look)

    try:
        async with asyncio.timeout(None) as idle:
            look()
            headers = channel.headers()
            async with channel.wire.exchange(method, path, headers, body) as answer:
                if answer.status != 200:
                    return read_error(answer, await _begin(answer), channel.key)
                try:
                    return await read(answer, alive)
                except ErrorBody as error:
                    return read_error(answer, error.body, channel.key)
    except TimeoutError:
        raise Fault(Outcome.timeout, f"nothing new for {idle_s:g} s") from None
    except Unreachable as error:
        raise Fault(Outcome.endpoint_down, str(error)) from None
    except TooLarge as error:
        raise Fault(Outcome.transport, str(error), again=False) from None
    except (WireError, BadCompletion) as error:
        raise Fault(Outcome.transport, str(error)) from None
    finally:
        if timer is not None:
            timer.cancel()


async def _read_stream(
    answer: Answer, alive: Callable[[], None], idle_s: float, deadline: float
) -> Reply:
    """The reply, once its stream has ended or stays open although it has said that it is finished.
    What may still come then is not waited for until the limits of the attempt."""
    kind = answer.headers.get("content-type", "nothing")
    if not kind.lower().startswith("text/event-stream"):
        raise BadCompletion(f"a stream was asked for, and {kind} came")
    clock = asyncio.get_running_loop().time
    stream = Stream()
    silent = False
    try:
        async with asyncio.timeout(None) as rest:
            async for data in answer.chunks:
                before = (stream.finished, stream.done)
                if stream.feed(data):
                    alive()
                if (stream.finished, stream.done) != before:
                    wait_s = DRAIN_S if stream.done else REST_S
                    left_s = min(idle_s, deadline - clock())  # a whole answer is never late
                    rest.reschedule(clock() + min(wait_s, left_s / 2))
    except (WireError, TimeoutError) as error:
        # A connection that is lost or silent after the last word has lost nothing.
        complete = stream.done or (stream.finished and not isinstance(error, TooLarge))
        if isinstance(error, Unsolicited) or not complete:
            raise
        silent = isinstance(error, TimeoutError)
    return stream.end(silent)


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
