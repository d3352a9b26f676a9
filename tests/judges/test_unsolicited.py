"""What an endpoint sends without a question is no answer to the next one."""

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from judges.endpoint import transport
from judges.endpoint.client import Channel, ask
from judges.endpoint.dialects import chat_body
from judges.endpoint.transport import QUIET_S, HttpWire, Unsolicited, WireError
from judges.fault_injection import server as shapes
from judges.fault_injection.server import DONE, chunk
from study.config.schema import Endpoint, Sampling
from tests.waiting import come


def whole(text: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)


def chunked(text: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)


def hinted(text: bytes) -> bytes:
    return b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + whole(text)


FORMS = {"whole": whole, "chunked": chunked, "hinted": hinted}


def plain(text: bytes) -> bytes:
    return shapes.whole(shapes.completion(shapes.choice(text.decode())))


def streamed(text: bytes) -> bytes:
    events = chunk({"content": text.decode()}, "stop") + chunk(None) + DONE
    return chunked(events).replace(b"\r\n", b"\r\ncontent-type: text/event-stream\r\n", 1)


class Server:
    """Answers ``/N`` with N, and a chat about N; tests write to its ``connections``.

    It sends what is in ``behind`` with an answer, and each answer again after ``again_s``. A
    question in ``twice`` gets the answer to the one before on its connection, and its own. If
    ``late``, the answer to the one before comes to every connection once there is another question
    anywhere, and is the only one."""

    def __init__(self, form: Callable[[bytes], bytes] = whole) -> None:
        self.form = form
        self.behind: dict[bytes, bytes] = {}
        self.again_s: float | None = None
        self.twice: set[bytes] = set()
        self.greeting = b""
        self.late = False
        self.answered = 0
        self.connections: list[asyncio.StreamWriter] = []
        self.heads: list[bytes] = []
        self._tasks: list[Any] = []
        self._last: dict[asyncio.StreamWriter, bytes] = {}
        """The last question on each connection that is open."""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.current_task())
        self.connections.append(writer)
        writer.write(self.greeting)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                text = head.split()[1][-2:]
                if length := re.search(rb"content-length: (\d+)", head.lower()):
                    body = json.loads(await reader.readexactly(int(length[1])))
                    text = body["messages"][-1]["content"].encode()
                earlier, self._last[writer] = self._last.get(writer), text
                others = [each for each in self._last.items() if each[0] is not writer]
                for connection, last in others if self.late else []:
                    connection.write(self.form(last))
                again = self.form(earlier) if earlier and text in self.twice else b""
                answer = self.form(earlier if earlier and self.late else text)
                writer.write(again + answer + self.behind.get(text, b""))
                if self.again_s is not None:
                    await asyncio.sleep(self.again_s)
                    writer.write(answer)
                self.answered += 1
        self._last.pop(writer, None)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def run(self, work: Callable[[HttpWire], Coroutine[Any, Any, None]], **endpoint: Any) -> None:
        async def main() -> None:
            server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            wire = HttpWire(Endpoint(url=f"http://127.0.0.1:{port}", **endpoint))
            try:
                await work(wire)
            finally:
                await wire.close()
                await asyncio.gather(*self._tasks)
                server.close()
                await server.wait_closed()

        asyncio.run(main())


