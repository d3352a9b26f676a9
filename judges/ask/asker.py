"""Obtains replies of one model: from the store, from whoever asks for the same, or anew.

What a judge is asked for verdicts (`judges.ask.session`) and what an executor is asked by the
operators of workflow programs both go this way: one client, one store, the same limits and
failures. Lives in one event loop; whoever owns that closes it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from judges.ask.singleflight import SingleFlight
from judges.endpoint.chat_completions import is_requested_model
from judges.endpoint.client import Channel, EndpointRefused, Fault, Fetched, list_models
from judges.endpoint.dialects import dialect_of
from judges.endpoint.keys import check_key, read_key
from judges.endpoint.loop import cancel
from judges.endpoint.replicas import open_wire
from study.errors import UserError
from study.verdict import Outcome

if TYPE_CHECKING:
    from typing import Any

    from judges.ask.replies import Store
    from judges.endpoint.transport import Asgi
    from study.config.schema import Model

MANY_MODELS = 8
CLOSED = Fetched((), Outcome.aborted, "the session was closed")
Ask = Callable[[], Awaitable[Fetched]]
Read = Callable[[Fetched], Fetched]
"""Stored replies -> the same, as whoever asks reads them."""


def as_stored(fetched: Fetched) -> Fetched:
    """Replies as they are."""
    return fetched


def check_endpoint(model: Model) -> None:
    """Check that a model can be asked; for whoever has no event loop. Raises as `Asker.check`."""

    async def check() -> None:
        asker = Asker(model, None)
        try:
            await asker.check()
        finally:
            await asker.close()

    asyncio.run(check())


class Asker:
    """One model as one event loop asks it.

    Args:
        store: where replies are kept and found; None asks anew each time.
        inside: the application that answers, where the model is simulated in this process.
    """

    def __init__(self, model: Model, store: Store | None, inside: Asgi | None = None) -> None:
        self.model = model
        self.hits = 0
        """Replies found in the store, or already in flight."""
        endpoint = model.endpoint
        limits = None if store is None else store.path.parent / ".limits"
        self.channel = Channel(endpoint, open_wire(endpoint, inside), read_key(endpoint), limits)
        self._single_flight = None if store is None else SingleFlight(store, accept=self._accepted)
        self._in_flight: dict[str, asyncio.Task[Fetched]] = {}
        self.in_batch = False
        """Whether equal questions are asked once, also where the first has its reply already."""
        self.closing = False

    async def fetch(
        self,
        key: str,
        ask: Ask,
        read: Read = as_stored,
        around: Callable[[Ask], Awaitable[Fetched]] | None = None,
    ) -> Fetched:
        """The replies under ``key``: ``ask`` obtains new ones, within ``around`` where that is
        given. Who asks for the same at the same time shares them."""
        shared = key in self._in_flight or self.closing
        if self._single_flight is not None and not shared:
            stored = await self._single_flight.find(key)
            if stored is not None:
                self.hits += 1
                return read(Fetched.stored(stored))
        flight = self._in_flight.get(key)
        first = flight is None
        if flight is None:
            if self.closing:
                return read(CLOSED)
            flight = asyncio.create_task(self._obtain(key, ask, read, around))
            self._in_flight[key] = flight
            flight.add_done_callback(lambda _: self.in_batch or self._in_flight.pop(key, None))
        try:
            fetched = await asyncio.shield(flight)
        except asyncio.CancelledError:
            if not flight.cancelled():
                raise
            return read(CLOSED)
        if first:
            return fetched
        self.hits += 1
        return dataclasses.replace(fetched, from_cache=True, cost_usd=0.0)

    async def _obtain(
        self, key: str, ask: Ask, read: Read, around: Callable[[Ask], Awaitable[Fetched]] | None
    ) -> Fetched:
        def claim() -> Awaitable[Fetched]:
            return self._claim(key, ask, read)

        return await (claim() if around is None else around(claim))

    async def _claim(self, key: str, ask: Ask, read: Read) -> Fetched:
        """Ask, unless another of the processes that share the store is asking already."""
        if self._single_flight is None:
            return await ask()
        shared = await self._single_flight.claim(key)
        if shared is not None:
            self.hits += 1
            return read(Fetched.stored(shared))
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
            return dataclasses.replace(read(Fetched.stored(winner)), cost_usd=fetched.cost_usd)
        return fetched

    async def drop(self) -> None:
        """End what is in flight."""
        await cancel(self._in_flight.values())
        self._in_flight.clear()

    async def close(self) -> None:
        """Abort what is in flight and close all connections."""
        self.closing = True
        await cancel(self._in_flight.values())
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
        see = f", see with `python -m judges.check judge={model.name}`," if role == "judge" else ""
        raise EndpointRefused(
            *refusal.parts,
            f"The endpoint {endpoint.url} of {role} {model.name or endpoint.model!r} refuses every "
            f"request ({refusal}): no later {'verdict' if role == 'judge' else 'reply'} would fare "
            f"better. It was sent {key}, and asked for {role}.endpoint.model={endpoint.model!r}. "
            f"Mend the key, its account or the model's name{see} and run the same command again: "
            "it goes on where it stopped.",
        )

    async def check(self) -> None:
        """Check that this model can be asked.
        Raises UserError: the key variable is missing, or the endpoint does not answer, does not
        accept the key, or serves other models."""
        model, role = self.model, self.model.role
        endpoint, name = model.endpoint, model.endpoint.api_key_env
        check_key(endpoint, f"{role.capitalize()} {model.name or endpoint.model!r}")
        try:
            served = await list_models(self.channel)
        except EndpointRefused as refusal:
            key = f"the key in the environment variable {name}" if name else "a request without key"
            raise EndpointRefused(
                *refusal.parts,
                f"The {role}'s endpoint {endpoint.url} does not accept {key} ({refusal}). Check "
                f"the key, its account and {role}.endpoint.url, or set {role}.endpoint.api_key_env "
                "to the name of the variable that holds the right key.",
            ) from None
        except (Fault, TimeoutError) as error:
            start = (
                f"Start it with `{endpoint.start_command}`"
                if endpoint.start_command
                else f"Start it ({role}.endpoint.start_command can hold the command)"
            )
            why = str(error) or f"nothing within {endpoint.deadline_s:g} s"
            raise UserError(
                f"The {role}'s endpoint {endpoint.url} does not answer ({why}). {start}, or point "
                f"{role}.endpoint.url to where it runs."
            ) from None
        model_name = endpoint.model or (model.name if model.simulated is not None else "")
        binding = dialect_of(model).lists_models
        if binding and served is not None and model_name not in served:
            more = f" and {len(served) - MANY_MODELS} more" if len(served) > MANY_MODELS else ""
            names = ", ".join(served[:MANY_MODELS]) or "no model at all"
            raise UserError(
                f"The {role}'s endpoint {endpoint.url} does not serve {role}.endpoint.model="
                f"{model_name!r}; it serves {names}{more}. Set {role}.endpoint.model to one of "
                "these."
            )

    def _accepted(self, value: dict[str, Any]) -> bool:
        """Whether stored replies are of this model; others are asked for again."""
        endpoint = self.model.endpoint
        model_name = str(endpoint.extra_body.get("model") or endpoint.model)
        return all(
            is_requested_model(model_name, reply.get("model", ""), endpoint.served_as)
            for reply in value["replies"]
        )
