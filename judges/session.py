"""A judge, ready to be asked: synchronous for the trainer, concurrent towards the endpoint.

A session has its own event loop in a thread, looks into the store first, and answers with one
``Verdict`` per draw whatever happens out there: what could not be obtained is a typed outcome.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from experiments.errors import UserError
from judges.client import Attempted, Channel, EndpointRefused, Fault, ask, list_models, settle
from judges.identity import build_grading, judge_id, request_key
from judges.secrets import refuse_secrets
from judges.transport import open_wire
from judges.verdict import Outcome, Reply, Verdict

if TYPE_CHECKING:
    from experiments.config import Endpoint, Judge
    from experiments.tasks.row import Row, Truth
    from judges.store import Store
    from judges.transport import Asgi

T = TypeVar("T")

MANY_MODELS = 8


class Session:
    """Everything that one process needs to get verdicts of one judge.

    Args:
        judge: whom to ask, what and how.
        store: where replies are kept and found; None asks anew each time.
        oracle: (prompt text, answer) -> truth; what a simulated judge knows.
        calls_before: calls that a simulated judge has answered in earlier processes of this run.

    Raises:
        UserError: the judge's settings cannot work.
    """

    def __init__(
        self,
        judge: Judge,
        store: Store | None,
        oracle: Callable[[str, str], Truth | None] | None = None,
        calls_before: int = 0,
    ) -> None:
        _check_settings(judge)
        self.judge = judge
        self.judge_id = judge_id(judge)
        self.hits = 0
        """Draws found in the store, or already in flight for somebody else."""
        self._store = store
        self._grading = build_grading(judge)
        self._app = _simulated(judge, oracle, calls_before)
        open_wire(judge.endpoint, self._app)  # an address that cannot work is refused now
        name = judge.endpoint.api_key_env
        self._key = os.environ.get(name, "").strip() if name else ""
        self._channel: Channel | None = None
        self._flights: dict[str, asyncio.Task[Verdict]] = {}
        self._loop = _Loop(self._open, self._shut)

    @property
    def calls(self) -> int:
        """Requests for verdicts that this session has sent, failed ones too; not the preflight."""
        return self._channel.calls if self._channel is not None else 0

    def verdicts(self, items: Sequence[tuple[Row, str]]) -> list[list[Verdict]]:
        """Judge each (row, answer), ``sampling.votes`` times; order is kept.

        Never raises for what a judge or its endpoint does.
        """
        votes = range(self.judge.sampling.votes)
        asked = [self._grading.messages(row, answer) for row, answer in items]
        keys = [
            [request_key(self.judge, self._grading, messages, index) for index in votes]
            for messages in asked
        ]
        flat = [key for row in keys for key in row]
        stored = self._store.get_many(list(dict.fromkeys(flat))) if self._store is not None else {}
        found = {key: self._from_value(key, value) for key, value in stored.items()}
        missing = [
            (key, messages, index)
            for row, messages in zip(keys, asked, strict=True)
            for index, key in zip(votes, row, strict=True)
            if key not in found
        ]
        self.hits += len(flat) - len(missing)
        fresh = iter(self._loop.run(self._obtain_all(missing)) if missing else [])
        return [
            [
                dataclasses.replace(found[key], sample_index=index) if key in found else next(fresh)
                for index, key in zip(votes, row, strict=True)
            ]
            for row in keys
        ]

    def check(self) -> None:
        """Find out before any training whether this judge can be asked.

        Raises:
            UserError: the key variable is missing, the endpoint does not answer or does not
                accept the key, or it serves other models.
        """
        endpoint = self.judge.endpoint
        name = endpoint.api_key_env
        if name and not self._key:
            raise UserError(
                f"Judge {self.judge.name or endpoint.model!r} needs its API key in the environment "
                f"variable {name}, which is not set. Type `export {name}=...` with the key, and "
                "start again; the key is never written anywhere."
            )
        try:
            served = self._loop.run(self._list_models())
        except EndpointRefused as refusal:
            key = f"the key in the environment variable {name}" if name else "a request without key"
            raise UserError(
                f"The judge's endpoint {endpoint.url} does not accept {key} ({refusal}). Check "
                "the key, its account and judge.endpoint.url, or set judge.endpoint.api_key_env "
                "to the name of the variable that holds the right key."
            ) from None
        except (Fault, TimeoutError) as error:
            start = (
                f"Start it with `{endpoint.start_command}`"
                if endpoint.start_command
                else "Start it (judge.endpoint.start_command can hold the command)"
            )
            why = str(error) or f"nothing within {endpoint.deadline_s:g} s"
            raise UserError(
                f"The judge's endpoint {endpoint.url} does not answer ({why}). {start}, or point "
                "judge.endpoint.url to where it runs."
            ) from None
        wanted = endpoint.model or (self.judge.name if self.judge.simulated is not None else "")
        if served is not None and wanted not in served:
            more = f" and {len(served) - MANY_MODELS} more" if len(served) > MANY_MODELS else ""
            names = ", ".join(served[:MANY_MODELS]) or "no model at all"
            raise UserError(
                f"The judge's endpoint {endpoint.url} does not serve judge.endpoint.model="
                f"{wanted!r}; it serves {names}{more}. Set judge.endpoint.model to one of "
                "these."
            )

    def close(self) -> None:
        """Give up what is in flight (its verdicts are ``aborted``) and close every connection."""
        self._loop.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _open(self) -> None:
        endpoint = self.judge.endpoint
        self._channel = Channel(endpoint, open_wire(endpoint, self._app), self._key)

    async def _shut(self) -> None:
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        if self._channel is not None:
            await self._channel.wire.close()

    async def _list_models(self) -> list[str] | None:
        assert self._channel is not None
        return await list_models(self._channel)

    async def _obtain_all(
        self, wanted: Sequence[tuple[str, Sequence[dict[str, str]], int]]
    ) -> list[Verdict]:
        waiters: list[Awaitable[Verdict]] = []
        for key, messages, index in wanted:
            flight, first = self._flights.get(key), False
            if flight is None:
                first = True
                flight = asyncio.create_task(self._obtain(key, messages, index))
                self._flights[key] = flight
                flight.add_done_callback(lambda _, key=key: self._flights.pop(key))
            waiters.append(self._join(flight, first, key, index))
        return list(await asyncio.gather(*waiters))

    async def _join(
        self, flight: asyncio.Task[Verdict], first: bool, key: str, index: int
    ) -> Verdict:
        try:
            verdict = await asyncio.shield(flight)
        except asyncio.CancelledError:
            if not flight.cancelled():
                raise
            nothing = Attempted((), Outcome.aborted, "the session was closed", 0, 0.0)
            return self._verdict(key, index, nothing)
        if first:
            return verdict
        self.hits += 1
        return dataclasses.replace(verdict, from_cache=True, cost_usd=0.0)

    async def _obtain(self, key: str, messages: Sequence[dict[str, str]], index: int) -> Verdict:
        assert self._channel is not None
        try:
            attempted = await ask(self._channel, self.judge, self._grading, messages, index)
        except EndpointRefused as refusal:
            attempted = Attempted((), Outcome.endpoint_down, str(refusal), refusal.attempts, 0.0)
        if self._store is not None and attempted.replies and attempted.outcome is None:
            mine = _to_value(attempted)
            winner = self._store.put(key, mine)
            if winner != mine:  # another process was first: its reply is the verdict
                theirs = self._from_value(key, winner)
                cost = self._cost(attempted.replies)
                return dataclasses.replace(theirs, sample_index=index, cost_usd=cost)
        return self._verdict(key, index, attempted)

    def _from_value(self, key: str, value: dict[str, Any]) -> Verdict:
        replies = tuple(Reply(**reply) for reply in value["replies"])
        attempted = Attempted(replies, None, "", value["attempts"], value["latency_s"])
        verdict = self._verdict(key, 0, attempted)
        return dataclasses.replace(verdict, from_cache=True, cost_usd=0.0)

    def _verdict(self, key: str, index: int, attempted: Attempted) -> Verdict:
        common: dict[str, Any] = {
            "judge_id": self.judge_id,
            "judge": self.judge.name,
            "revision": self.judge.revision,
            "grading": self._grading.name,
            "grading_version": self._grading.version,
            "prompt_sha": self._grading.prompt_sha,
            "sample_index": index,
            "attempts": attempted.attempts,
            "latency_s": attempted.latency_s,
            "cost_usd": self._cost(attempted.replies),
            "key": key,
        }
        if not attempted.replies:
            assert attempted.outcome is not None
            return Verdict(outcome=attempted.outcome, reason=attempted.reason, **common)
        reply, parsed = settle(self._grading, attempted.replies)
        reason = parsed.reason
        if attempted.outcome is not None and parsed.outcome is not Outcome.scored:
            reason = f"{reason}; asked again: {attempted.reason}"
        return Verdict(
            outcome=parsed.outcome,
            labels=parsed.labels,
            score=parsed.score,
            reason=reason,
            text=reply.text,
            reasoning=reply.reasoning,
            finish_reason=reply.finish_reason,
            tokens_in=_total(attempted.replies, "tokens_in"),
            tokens_cached=_total(attempted.replies, "tokens_cached"),
            tokens_out=_total(attempted.replies, "tokens_out"),
            **common,
        )

    def _cost(self, replies: Sequence[Reply]) -> float | None:
        """US dollars of all replies to one question; None where the price or usage is unknown.

        Where no price of cached tokens is given they cost what the others do.
        """
        if self.judge.simulated is not None:
            return 0.0
        price = self.judge.price
        took, gave = _total(replies, "tokens_in"), _total(replies, "tokens_out")
        if not (price.input or price.cached or price.output) or took is None or gave is None:
            return None
        cached = min(_total(replies, "tokens_cached") or 0, took)
        paid = (
            (took - cached) * price.input
            + cached * (price.cached or price.input)
            + gave * price.output
        )
        return paid / 1e6


class _Loop:
    """An event loop in a thread that starts on first use and ends with everything in it."""

    def __init__(
        self, opened: Callable[[], Awaitable[None]], shut: Callable[[], Awaitable[None]]
    ) -> None:
        self._opened, self._shut = opened, shut
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._jobs: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop and wait for what it gives or raises."""
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError("the session is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="judge", daemon=True)
                self._thread.start()
            self._ready.wait()
            future = asyncio.run_coroutine_threadsafe(self._job(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt in this thread leaves nothing behind in the other
            raise

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _job(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._jobs.add(task)
        try:
            return await work
        finally:
            self._jobs.discard(task)

    def _main(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self._opened()
        self._ready.set()
        await self._stop.wait()
        await self._shut()
        # Those who wait for a verdict get their `aborted` before the loop is gone.
        await asyncio.gather(*self._jobs, return_exceptions=True)


def _simulated(judge: Judge, oracle: Any, calls_before: int) -> Asgi | None:
    if not judge.endpoint.url.startswith("asgi:") or judge.simulated is None:
        return None
    from judges.simulated import simulated_app

    return simulated_app(judge, oracle, calls_before)


def _check_settings(judge: Judge) -> None:
    endpoint: Endpoint = judge.endpoint
    refuse_secrets(
        [
            ("judge.endpoint.url", endpoint.url),
            ("judge.endpoint.api_key_env", endpoint.api_key_env or ""),
            ("judge.endpoint.extra_body", str(endpoint.extra_body)),
            ("judge.endpoint.start_command", endpoint.start_command),
        ]
    )
    least = {
        "judge.endpoint.max_concurrency": (endpoint.max_concurrency, 1),
        "judge.endpoint.attempts": (endpoint.attempts, 1),
        "judge.sampling.votes": (judge.sampling.votes, 1),
        "judge.endpoint.deadline_s": (endpoint.deadline_s, 0.001),
        "judge.endpoint.idle_timeout_s": (endpoint.idle_timeout_s, 0.001),
        "judge.endpoint.connect_timeout_s": (endpoint.connect_timeout_s, 0.001),
    }
    for name, (value, legal) in least.items():
        if not value >= legal:
            raise UserError(f"{name}={value} asks for nothing; give {legal} or more.")


def _to_value(attempted: Attempted) -> dict[str, Any]:
    return {
        "replies": [dataclasses.asdict(reply) for reply in attempted.replies],
        "attempts": attempted.attempts,
        "latency_s": round(attempted.latency_s, 4),
    }


def _total(replies: Sequence[Reply], name: str) -> int | None:
    """The sum of one token count over the replies; None where one of them did not say."""
    counts = [getattr(reply, name) for reply in replies]
    return sum(counts) if counts and None not in counts else None
