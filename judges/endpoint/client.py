"""Asks a judge once: one owner of retries, one deadline, and a typed reason for every failure.

Nothing else in the project repeats a judge call. A failure of the wire is tried again while the
deadline lasts; a reply that arrived but holds no grade is asked for once more, changed, since at
temperature 0 the same question has the same answer. Nothing here ever makes up a grade.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from judges.endpoint.channel import Channel
from judges.endpoint.chat_completions import FILTERED, BadEnvelope, ErrorBody, Stream, read_plain
from judges.endpoint.dialects import dialect_of, spell, spell_grading
from judges.endpoint.failures import ERROR_BYTES, FINAL, EndpointRefused, Fault, read_error, told
from judges.endpoint.fields import NAME_CHARACTERS, clean, one_line
from judges.endpoint.served import is_asked
from judges.endpoint.throttle import NoTurn
from judges.endpoint.transport import Answer, TooLarge, Unreachable, WireError
from study.verdict import Outcome, Parsed, Reply

if TYPE_CHECKING:
    from study.schema import Judge

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 30.0
LONGEST_PAUSE_S = 60.0
"""How long one answer can keep all others from being asked for: an endpoint may ask to be left
alone until next year, and it is asked again what it means."""
WRONG_MODELS = 2
"""Replies of another model before it is taken for what the endpoint serves: a router may flap."""
MOST_LISTED = 10_000
"""Models of an endpoint that are looked at."""
BARRED_S = 30.0
"""How long nothing is sent after the key, the account or the model's name was refused."""
DRAIN_S = 0.1
"""How long the end of a finished stream may take, to keep its connection."""
CHARACTERS_PER_TOKEN = 4
"""Enough to set aside tokens before the endpoint has counted them."""
REMINDER = (
    "Your last reply could not be read. Answer now, and give only what was asked for, in exactly "
    "the format asked for."
)


@dataclass(frozen=True)
class Attempt:
    """What a fresh request for the same verdict changes: it reminds, or it allows more tokens."""

    remind: bool = False
    budget: int = 1

    def __str__(self) -> str:
        changes = ["a format reminder"] * self.remind
        if self.budget > 1:
            changes.append(f"{self.budget} times the tokens")
        return f"with {' and '.join(changes)}" if changes else ""


@dataclass(frozen=True)
class Attempted:
    """How asking ended: the replies that were obtained, oldest first, or why there is none."""

    replies: tuple[Reply, ...]
    outcome: Outcome | None
    """Why the last request brought nothing; None where it brought a reply."""
    reason: str
    attempts: int
    latency_s: float
    served: str = ""
    """The model that answered, where it was another than the one asked for."""


@dataclass
class _Track:
    """What is known so far of one verdict; read when the deadline cuts the work short."""

    deadline: float
    """By the event loop's clock."""
    tokens: float = 0.0
    """About how many the prompt has."""
    permit: float | None = None
    """Tokens set aside for the next request, where it may be sent already."""
    replies: list[Reply] = field(default_factory=list)
    attempts: int = 0
    waiting: Fault | None = None
    """Set while nothing is in flight: the fault that the next attempt should cure."""
    wrong: int = 0
    """Replies that came from another model."""


def request_body(
    judge: Judge,
    grading: Any,
    messages: Sequence[dict[str, str]],
    sample_index: int,
    attempt: Attempt = Attempt(),
) -> dict[str, Any]:
    """The JSON body of one request: the one place that knows what an endpoint is sent.

    ``grading.body()`` and then ``endpoint.extra_body`` overrule what the sampling gives; of the
    token limit a grading may just say the least (``max_tokens_at_least``). Whether
    the answer is streamed is the transport's choice and is added on sending.
    """
    dialect, endpoint = dialect_of(judge), judge.endpoint
    limit = endpoint.max_tokens_field or dialect.max_tokens
    turns = list(messages)
    if attempt.remind:
        # In the last turn and not in one more: many chat templates want roles to alternate.
        last = turns[-1]
        turns[-1] = {**last, "content": f"{last['content']}\n\n{REMINDER}"}
    body: dict[str, Any] = {"model": endpoint.model, "messages": turns}
    body |= spell(dialect, judge, sample_index)
    extra = spell_grading(dialect, grading.body())
    if "max_tokens" in extra:  # gradings do not know how the endpoint spells it
        extra[limit] = extra.pop("max_tokens")
    if "max_tokens_at_least" in extra:
        body[limit] = max(body[limit], extra.pop("max_tokens_at_least"))
    body |= extra
    body |= endpoint.extra_body
    if attempt.budget > 1:
        body[limit] *= attempt.budget
    return body


