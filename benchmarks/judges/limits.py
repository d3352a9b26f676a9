"""Calls that come through an endpoint that refuses some: by chance, or by one of four limits.

    python -m benchmarks.judges.limits [seconds=120] [processes=2]

A local server, which works a fixed time on each request, refuses some with 429, most with a whole
number of seconds in Retry-After; the product's client asks it without a pause, from processes that
share what they learn in a folder, as cells of a sweep do. All cases run at once: each is mostly
waiting. ``used`` is the share of what could come through: of the undisturbed rate where refusals
are random, of the limit where there is one. ``refused`` counts after the first ten seconds.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path

import uvicorn

from benchmarks.race import read_sizes
from judges.endpoint.client import Channel
from judges.endpoint.replicas import open_wire
from study.config.schema import Endpoint
from tests.judges.limited import Case, Counts, ask_without_pause, limited

NAME = "benchmarks.judges.limits"
CASES = [
    Case("random-0", 0.1, 6),
    Case("random-0.0833", 0.1, 6),
    Case("random-0.0833", 0.1, 6, tells=False),
    Case("random-0.25", 0.1, 6),
    Case("bucket-10", 0.1, 6),
    Case("bucket-10", 1.0, 32),
    Case("requests-600", 0.2, 16),
    Case("tokens-132000", 0.2, 16),
    Case("at_once-4", 0.2, 16),
    Case("at_once-4", 0.2, 16, spread=0.3),
    Case("at_once-8", 0.5, 32, spread=0.3),
]


def serve(case: Case, counts: Counts) -> tuple[uvicorn.Server, str]:
    """A server in a thread of its own, and its address."""
    app = limited(case, counts)
    settings = {"log_level": "error", "lifespan": "off", "timeout_graceful_shutdown": 1}
    config = uvicorn.Config(app, port=0, **settings)
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    return server, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


async def ask(url: str, in_flight: int, seconds: float, folder: str) -> None:
    """What one client's process does."""
    endpoint = Endpoint(url, "m", max_concurrency=in_flight)
    wire = open_wire(endpoint)
    await ask_without_pause(Channel(endpoint, wire, "", Path(folder)), seconds)
    await wire.close()


async def measure(case: Case, seconds: int, processes: int) -> Counts:
    """Run one case with so many clients' processes."""
    counts = Counts()
    server, url = serve(case, counts)
    with tempfile.TemporaryDirectory() as folder:
        words = ("client", url, str(case.in_flight // processes), str(seconds), folder)
        clients = [
            await asyncio.create_subprocess_exec(sys.executable, "-m", NAME, *words)
            for _ in range(processes)
        ]
        codes = [await client.wait() for client in clients]
    server.should_exit = True
    assert not any(codes), codes
    return counts


async def table(seconds: int, processes: int) -> None:
    """Print a line for each case."""
    every_counts = await asyncio.gather(*(measure(case, seconds, processes) for case in CASES))
    print("1 process" if processes == 1 else f"{processes} processes")
    print(f"{'limit':<15}{'latency':>8}{'at once':>9}{'possible':>10}{'used':>8}{'refused':>9}")
    for case, counts in zip(CASES, every_counts, strict=True):
        name = case.limit + ("" if case.tells else " *") + (" +" if case.spread else "")
        print(
            f"{name:<15}{case.latency_s:>6} s{case.in_flight:>9}{case.possible_per_s:>8.1f}/s"
            f"{counts.used(case, seconds):>8.1%}{counts.refused_share():>9.1%}"
        )
    print("* without Retry-After; + latencies that differ by as much as 30 %")


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        url, in_flight, seconds, folder = sys.argv[2:]
        asyncio.run(ask(url, int(in_flight), float(seconds), folder))
    else:
        sizes = read_sizes(seconds=120, processes=2)
        for processes in range(1, sizes["processes"] + 1):
            asyncio.run(table(sizes["seconds"], processes))