async def get(wire: HttpWire, text: bytes) -> bytes:
    async with wire.exchange("GET", f"/{text.decode()}", {}, b"") as answer:
        return b"".join([data async for data in answer.chunks])


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may be used again at once."""
    monkeypatch.setattr(transport, "QUIET_S", 0.0)


UNSOLICITED = {
    "an answer": whole(b"xx"),
    "an answer in chunks": chunked(b"xx"),
    "an empty answer": whole(b""),
    "two answers": whole(b"xx") * 2,
    "the begin of a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "a head and half a body": whole(b"xx")[:-1],
    "a promise of an answer": b"HTTP/1.1 100 Continue\r\n\r\n",
    "one letter": b"H",
    "a blank line": b"\r\n",
    "no HTTP": b"hello",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("come_when", ["with the answer", "later", "later and unread"])
@pytest.mark.parametrize("lies", UNSOLICITED)
def test_what_lies_on_a_connection_closes_it(lies: str, come_when: str, form: str) -> None:
    server = Server(FORMS[form])

    async def work(wire: HttpWire) -> None:
        assert await get(wire, b"10") == b"10"
        assert await get(wire, b"11") == b"11"
        assert len(server.connections) == 1  # it is used again while nothing lies on it
        if come_when == "with the answer":
            server.behind[b"12"] = UNSOLICITED[lies]
            with suppress(WireError):  # on a connection with an earlier request
                assert await get(wire, b"12") == b"12"
        else:
            server.connections[0].write(UNSOLICITED[lies])  # at once in the client's socket
        if come_when == "later":
            for _ in range(5):
                await asyncio.sleep(0)  # the loop reads it
        assert await get(wire, b"13") == b"13"
        assert len(server.connections) == 2
        assert await get(wire, b"14") == b"14"

    server.run(work)


def test_a_connection_that_the_endpoint_has_closed_is_not_used_again() -> None:
    server = Server()

    async def work(wire: HttpWire) -> None:
        for text in (b"10", b"11", b"12"):
            assert await get(wire, text) == text
            server.connections[-1].transport.abort()

    server.run(work)
    assert len(server.connections) == 3


@pytest.mark.parametrize("form", FORMS)
def test_two_answers_at_once_are_the_first_only_where_no_earlier_question_was(form: str) -> None:
    server = Server(FORMS[form])
    server.twice.add(b"21")
    server.behind[b"30"] = FORMS[form](b"31")

    async def work(wire: HttpWire) -> None:
        assert await get(wire, b"20") == b"20"
        with pytest.raises(Unsolicited, match="more than one answer"):
            await get(wire, b"21")
        assert await get(wire, b"30") == b"30"  # the first question of a new connection
        assert await get(wire, b"31") == b"31"

    server.run(work)
    assert len(server.connections) == 3


@pytest.mark.parametrize("late_s", [0.0, 0.01, 0.05])
def test_a_second_answer_to_one_question_is_not_taken_for_the_next(late_s, monkeypatch) -> None:
    """After an even question the second answer comes before the next, else at some time later."""
    server = Server()
    server.again_s = late_s

    async def work(wire: HttpWire) -> None:
        for number in range(10, 16):
            assert await get(wire, b"%d" % number) == b"%d" % number
            if number % 2:  # as on a machine that is quick enough to ask within that time
                monkeypatch.setattr(transport, "QUIET_S", 3600.0)
                await asyncio.sleep(late_s / 2)
            else:
                monkeypatch.setattr(transport, "QUIET_S", QUIET_S)
                await come(lambda: server.answered == len(server.heads))
                await asyncio.sleep(2 * QUIET_S)
        await come(lambda: server.answered == len(server.heads))

    server.run(work)
    assert len(server.heads) == 6


def test_who_answers_before_being_asked_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.greeting = whole(b"xx")
    connects = transport._Connector._create_connection

    async def slowly(self: Any, *settings: Any) -> Any:
        connection = await connects(self, *settings)
        await come(lambda: connection.should_close, "the greeting")
        return connection

    async def work(wire: HttpWire) -> None:
        with pytest.raises(WireError, match="it answered before it was asked"):
            await get(wire, b"10")

    monkeypatch.setattr(transport._Connector, "_create_connection", slowly)
    server.run(work)
    assert server.heads == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_question_with_two_answers_is_asked_again(stream: bool) -> None:
    server = Server(streamed if stream else plain)
    server.twice.add(b"21")
    server.behind[b"21"] = server.form(b"21")  # on a new connection, too

    async def work(wire: HttpWire) -> None:
        endpoint = Endpoint(url="http://host/v1", model="m", stream=stream, attempts=2)
        channel = Channel(dataclasses.replace(endpoint, backoff_s=0.001), wire)

        async def reply(text: str) -> tuple[str, int]:
            turns = [{"role": "user", "content": text}]
            fetched = await ask(channel, chat_body(endpoint, Sampling(), turns))
            assert fetched.outcome is None, fetched.reason
            return fetched.replies[0].text, fetched.attempts

        texts = ("18", "19", "20")
        assert await asyncio.gather(*map(reply, texts)) == [(text, 1) for text in texts]
        # three connections are open, and the second attempt takes none of them
        assert [await reply("21"), await reply("22")] == [("21", 2), ("22", 1)]

    server.run(work)
    assert len(server.connections) == 5


@pytest.mark.parametrize("reuse", [True, False])
def test_a_late_second_answer_is_told_apart_only_by_its_connection(reuse: bool) -> None:
    """It comes when the next question waits: the limit of HTTP/1.1, and how it is avoided."""
    server = Server()
    server.late = True
    texts = [b"10", b"11", b"12"]

    async def work(wire: HttpWire) -> None:
        answers = [await get(wire, text) for text in texts]
        assert answers == ([b"10", b"10", b"11"] if reuse else texts)

    server.run(work, reuse_connections=reuse)
    assert len(server.connections) == (1 if reuse else 3)
    assert all((b"connection: close" in head.lower()) is not reuse for head in server.heads)
