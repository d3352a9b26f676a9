"""Two ways to reach a judge: HTTP by aiohttp, or an ASGI application inside this process.

Both give the status, the headers and the body in bounded chunks, and turn every failure into a
``WireError``. Retries and JSON are the client's.
"""

from __future__ import annotations

import asyncio
import functools
import select
import time
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler

from study.config.schema import Endpoint
from study.screen import one_line

Event = MutableMapping[str, Any]
"""A message of ASGI, or the scope of a request."""
Asgi = Callable[
    [Event, Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Awaitable[None]
]

KEEPALIVE_S = 4.0
"""Idle connections are dropped before uvicorn (which vLLM runs on) drops them, at 5 s."""
QUIET_S = 0.1
"""How long a connection must have been idle before it is used again: the second answer of an
endpoint that answers twice must not be taken for the answer to the next question."""
WARY_S = 60.0
"""How long no connection is used again once two answers to one request have come; longer than the
client waits before it repeats the request."""
PIECE = 65_536
LINE = 4_000
"""Characters of an error; the client shortens it after taking out keys."""


class WireError(Exception):
    """The answer did not arrive whole; the message is one line for people."""


class Unreachable(WireError):
    """Nobody accepted the connection."""


class TooLarge(WireError):
    """The body passed the limit, on the wire or after decompression."""


class Unsolicited(WireError):
    """More came than one answer, and nobody can say which of it answers the request."""


@dataclass(frozen=True)
class Answer:
    """The head of a response and its body, chunk by chunk, decompressed and bounded."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    chunks: AsyncIterator[bytes]


class Wire(Protocol):
    """A way to one endpoint; it belongs to the event loop that first used it."""

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[Answer]:
        """Send one request to ``path`` below the endpoint's URL.
        Raises WireError: nothing came, it broke off, or it was too large."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class _Connection(ResponseHandler):
    """A connection that ends once anything comes on it besides the one answer to its request."""

    def __init__(self, doubt: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._doubt = doubt
        """Called where nobody can say which of several answers is the right one."""
        self._requests = 0
        self._body: aiohttp.StreamReader | None = None
        """Of the first answer since the last request, once its head is there."""

    def set_response_params(self, **settings: Any) -> None:
        """aiohttp calls it before it sends a request."""
        self._requests += 1
        self._body = None
        super().set_response_params(**settings)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """aiohttp calls it with each head and its body."""
        head, body = data
        if self._body is None and head.code >= 200:  # one below only says that an answer will come
            self._body = body
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """asyncio calls it with what has come, in pieces of any size."""
        # An answer that is whole without the last byte is not all that has come.
        for piece in (data[:-1], data[-1:]) if len(data) > 1 else (data,):
            if piece and self._body is not None and self._body.is_eof():
                self._end()
                return
            if self.exception() is None:
                super().data_received(piece)
        if self._reading_paused:
            self.force_close()  # the parser holds bytes back, which may be more than the answer

    def _end(self) -> None:
        self.force_close()
        if self._requests > 1 and self._body is not None:
            # The first that came may as well be a late answer to an earlier request.
            self._body.set_exception(Unsolicited("more than one answer came to one request"))
            self._doubt()
        if self.transport is not None:
            self.transport.close()


def _is_silent(connection: ResponseHandler) -> bool:
    """Whether it is open and nothing has come, or waits to be read, that no one asked for."""
    transport = connection.transport
    if transport is None or transport.is_closing() or connection.should_close:
        return False
    unread = select.poll()
    unread.register(transport.get_extra_info("socket"), select.POLLIN)
    return not unread.poll(0)


class _Connector(aiohttp.TCPConnector):
    """Sends a request only on a connection that has been silent since its last answer."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._factory = functools.partial(_Connection, self._doubt, loop=self._loop)
        self._wary_until = float("-inf")

    def _doubt(self) -> None:
        self._wary_until = time.monotonic() + WARY_S

    async def connect(self, *args: Any, **settings: Any) -> Any:
        connection = await super().connect(*args, **settings)
        if connection.protocol is None or connection.protocol.should_close:
            connection.close()
            raise aiohttp.ClientConnectionError("it answered before it was asked")
        return connection

    async def _get(self, key: Any, traces: Any) -> Any:
        idle = self._conns.get(key)
        wary = time.monotonic() < self._wary_until
        while idle and (wary or not _is_silent(idle[0][0])):
            idle.popleft()[0].close()
        if idle and time.monotonic() - idle[0][1] < QUIET_S:
            return None  # the first has been idle for longest
        return await super()._get(key, traces)


class HttpWire:
    """aiohttp with one session, made on first use inside the running loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._base = endpoint.url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        reuse = self._endpoint.reuse_connections
        return aiohttp.ClientSession(
            # The client bounds how many requests are open; a queue here would escape its clock.
            connector=_Connector(
                limit=0, force_close=not reuse, keepalive_timeout=KEEPALIVE_S if reuse else None
            ),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._endpoint.connect_timeout_s
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[Answer, None]:
        """Send a request and yield its answer; opens the session when first used."""
        if self._session is None:
            self._session = self._open()
        try:
            response = await self._session.request(
                method,
                self._base + path,
                # answers are small: compression costs more than it saves
                headers={**headers, "accept-encoding": "identity"},
                data=body or None,
                allow_redirects=False,  # a redirect would carry the key to another host
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(_line(error)) from None
        except Exception as error:  # whatever a parser makes of unforeseen bytes
            raise WireError(_line(error)) from None

        async def read() -> bytes:
            try:
                return await response.content.readany()
            except Unsolicited:
                raise
            except Exception as error:
                raise WireError(_line(error)) from None

        names = {name.lower(): value for name, value in response.headers.items()}
        chunks = bounded(read, names.get("content-encoding", ""), self._endpoint.max_reply_bytes)
        try:
            yield Answer(response.status, names, chunks)
        finally:
            await chunks.aclose()
            # A connection that was read to its end is back in the pool; any other is closed.
            response.close()

    async def close(self) -> None:
        """Close the session and its connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class AsgiWire:
    """Calls an ASGI application in the running loop, without a socket."""

    def __init__(self, endpoint: Endpoint, app: Asgi) -> None:
        parts = urlsplit(endpoint.url)
        self._host = parts.hostname or "simulated"
        self._base = parts.path.rstrip("/") or "/v1"
        self._limit = endpoint.max_reply_bytes
        self._app = app

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[Answer, None]:
        """Call the application with a request and yield its answer."""
        scope = self._scope(method, self._base + path, headers)
        # Bounded: an application that streams for ever waits for its reader.
        sent: asyncio.Queue[Event | WireError] = asyncio.Queue(4)
        requests: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()

        async def receive() -> Event:
            if requests:
                return requests.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            why = "ended before its answer did"
            try:
                await self._app(scope, receive, sent.put)
            except Exception as error:
                why = _line(error)
            await sent.put(WireError(f"the application {why}"))

        async def take() -> Event:
            event = await sent.get()
            if isinstance(event, WireError):
                raise event
            return event

        ended = False

        async def read() -> bytes:
            nonlocal ended
            while not ended:
                event = await take()
                ended = not event.get("more_body", False)
                if data := event.get("body", b""):
                    return data
            return b""

        task = asyncio.create_task(run())
        try:
            start = await take()
            names = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in start.get("headers", ())
            }
            chunks = bounded(read, names.get("content-encoding", ""), self._limit)
            try:
                yield Answer(start["status"], names, chunks)
            finally:
                await chunks.aclose()
        finally:
            gone.set()
            if not ended:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _scope(self, method: str, path: str, headers: Mapping[str, str]) -> Event:
        all_headers = {"host": self._host, **headers}
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": [
                (name.lower().encode(), value.encode()) for name, value in all_headers.items()
            ],
        }

    async def close(self) -> None:
        """Nothing is open between two calls."""


async def bounded(
    read: Callable[[], Awaitable[bytes]], encoding: str, limit: int
) -> AsyncGenerator[bytes, None]:
    """The body that ``read`` gives (b"" at its end), decompressed in pieces of 64 KiB.
    Raises TooLarge: more than ``limit`` bytes, before or after decompression.
    Raises WireError: an encoding that was not asked for, or compressed data that is broken or cut.
    """
    inflate = None
    if (coding := encoding.strip().lower()) in ("gzip", "x-gzip", "deflate"):
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: gzip or zlib by their first bytes
    elif coding not in ("", "identity"):
        raise WireError(f"the reply came as {coding!r}, which was not asked for")
    wire = plain = 0
    while data := await read():
        wire += len(data)
        if wire > limit:
            raise TooLarge(f"the reply is larger than {limit} bytes")
        if inflate is None:
            yield data
            continue
        try:
            while data:
                if piece := inflate.decompress(data, PIECE):
                    plain += len(piece)
                    if plain > limit:
                        raise TooLarge(f"the reply unpacks to more than {limit} bytes")
                    yield piece
                data = inflate.unconsumed_tail
        except zlib.error as error:
            raise WireError(f"the compressed reply is broken: {error}") from None
        if inflate.unused_data:
            raise WireError("the compressed reply has an end, and more came behind it")
    if inflate is not None and not inflate.eof:
        raise WireError("the compressed reply was cut off")


def _line(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        # aiohttp writes a status into it that no server has sent
        return f"the answer is no HTTP: {one_line(error.message, LINE)}"
    text = one_line(str(error), LINE)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
