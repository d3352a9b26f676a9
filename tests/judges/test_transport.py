"""Both wires give the same answers, keep their connections, and stop with their client."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from judges.endpoint.replicas import open_wire
from judges.endpoint.transport import (
    QUIET_S,
    AsgiWire,
    HttpWire,
    TooLarge,
    Unreachable,
    WireError,
    bounded,
)
from study.config.schema import Endpoint
from study.errors import UserError

ENDPOINT = Endpoint(url="asgi://simulated", max_reply_bytes=1_000)


def fetch(
    app: Any, body: bytes = b"", endpoint: Endpoint = ENDPOINT, path: str = "/x"
) -> tuple[int, dict[str, str], bytes]:
    async def main() -> tuple[int, dict[str, str], bytes]:
        wire = AsgiWire(endpoint, app)
        async with wire.exchange("POST", path, {"Content-Type": "text/plain"}, body) as answer:
            read = b"".join([data async for data in answer.chunks])
        await wire.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return answer.status, dict(answer.headers), read

    return asyncio.run(main())


def saying(*parts: bytes, status: int = 200, **headers: str) -> Any:
    """An application that answers with these parts."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        names = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": names})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    return app


def test_an_application_is_called_as_by_a_server() -> None:
    scope_copy: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope_copy.update(scope)
        scope_copy["body"] = await receive()
        await saying(b"a", b"", b"bc", status=418, X_Tea="pot")(scope, receive, send)

    assert fetch(app, b"hello") == (418, {"x-tea": "pot"}, b"abc")
    assert (scope_copy["type"], scope_copy["method"], scope_copy["path"]) == (
        "http",
        "POST",
        "/v1/x",
    )
    assert (b"content-type", b"text/plain") in scope_copy["headers"]
    assert scope_copy["body"] == {"type": "http.request", "body": b"hello", "more_body": False}
    fetch(app, endpoint=Endpoint(url="asgi://simulated/api/v2/"))
    assert scope_copy["path"] == "/api/v2/x"


def test_starlette_runs_on_it() -> None:
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def count() -> AsyncIterator[bytes]:
        for number in range(20):
            yield b"%d " % number

    async def endpoint(request: Any) -> StreamingResponse:
        assert await request.body() == b"?"
        return StreamingResponse(count(), 201)

    status, _, body = fetch(Starlette(routes=[Route("/v1/x", endpoint, methods=["POST"])]), b"?")
    assert (status, body) == (201, b" ".join(b"%d" % number for number in range(20)) + b" ")


async def _crash(scope: Any, receive: Any, send: Any) -> None:
    raise ZeroDivisionError("by\nzero")


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    return


async def _half(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})


async def _half_crash(scope: Any, receive: Any, send: Any) -> None:
    await _half(scope, receive, send)
    raise ZeroDivisionError


@pytest.mark.parametrize("app", [_crash, _nothing, _half, _half_crash])
def test_an_application_that_breaks_off_is_an_error_of_the_wire(app: Any) -> None:
    with pytest.raises(WireError, match=r"^the application [^\n]*$"):
        fetch(app)


@pytest.mark.parametrize("read_first", [True, False])
async def test_an_application_stops_when_its_client_leaves(read_first: bool) -> None:
    stopped: list[str] = []
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})
                sent += 1
        except asyncio.CancelledError:
            stopped.append("cancelled")
            raise

    async with AsgiWire(ENDPOINT, app).exchange("POST", "/x", {}, b"") as answer:
        if read_first:
            assert await anext(aiter(answer.chunks)) == b"x" * 10
        await asyncio.sleep(3600)
    assert stopped == ["cancelled"]
    assert sent < 10  # it waited for its reader instead of filling memory
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_deadline_stops_an_application_that_never_answers() -> None:
    events: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        try:
            events.append((await receive())["type"])
        finally:
            events.append("stopped")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), AsgiWire(ENDPOINT, app).exchange("GET", "/", {}, b""):
            pass
    assert "stopped" in events
    assert asyncio.all_tasks() == {asyncio.current_task()}


def unpack(data: bytes, encoding: str, limit: int, piece: int = 100) -> bytes:
    async def main() -> bytes:
        source = iter([data[at : at + piece] for at in range(0, len(data), piece)])

        async def read() -> bytes:
            return next(source, b"")

        return b"".join([part async for part in bounded(read, encoding, limit)])

    return asyncio.run(main())


