"""CPU per judge request at 64 and 256 in flight: this project's client, its peers, raw asyncio.

    python benchmarks/judges/client.py [requests=2000] [rounds=3]

A server in a process of its own answers at once; the trainer's process pays for the rest, and this
is what is measured: CPU seconds of the client's process per request with a 4 kB prompt. Each run is
a fresh process, runs of all clients take turns, and each reply is compared with its question first.
Peers that are not installed are left out, and said.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IN_FLIGHT = (64, 256)
PROMPT = "Say how good this is, please. " * 133  # 4 kB with its number
TARGETS = {"openai + httpx": 8.0, "openai + aiohttp": 5.0, "litellm": 20.0}
"""Peer -> how many times our CPU it should take at least."""
Asker = Callable[[str], Awaitable[str]]
"""Prompt -> the text of the reply."""


class Answers(asyncio.Protocol):
    """Answers each request with the number that its prompt ends with."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            size = re.search(rb"content-length: *(\d+)", self.data[:end], re.I)
            whole = end + 4 + (int(size[1]) if size else 0)
            if len(self.data) < whole:
                return
            number = re.search(rb"#(\d+)#", self.data[end:whole])
            self.data = self.data[whole:]
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": number[1].decode() if number else ""},
                "finish_reason": "stop",
            }
            usage = {"prompt_tokens": 1000, "completion_tokens": 1, "total_tokens": 1001}
            body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
            text = json.dumps({**body, "choices": [choice], "usage": usage}).encode()
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                % len(text) + text
            )  # fmt: skip


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def body_of(prompt: str) -> dict[str, Any]:
    return {
        "model": "m", "messages": [{"role": "user", "content": prompt}],
        "temperature": 0.0, "top_p": 1.0, "max_tokens": 16, "seed": 0,
    }  # fmt: skip


class Raw:
    """Pooled connections and nothing but what HTTP needs: the floor."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, prompt: str) -> str:
        reader, writer = (
            self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
        )
        body = json.dumps(body_of(prompt)).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head[head.index(b"content-length:") + 15 :].split(b"\r\n")[0])
        reply = json.loads(await reader.readexactly(size))
        self.free.append((reader, writer))
        return reply["choices"][0]["message"]["content"]


def ours(port: int, in_flight: int) -> Asker:
    from judges.endpoint.client import Channel, ask
    from judges.endpoint.dialects import chat_body
    from judges.endpoint.replicas import open_wire
    from study.config.schema import Endpoint, Sampling

    endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", model="m", max_concurrency=in_flight)
    sampling, channel = Sampling(max_tokens=16), Channel(endpoint, open_wire(endpoint))

    async def asker(prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        got = await ask(channel, chat_body(endpoint, sampling, messages))
        return got.replies[0].text

    return asker


def openai_httpx(port: int, in_flight: int) -> Asker:
    return _openai(port, None)


def openai_aiohttp(port: int, in_flight: int) -> Asker:
    from openai import DefaultAioHttpClient

    return _openai(port, DefaultAioHttpClient())


def _openai(port: int, http: Any) -> Asker:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(
        api_key="none", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0, http_client=http
    )

    async def asker(prompt: str) -> str:
        reply = await client.chat.completions.create(**body_of(prompt))
        return reply.choices[0].message.content or ""

    return asker


def litellm(port: int, in_flight: int) -> Asker:
    import litellm as library

    async def asker(prompt: str) -> str:
        reply: Any = await library.acompletion(
            **{**body_of(prompt), "model": "openai/m"}, api_key="none", max_retries=0,
            api_base=f"http://127.0.0.1:{port}/v1",
        )  # fmt: skip
        return reply.choices[0].message.content

    return asker


CLIENTS: dict[str, tuple[Callable[[int, int], Asker], tuple[str, ...]]] = {
    "raw asyncio": (lambda port, _: Raw(port).ask, ()),
    "judges.endpoint.client": (ours, ("aiohttp",)),
    "openai + aiohttp": (openai_aiohttp, ("openai", "httpx_aiohttp")),
    "openai + httpx": (openai_httpx, ("openai", "httpx")),
    "litellm": (litellm, ("litellm",)),
}
"""Name -> how to build it, and the modules that it needs."""


async def measure(name: str, port: int, in_flight: int, requests: int) -> float:
    """CPU microseconds per request, after a round of warming up."""
    asker = CLIENTS[name][0](port, in_flight)
    slots = asyncio.Semaphore(in_flight)

    async def one(number: int) -> None:
        async with slots:
            score = await asker(f"{PROMPT}#{number}#")
            assert score == str(number), f"asked {number}, got {score!r}"

    await asyncio.gather(*(one(number) for number in range(in_flight)))
    started = time.process_time()
    await asyncio.gather(*(one(number) for number in range(requests)))
    return (time.process_time() - started) / requests * 1e6


def main(requests: int, rounds: int) -> None:
    """Let all clients take turns and print the table."""
    server = subprocess.Popen(
        [sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        there = {
            name: [module for module in needs if importlib.util.find_spec(module) is None]
            for name, (_, needs) in CLIENTS.items()
        }
        for name, missing in there.items():
            if missing:
                print(f"left out: {name} ({', '.join(missing)} is not installed)")
        taken: dict[tuple[str, int], list[float]] = {}
        for _ in range(rounds):
            for in_flight in IN_FLIGHT:
                for name in (name for name, missing in there.items() if not missing):
                    taken.setdefault((name, in_flight), []).append(
                        _apart(name, port, in_flight, requests)
                    )
        _print(taken)
    finally:
        server.kill()
        server.wait()


def _apart(name: str, port: int, in_flight: int, requests: int) -> float:
    arguments = ["run", name, str(port), str(in_flight), str(requests)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


def _print(taken: dict[tuple[str, int], list[float]]) -> None:
    print(f"{'client':18} {'in flight':>9} {'us CPU':>8} {'(worst)':>8} {'x raw':>6} {'x ours':>7}")
    for (name, in_flight), values in sorted(taken.items(), key=lambda item: item[0][1]):
        best = min(values)
        ratios = {
            other: statistics.median(
                mine / theirs
                for mine, theirs in zip(values, taken[other, in_flight], strict=True)
            )
            for other in ("raw asyncio", "judges.endpoint.client")
        }  # fmt: skip
        target = TARGETS.get(name)
        note = "" if target is None else f"   wanted: at least {target:g} x ours"
        note = "   wanted: at most 5 x raw" if name == "judges.endpoint.client" else note
        print(
            f"{name:18} {in_flight:9} {best:8.0f} {max(values):8.0f} {ratios['raw asyncio']:6.1f} "
            f"{ratios['judges.endpoint.client']:7.1f}{note}"
        )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["run", name, port, in_flight, requests]:
            print(asyncio.run(measure(name, int(port), int(in_flight), int(requests))))
        case arguments:
            options = dict(argument.split("=") for argument in arguments)
            main(int(options.get("requests", 2000)), int(options.get("rounds", 3)))
