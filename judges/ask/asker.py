"""Obtains replies of one model: from the store, from a running request for the same, or by a new
one.

What a judge is asked for verdicts (`judges.ask.session`) and what an executor is asked by the
operators of workflow programs both go this way: one client, one store, the same limits and
failures. Lives in one event loop, whose owner closes it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from judges.ask.identity import SCHEMA, computed_settings
from judges.ask.replies import Accept, Store, content_key
from judges.endpoint.chat_completions import Stored, is_requested_model
from judges.endpoint.client import Channel, EndpointRefused, Fault, Fetched, list_models
from judges.endpoint.dialects import Body, dialect_of
from judges.endpoint.keys import check_key, read_key
from judges.endpoint.loop import cancel
from judges.endpoint.replicas import open_wire
from study.errors import UserError
from study.verdict import Outcome

if TYPE_CHECKING:
    from judges.ask.allowance import Allowance
    from judges.endpoint.transport import Asgi
    from study.config.schema import Model

log = logging.getLogger(__name__)

MANY_MODELS = 8
LEASE_S = 15.0
BEAT_S = 4.0
"""How often leases are renewed."""
POLL_S = 0.03
"""How often those who wait look for replies."""
TAKE_OVER_S = 1.0
"""How often they try to take over lapsed leases."""
AT_ONCE = 200
"""Keys that are leased or renewed before replies get a turn again."""
GATHER_S = 0.002
"""How long a reply waits for others to be stored with it."""
CLOSED = Fetched((), Outcome.aborted, "the session was closed")


def request_keys(model: Model) -> Callable[[Body, int], str]:
    """(body, sample index) -> the store key of one draw: a hash over the very body that would be
    sent, and the salt.

    The number of votes and the parser are left out: the first of three draws is the draw that a
    single vote makes, and reading a stored reply anew asks nobody.
    """
    same = {
        "schema": SCHEMA,
        "revision": model.revision,
        "salt": model.sampling.salt,
        "simulated": computed_settings(model),
    }

    def request_key(body: Body, sample_index: int) -> str:
        return content_key({**same, "body": body, "sample_index": sample_index})

    return request_key


def check_endpoint(model: Model) -> None:
    """Check that a model answers, without an event loop. Raises as `Asker.check`."""

    async def check() -> None:
        asker = Asker(model, None)
        try:
            await asker.check()
        finally:
            await asker.close()

    asyncio.run(check())


def served_models(model: Model) -> list[str] | None:
    """The models that an endpoint lists, without an event loop; None where it has no list.
    Raises UserError: as `Asker.models`."""

    async def models() -> list[str] | None:
        asker = Asker(model, None)
        try:
            return await asker.models()
        finally:
            await asker.close()

    return asyncio.run(models())


class Asker:
    """One model as one event loop asks it.

    Args:
        store: where replies are kept and found; None sends a new request each time.
        inside: the application that answers, where the model is computed in this process.
        allowance: what may be spent on what the store cannot answer; None is no limit.
    """

    def __init__(
        self,
        model: Model,
        store: Store | None,
        inside: Asgi | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        self.model, self._allowance = model, allowance
        self.key = request_keys(model)
        """(body, sample index) -> where the replies to it are kept."""
        self.hits = 0
        """Replies found in the store, or already in flight."""
        endpoint = model.endpoint
        limits = None if store is None else store.path.parent / ".limits"
        self.channel = Channel(endpoint, open_wire(endpoint, inside), read_key(endpoint), limits)
        self._single_flight = None if store is None else SingleFlight(store, accept=self._accepted)
        self._in_flight: dict[str, asyncio.Task[Fetched]] = {}
        self.in_batch = False
        """Whether equal questions are asked once, also where the first has its reply already."""
        self.check_first = False
        """Whether the model is checked before anything is sent to it."""
        self._checking: asyncio.Task[None] | None = None
        self.closing = False

    async def fetch(self, key: str, ask: Callable[[], Coroutine[Any, Any, Fetched]]) -> Fetched:
        """The replies under ``key``: ``ask`` obtains new ones. Who asks for the same at the same
        time shares them. Those that others have obtained are unread.
        Raises UserError: as `check`, where it was to come first."""
        shared = key in self._in_flight or self.closing
        if self._single_flight is not None and not shared:
            stored = await self._single_flight.find(key)
            if stored is not None:
                self.hits += 1
                return Fetched.stored(stored)
        flight = self._in_flight.get(key)
        first = flight is None
        if flight is None:
            if self.closing:
                return CLOSED
            claim = partial(self._claim, key, ask)
            allowance = self._allowance
            obtain = claim() if allowance is None else allowance.spend(self.model, claim)
            flight = asyncio.create_task(obtain)
            self._in_flight[key] = flight
            flight.add_done_callback(lambda _: self.in_batch or self._in_flight.pop(key, None))
        try:
            fetched = await asyncio.shield(flight)
        except asyncio.CancelledError:
            if not flight.cancelled():
                raise
            return CLOSED
        if first:
            return fetched
        self.hits += 1
        return dataclasses.replace(fetched, from_cache=True, cost_usd=0.0)

    async def _claim(self, key: str, ask: Callable[[], Coroutine[Any, Any, Fetched]]) -> Fetched:
        """Ask, unless another of the processes that share the store is asking already."""
        if self.check_first:
            self._checking = self._checking or asyncio.create_task(self.check())
            await asyncio.shield(self._checking)
        if self._single_flight is None:
            return await ask()
        shared = await self._single_flight.claim(key)
        if shared is not None:
            self.hits += 1
            return Fetched.stored(shared)
        with ExitStack() as unasked:
            unasked.callback(self._single_flight.give_up, key)
            fetched = await ask()
            unasked.pop_all()
        mine = fetched.value()
        if not fetched.replies or fetched.outcome is not None:
            self._single_flight.give_up(key, mine)
            return fetched
        winner = await self._single_flight.put(key, mine)
        if winner != mine:  # its lease had lapsed and another was first: that is the reply
            return dataclasses.replace(Fetched.stored(winner), cost_usd=fetched.cost_usd)
        return fetched

    async def drop(self) -> None:
        """End what is in flight."""
        await cancel(self._in_flight.values())
        self._in_flight.clear()

    async def close(self) -> None:
        """Abort what is in flight and close all connections."""
        self.closing = True
        await cancel([*self._in_flight.values(), *([self._checking] if self._checking else [])])
        if self._single_flight is not None:
            await self._single_flight.close()
        await self.channel.wire.close()

    def stop_if_refused(self) -> None:
        """Raise if the endpoint has refused this model altogether, and not only single questions.
        Raises EndpointRefused: with what to do."""
        refusal = self.channel.refused
        if refusal is None:
            return
        model, role = self.model, self.model.role
        endpoint, name = model.endpoint, model.endpoint.api_key_env
        key = f"the key in the environment variable {name}" if name else "a request without a key"
        see = (
            f" (to check it, type: python -m judges.check judge={model.name})"
            if role == "judge"
            else ""
        )
        raise refusal.saying(
            f"The endpoint {endpoint.url} of {role} {model.name or endpoint.model!r} refuses every "
            f"request ({refusal}): later requests would fail too. It was sent {key}, and asked for"
            f" {role}.endpoint.model={endpoint.model!r}. Fix the key, its account or the model's"
            f" name{see} and rerun the command to resume.",
        )

    async def models(self) -> list[str] | None:
        """The models that the endpoint lists; None where it has no list.
        Raises UserError: the key variable is missing, or the endpoint does not answer or does not
        accept the key."""
        model, role = self.model, self.model.role
        endpoint, name = model.endpoint, model.endpoint.api_key_env
        check_key(endpoint, f"{role.capitalize()} {model.name or endpoint.model!r}")
        try:
            return await list_models(self.channel)
        except EndpointRefused as refusal:
            key = f"the key in the environment variable {name}" if name else "a request without key"
            raise refusal.saying(
                f"The {role}'s endpoint {endpoint.url} does not accept {key} ({refusal}). Check "
                f"the key, its account and {role}.endpoint.url, or name the variable that holds"
                f" the right key: {role}.endpoint.api_key_env=NAME",
            ) from None
        except (Fault, TimeoutError) as error:
            start = (
                f"Start it with `{endpoint.start_command}`"
                if endpoint.start_command
                else f"Start it (its command can be saved as {role}.endpoint.start_command)"
            )
            why = str(error) or f"no reply within {endpoint.deadline_s:g} s"
            raise UserError(
                f"The {role}'s endpoint {endpoint.url} does not answer ({why}). {start}, or type"
                f" its address: {role}.endpoint.url=URL"
            ) from None

    async def check(self) -> None:
        """Check that this model can be asked.
        Raises UserError: as `models`, or the endpoint serves other models."""
        served = await self.models()
        model, role, endpoint = self.model, self.model.role, self.model.endpoint
        model_name = endpoint.model or (model.name if model.computed else "")
        binding = dialect_of(model).lists_models
        if binding and served is not None and model_name not in served:
            more = f" and {len(served) - MANY_MODELS} more" if len(served) > MANY_MODELS else ""
            names = ", ".join(served[:MANY_MODELS]) or "no model"
            raise UserError(
                f"The {role}'s endpoint {endpoint.url} does not serve {role}.endpoint.model="
                f"{model_name!r}; it serves {names}{more}. Set {role}.endpoint.model to one of "
                "these."
            )

    def _accepted(self, value: Stored) -> bool:
        """Whether stored replies are of this model; others are asked for again."""
        endpoint = self.model.endpoint
        model_name = str(endpoint.extra_body.get("model") or endpoint.model)
        return all(
            is_requested_model(model_name, reply.get("model", ""), endpoint.served_as)
            for reply in value["replies"]
        )


class SingleFlight:
    """What one session asks for and waits for; lives in the session's event loop. A waiter takes
    over ``lease_s`` after the death of a holder; ``accept`` says whether a stored reply will do."""

    def __init__(
        self, store: Store, lease_s: float = LEASE_S, accept: Accept = lambda _: True
    ) -> None:
        self._store = store
        self._accept = accept
        self._lease_s = lease_s
        self._owner = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._claims: dict[str, asyncio.Future[Stored | None]] = {}
        self._waiting: dict[str, tuple[asyncio.Future[Stored | None], float]] = {}
        self._held: set[str] = set()
        self._searches: list[tuple[str, asyncio.Future[Stored | None]]] = []
        self._puts: dict[str, tuple[Stored, asyncio.Future[Stored]]] = {}
        self._failures: dict[str, Stored | None] = {}
        self._flush_at: asyncio.Handle | None = None
        self._tending: asyncio.Task[None] | None = None

    async def find(self, key: str) -> Stored | None:
        """What is stored under a key, if it is accepted."""
        future: asyncio.Future[Stored | None] = asyncio.Future()
        self._searches.append((key, future))
        self._soon(0.0)
        return await future

    async def claim(self, key: str) -> Stored | None:
        """Lease a key and return None, or wait for what another holder gets for it. `put` or
        `give_up` must end the lease. One claim per key at a time."""
        future: asyncio.Future[Stored | None] = asyncio.Future()
        self._claims[key] = future
        self._soon(0.0)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.result() is None:
                self.give_up(key)
            self._claims.pop(key, None)
            self._waiting.pop(key, None)
            raise

    async def put(self, key: str, value: Stored) -> Stored:
        """Store the reply; returns what the store holds then."""
        future: asyncio.Future[Stored] = asyncio.Future()
        self._puts[key] = (value, future)
        self._soon(GATHER_S)
        return await future

    def give_up(self, key: str, failure: Stored | None = None) -> None:
        """End a claim without a reply; a failure is given to those who wait."""
        self._failures[key] = failure
        self._soon(GATHER_S)

    async def close(self) -> None:
        """End all leases; the requests themselves must have ended."""
        if self._flush_at is not None:
            self._flush_at.cancel()
        if self._tending is not None:
            await cancel([self._tending])
        self._failures |= dict.fromkeys(self._held - self._failures.keys())
        self._flush()

    def _soon(self, seconds: float) -> None:
        if self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().call_later(seconds, self._flush)

    def _flush(self) -> None:
        self._flush_at = None
        if self._searches:
            searches, self._searches = self._searches, []
            keys = [key for key, _ in searches]
            _settle(
                searches, lambda: dict.fromkeys(keys) | self._store.get_many(keys, self._accept)
            )
        if self._puts:
            puts, self._puts = self._puts, {}
            self._held.difference_update(puts)
            values = {key: value for key, (value, _) in puts.items()}
            futures = [(key, future) for key, (_, future) in puts.items()]
            _settle(futures, lambda: self._store.put_many(values, self._accept))
        if self._failures:
            failures, self._failures = self._failures, {}
            self._held.difference_update(failures)
            try:
                self._store.release(failures, self._owner)
            except Exception as error:  # the leases lapse by themselves
                log.warning("leases were not released: %s", error)
        if self._claims:
            keys = list(self._claims)[:AT_ONCE]
            now = self._store.clock()
            self._waiting |= {key: (self._claims.pop(key), now) for key in keys}
            try:
                self._lease(keys)
            except Exception as error:
                self._fail(error)
        if self._claims:
            self._soon(0.0)
        if (self._held or self._waiting) and (self._tending is None or self._tending.done()):
            self._tending = asyncio.get_running_loop().create_task(self._tend())

    def _lease(self, keys: list[str]) -> None:
        """Lease what can be leased of the keys waited for, and hand out what is there."""
        granted, stored = self._store.lease(keys, self._owner, self._lease_s, self._accept)
        self._held |= granted
        for key in keys:  # in the order in which they were asked for
            if key in granted or key in stored:
                self._hand_out(key, stored.get(key))

    def _look(self) -> None:
        """Hand out what has come for those who wait."""
        if not self._waiting:
            return
        stored = self._store.get_many(list(self._waiting), self._accept)
        since = min(began for _, began in self._waiting.values())
        failed = self._store.failed(list(self._waiting), since)
        for key, value in {**failed, **stored}.items():
            self._hand_out(key, value)

    def _fail(self, error: Exception) -> None:
        """The store cannot be used: all who wait get the error."""
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(error)

    def _hand_out(self, key: str, shared: Stored | None) -> None:
        future, _ = self._waiting.pop(key)
        if not future.done():
            future.set_result(shared)
        elif shared is None:
            self.give_up(key)

    async def _tend(self) -> None:
        """Look for replies while somebody waits; keep the leases up while there are any."""
        clock = asyncio.get_running_loop().time
        beat_s = min(BEAT_S, self._lease_s / 4)
        beat = look = clock()
        while self._held or self._waiting:
            await asyncio.sleep(POLL_S if self._waiting else beat_s)
            now = clock()
            try:
                self._look()
                if self._waiting and now - look >= TAKE_OVER_S:
                    look = now
                    self._lease(list(self._waiting))
                if self._held and now - beat >= beat_s:
                    beat = now
                    keys = list(self._held)
                    for start in range(0, len(keys), AT_ONCE):
                        part = [key for key in keys[start : start + AT_ONCE] if key in self._held]
                        self._store.renew(part, self._owner, self._lease_s)
                        await asyncio.sleep(0)
            except Exception as error:
                self._fail(error)


def _settle(
    futures: Sequence[tuple[str, asyncio.Future[Any]]], work: Callable[[], Mapping[str, Any]]
) -> None:
    """Do the work for all keys, and give each future its value or the error."""
    try:
        values, error = work(), None
    except Exception as failure:
        values, error = {}, failure
    for key, future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(values[key])
        else:
            future.set_exception(error)