TEXT = b"".join(b"%d," % number for number in range(2_000))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    "X-GZip": gzip.compress,
    "deflate": zlib.compress,
}


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("piece", [1, 100, 100_000])
def test_the_limit_counts_what_comes_out(encoding: str, piece: int) -> None:
    packed = PACK[encoding](TEXT)
    assert unpack(packed, encoding, len(TEXT), piece) == TEXT
    with pytest.raises(TooLarge):
        unpack(packed, encoding, len(TEXT) - 1, piece)


def test_a_bomb_never_unfolds() -> None:
    packed = gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            unpack(packed, "gzip", 1_000_000, len(packed))
        assert tracemalloc.get_traced_memory()[1] < 2_500_000
    finally:
        tracemalloc.stop()


def test_all_that_is_unpacked_counts_both_ways(faults: Any) -> None:
    empty_block = b"\x00\x00\x00\xff\xff"
    with pytest.raises(TooLarge):
        unpack(zlib.compress(b"")[:2] + empty_block * 1_000, "deflate", 1_000)
    assert fetch(saying(gzip.compress(b"x" * 999), content_encoding="gzip"))[2] == b"x" * 999
    with pytest.raises(TooLarge):
        fetch(saying(gzip.compress(b"x" * 1_001), content_encoding="gzip"))


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip, br"])
def test_another_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(WireError, match="not asked for"):
        unpack(TEXT, encoding, 10_000)


@pytest.mark.parametrize("piece", [1, 100_000])
@pytest.mark.parametrize("behind", [b"x", gzip.compress(TEXT)])
def test_what_comes_behind_compressed_data_makes_it_none(behind: bytes, piece: int) -> None:
    with pytest.raises(WireError, match="more came behind it"):
        unpack(gzip.compress(TEXT) + behind, "gzip", 100_000, piece)


def test_a_connection_is_used_again_and_a_redirect_is_not_followed(faults: Any) -> None:
    async def main() -> None:
        wire = HttpWire(Endpoint(url=faults.url("good")))

        async def post() -> tuple[int, bytes]:
            async with wire.exchange("POST", "/chat/completions", {"x-mark": "1"}, b"{}") as answer:
                return answer.status, b"".join([data async for data in answer.chunks])

        before = faults.connections
        first = await post()
        assert first[0] == 200
        for _ in range(4):
            await asyncio.sleep(1.5 * QUIET_S)
            assert await post() == first
        assert faults.connections == before + 1
        await wire.close()
        wire = HttpWire(Endpoint(url=faults.url("redirect")))
        assert (await post())[0] == 307
        await wire.close()
        await wire.close()  # closing twice is fine

    asyncio.run(main())
    head = next(head for head in faults.headers if b"x-mark" in head.lower()).lower()
    assert b"accept-encoding: identity\r\n" in head


def test_nobody_there_is_told_from_broken_off(faults: Any) -> None:
    async def outcome(url: str) -> WireError:
        wire = HttpWire(Endpoint(url=url, connect_timeout_s=0.5))
        try:
            async with wire.exchange("GET", "/models", {}, b""):
                raise AssertionError("answered")
        except WireError as error:
            return error
        finally:
            await wire.close()

    async def main() -> None:
        assert type(await outcome("http://127.0.0.1:1/v1")) is Unreachable
        assert type(await outcome(faults.url("close"))) is WireError
        assert type(await outcome(faults.url("rst"))) is WireError
        no_http = await outcome(faults.url("no_http"))
        assert str(no_http).startswith("the answer is no HTTP: Bad status line")

    asyncio.run(main())


def test_the_scheme_picks_the_wire() -> None:
    app: Callable[..., Awaitable[None]] = saying()
    assert isinstance(open_wire(Endpoint(url="asgi://simulated"), app), AsgiWire)
    assert isinstance(open_wire(Endpoint(url="https://host/v1")), HttpWire)
    for url in ("asgi://simulated", "ftp://host", "localhost:8000", "", "http://", "http:/host/v1"):
        with pytest.raises(UserError, match="http://host:port/v1"):
            open_wire(Endpoint(url=url))