def settle(grading: Any, replies: Sequence[Reply]) -> tuple[Reply, Parsed]:
    """Read the replies to one question: the first that holds a grade counts, else the last.

    The reason says what was changed to obtain it, where something was.
    """
    reply, parsed = replies[-1], Parsed(Outcome.empty)
    for reply in replies:
        parsed = _read(grading, reply)
        if parsed.outcome in (Outcome.scored, Outcome.refused):
            break
    if reply.asked:
        reason = "; ".join(part for part in (parsed.reason, f"asked again {reply.asked}") if part)
        parsed = dataclasses.replace(parsed, reason=reason)
    return reply, parsed


async def ask(
    channel: Channel,
    judge: Judge,
    grading: Any,
    messages: Sequence[dict[str, str]],
    sample_index: int = 0,
    within_s: float | None = None,
) -> Attempted:
    """Obtain one verdict's reply, within ``endpoint.deadline_s`` from when it may be asked for.

    ``within_s`` is another limit, for what is asked in the time that an earlier request left.

    Raises:
        EndpointRefused: the endpoint serves this judge nothing at all.
    """
    outcome, reason, served = None, "", ""
    limit = judge.endpoint.deadline_s if within_s is None else within_s
    clock = asyncio.get_running_loop().time
    tokens = sum(len(turn["content"]) for turn in messages) / CHARACTERS_PER_TOKEN
    async with channel.limits.place():
        if channel.refusal is not None and clock() < channel.barred_until:
            barred = EndpointRefused(*channel.refusal.parts)
            barred.attempts = 0
            raise barred
        waited = clock()
        try:
            permit = await channel.limits.permit(tokens, limit)
        except NoTurn as late:
            return Attempted((), Outcome.rate_limited, str(late), 0, clock() - waited)
        started = clock()
        track = _Track(started + limit, tokens, permit)
        try:
            async with asyncio.timeout_at(track.deadline):
                await _converse(channel, judge, grading, messages, sample_index, track)
        except Fault as fault:
            outcome, reason, served = fault.outcome, fault.reason, fault.served
        except EndpointRefused as refusal:
            refusal.attempts = track.attempts
            channel.refusal = refusal
            channel.refusals += 1
            if refusal.why in FINAL:
                channel.barred_until = clock() + BARRED_S
            raise
        except TimeoutError:
            late = f"no reply within {limit:g} s"
            if track.waiting is None:
                outcome, reason = Outcome.timeout, late
            else:
                outcome, reason = track.waiting.outcome, f"{track.waiting.reason}; {late}"
                served = track.waiting.served
        latency = clock() - started
    return Attempted(tuple(track.replies), outcome, reason, track.attempts, latency, served)


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
            found = [model["id"] for model in listed["data"][:MOST_LISTED]]
            return [_name(item, channel.key) for item in found if isinstance(item, str)]
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
    with_usage = dialect_of(judge).usage_option
    receive = _read_stream if stream else _read_whole
    asked = ""

    async def read(answer: Answer, alive: Callable[[], None]) -> Reply:
        reply = clean(await receive(answer, alive), channel.key)
        if is_asked(asked, reply.model, channel.endpoint.served_as):
            return reply
        track.wrong += 1
        raise Fault(
            Outcome.wrong_model,
            f"{reply.model!r} answered and {asked!r} was asked for",
            again=track.wrong < WRONG_MODELS,
            served=reply.model,
        )

    attempt: Attempt | None = Attempt()
    while attempt is not None:
        body = request_body(judge, grading, messages, sample_index, attempt)
        if stream:
            body["stream"] = True
            if with_usage:
                body["stream_options"] = {"include_usage": True}
        asked = str(body.get("model") or "")
        sent = json.dumps(body).encode()
        reply = await _obtain(channel, "POST", "/chat/completions", sent, read, track)
        if changed := str(attempt):
            reply = dataclasses.replace(reply, asked=changed)
        track.replies.append(reply)
        # What a simulated judge fails at is a planted dose, which asking again would dilute.
        again = judge.simulated is None
        attempt = _another(attempt, _read(grading, reply)) if again else None


def _another(attempt: Attempt, parsed: Parsed) -> Attempt | None:
    """The change that may cure a reply without a grade; None where there is nothing to try.

    A reply with some of the labels is not asked for again: what it lacks is asked for by itself.
    """
    outcome = parsed.outcome
    if _known(parsed):
        return None
    if outcome is Outcome.truncated and attempt.budget == 1:
        return dataclasses.replace(attempt, budget=2)
    if outcome in (Outcome.unparsed, Outcome.empty) and not attempt.remind:
        return dataclasses.replace(attempt, remind=True)
    return None


def _known(parsed: Parsed) -> int:
    return sum(label != "unknown" for label in parsed.labels)


