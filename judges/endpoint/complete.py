"""Plain chat requests, for callers other than judges: an evaluation, a step of a workflow.

They go the way of a judge's requests: the same limits, retries, deadline, replicas, and replies
without the key. A request that got no reply says why; nothing is made up.

    body = chat_body(endpoint, Sampling(max_tokens=256), [{"role": "user", "content": "Hello"}])
    (fetched,) = complete_all(endpoint, [body])
    fetched.replies[0].text if fetched.replies else fetched.reason
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from judges.endpoint.client import Channel, Fetched, ask
from judges.endpoint.dialects import Body, chat_body
from judges.endpoint.keys import check_key, read_key
from judges.endpoint.loop import gather
from judges.endpoint.replicas import open_wire
from study.config.schema import Endpoint
from study.errors import UserError
from study.verdict import Outcome

__all__ = ["Fetched", "chat_body", "complete_all", "open_channel"]


def open_channel(endpoint: Endpoint) -> Channel:
    """A way to an endpoint for one event loop; its opener closes its ``wire``.
    Raises UserError: the address cannot work, or the variable of the key is not set."""
    check_key(endpoint, f"The endpoint {endpoint.url}")
    return Channel(endpoint, open_wire(endpoint), read_key(endpoint))


def complete_all(
    endpoint: Endpoint,
    requests: Sequence[Body],
    keep: Callable[[int, Fetched], None] | None = None,
) -> list[Fetched]:
    """The replies to all requests, in their order, ``endpoint.max_concurrency`` at a time; one that
    the endpoint refuses is ``endpoint_down``.

    The first is sent alone, so that an endpoint that is down is not asked hundreds of times.
    ``keep`` gets the place and the result of each request as soon as it has ended.
    Raises UserError: nobody answered the first, or the key, the account or the model was refused.
    """
    return asyncio.run(_complete_all(open_channel(endpoint), requests, keep))


async def _complete_all(
    channel: Channel, requests: Sequence[Body], keep: Callable[[int, Fetched], None] | None
) -> list[Fetched]:
    async def complete(place: int) -> Fetched:
        fetched = await ask(channel, requests[place])
        if keep is not None:
            keep(place, fetched)
        return fetched

    try:
        if not requests:
            return []
        first = await complete(0)
        if first.outcome is Outcome.endpoint_down:
            model = requests[0].get("model")
            raise UserError(
                f"The endpoint {channel.endpoint.url} does not answer for model={model}:"
                f" {first.reason}. Start it, or give its address, the name of a model that it"
                " serves, and a key that it accepts."
            )
        rest = (partial(complete, place) for place in range(1, len(requests)))
        return [first, *await gather(rest)]
    finally:
        await channel.wire.close()
