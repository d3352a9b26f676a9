"""Plain chat requests, for whoever is no judge: an evaluation, a step of a workflow.

They go the way of a judge's requests: the same limits, retries, deadline, replicas, and replies
without the key. A request that got no reply says why; nothing is made up.

    body = chat_body(endpoint, Sampling(max_tokens=256), [{"role": "user", "content": "Hello"}])
    (fetched,) = complete_all(endpoint, [body])
    fetched.replies[0].text if fetched.replies else fetched.reason
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from judges.endpoint.channel import Channel
from judges.endpoint.client import Body, Fetched, ask
from judges.endpoint.dialects import chat_body
from judges.endpoint.failures import EndpointRefused
from judges.endpoint.loop import gather
from judges.endpoint.replicas import open_wire
from study.errors import UserError
from study.verdict import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from judges.endpoint.transport import Asgi
    from study.schema import Endpoint

__all__ = ["Fetched", "chat_body", "complete", "complete_all", "open_channel"]


def open_channel(
    endpoint: Endpoint, app: Asgi | None = None, folder: Path | None = None
) -> Channel:
    """A way to an endpoint for one event loop; whoever opens it closes its ``wire``.

    Args:
        endpoint: its key is read from the environment variable that it names.
        app: answers in this process where the address is ``asgi://``.
        folder: where limits are shared with other processes; None keeps them to this one.

    Raises:
        UserError: the address cannot work, or the variable of the key is not set.
    """
    name = endpoint.api_key_env
    key = os.environ.get(name, "").strip() if name else ""
    if name and not key:
        raise UserError(
            f"The endpoint {endpoint.url} needs its API key in the environment variable {name},"
            f" which is not set. Type `export {name}=...` with the key, and start again; the key is"
            " never written anywhere."
        )
    return Channel(endpoint, open_wire(endpoint, app), key, folder)


async def complete(channel: Channel, body: Body, within_s: float | None = None) -> Fetched:
    """The reply to one request; one that the endpoint refuses is ``endpoint_down``."""
    try:
        return await ask(channel, body, within_s=within_s)
    except EndpointRefused as refusal:
        return Fetched((), Outcome.endpoint_down, str(refusal), refusal.attempts)


def complete_all(
    endpoint: Endpoint,
    requests: Sequence[Body],
    keep: Callable[[int, Fetched], None] | None = None,
    app: Asgi | None = None,
    folder: Path | None = None,
) -> list[Fetched]:
    """The replies to all requests, in their order, ``endpoint.max_concurrency`` at a time.

    The first is sent alone, so that an endpoint that is down is not asked hundreds of times.

    Args:
        requests: bodies, as `chat_body` makes them.
        keep: gets the place and the result of each request as soon as it has ended.

    Raises:
        UserError: the first request found nobody, or the endpoint refused its key, its account or
            its model.
    """
    return asyncio.run(_complete_all(open_channel(endpoint, app, folder), requests, keep))


async def _complete_all(
    channel: Channel,
    requests: Sequence[Body],
    keep: Callable[[int, Fetched], None] | None,
) -> list[Fetched]:
    async def one(place: int) -> Fetched:
        fetched = await complete(channel, requests[place])
        if keep is not None:
            keep(place, fetched)
        return fetched

    try:
        if not requests:
            return []
        first = await one(0)
        if first.outcome is Outcome.endpoint_down:
            model = requests[0].get("model")
            raise UserError(
                f"The endpoint {channel.endpoint.url} does not answer for model={model}:"
                f" {first.reason}. Start it, or give the endpoint and the name of a model that it"
                " serves, and the key that it accepts."
            )
        return [first, *await gather(partial(one, place) for place in range(1, len(requests)))]
    finally:
        await channel.wire.close()