def _read(grading: Any, reply: Reply) -> Parsed:
    if reply.finish_reason == FILTERED:
        return Parsed(Outcome.refused, reason="the endpoint filtered the answer")
    try:
        return grading.parse(reply)
    except Exception as error:  # a parser's bug costs this verdict, not the run
        log.exception("the grading failed on a reply")
        return Parsed(
            Outcome.unparsed, reason=one_line(f"reading failed: {type(error).__name__}: {error}")
        )


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
        await _resume(channel, track)
        permit, track.permit = track.permit, None
        if permit is None:
            try:
                permit = await channel.limits.permit(track.tokens, track.deadline - clock())
            except NoTurn as late:
                raise Fault(Outcome.rate_limited, str(late), again=False) from None
        track.attempts += 1
        began = clock()
        try:
            got = await _once(channel, method, path, body, read)
            if isinstance(got, Reply):
                channel.answered()
                channel.limits.places.answered(clock() - began)
                channel.limits.settle(permit, got.tokens_in, got.tokens_out)
            return got
        except Fault as fault:
            if fault.overrun:
                channel.limits.places.overrun()
                pause = min(fault.wait_s, LONGEST_PAUSE_S)
                channel.paused_until = max(channel.paused_until, clock() + pause)
            connected |= fault.outcome is not Outcome.endpoint_down
            if connected and fault.outcome is Outcome.endpoint_down:
                # It was there a moment ago: gone for one attempt is not down.
                fault.outcome = Outcome.transport
            fault.reason = told(fault.reason, channel.key)
            if not fault.again or number >= endpoint.attempts:
                raise
            scale = min(LONGEST_WAIT_S, endpoint.backoff_s * 2 ** (number - 1))
            wait = fault.wait_s + channel.jitter.uniform(0.0, scale)
            if fault.wait_s >= track.deadline - clock():
                fault.reason += f"; it asks to wait {fault.wait_s:g} s, past the deadline"
                raise
            track.waiting = fault
        await asyncio.sleep(wait)


async def _resume(channel: Channel, track: _Track) -> None:
    """Wait while the endpoint wants nothing to be sent; whom it told so does not matter.

    Raises:
        Fault: it wants that until after the deadline.
    """
    clock = asyncio.get_running_loop().time
    pause = channel.paused_until - clock()
    if pause <= 0:
        return
    reason = f"the endpoint asked others to wait {pause:.1f} s more"
    if channel.paused_until >= track.deadline:
        raise Fault(Outcome.rate_limited, f"{reason}, past the deadline", again=False)
    track.waiting = Fault(Outcome.rate_limited, reason)
    await asyncio.sleep(pause + channel.jitter.uniform(0.0, channel.endpoint.backoff_s))
    track.waiting = None


class _Watch:
    """Ends an attempt that brings nothing new. It looks when the time may be up, which costs less
    than to move a timer at each piece of an answer."""

    __slots__ = ("_handle", "_last", "_loop", "_seconds", "idle")

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._seconds = seconds
        self._handle: asyncio.TimerHandle | None = None
        self.idle: asyncio.Timeout

    def alive(self) -> None:
        """Something new has come."""
        self._last = self._loop.time()

    def look(self) -> None:
        """End the attempt, or look again when its time may be up."""
        up = self._last + self._seconds
        if up <= self._loop.time():
            self.idle.reschedule(up)
        else:
            self._handle = self._loop.call_at(up, self.look)

    def end(self) -> None:
        """Look no more."""
        if self._handle is not None:
            self._handle.cancel()


async def _once(channel: Channel, method: str, path: str, body: bytes, read: Any) -> Any:
    idle_s = channel.endpoint.idle_timeout_s
    channel.calls += method == "POST"
    watch = _Watch(idle_s)
    try:
        async with asyncio.timeout(None) as watch.idle:
            watch.look()
            headers = channel.headers()
            async with channel.wire.exchange(method, path, headers, body) as answer:
                if answer.status != 200:
                    return read_error(answer, await _begin(answer), channel.key)
                try:
                    return await read(answer, watch.alive)
                except ErrorBody as error:
                    return read_error(answer, error.body, channel.key)
    except TimeoutError:
        raise Fault(Outcome.timeout, f"nothing new for {idle_s:g} s") from None
    except Unreachable as error:
        raise Fault(Outcome.endpoint_down, str(error)) from None
    except TooLarge as error:
        raise Fault(Outcome.transport, str(error), again=False) from None
    except (WireError, BadEnvelope) as error:
        raise Fault(Outcome.transport, str(error)) from None
    finally:
        watch.end()


def _name(text: str, key: str) -> str:
    """The name of a model that an endpoint lists, for people."""
    return one_line(told(text, key), NAME_CHARACTERS)


async def _read_whole(answer: Answer, alive: Callable[[], None]) -> Reply:
    return read_plain(await _whole(answer, alive))


async def _read_stream(answer: Answer, alive: Callable[[], None]) -> Reply:
    kind = answer.headers.get("content-type", "nothing")
    if not kind.lower().startswith("text/event-stream"):
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
