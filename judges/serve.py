"""Serves a judge: ``python -m judges.serve judge=qwen3-32b`` starts vLLM for it and proves that it
judges; ``judge=sim-verbose`` serves a simulated judge over a real socket.

Any OpenAI client can ask either, so what a study does with a judge is what anybody would do.
"""

from __future__ import annotations

import dataclasses
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from judges.check import probe
from judges.serving import server, vllm_command
from judges.serving.server import LOCAL
from judges.simulated.app import simulated_app
from study.cli import read_pairs
from study.compose import load_presets, preset_names
from study.errors import UserError
from study.schema import Judge, Task
from study.screen import visible
from study.tasks import oracle
from study.verdict import Outcome

if TYPE_CHECKING:
    from judges.serving.server import Server

USAGE = (
    "python -m judges.serve judge=NAME [print_only=true] [stop=true] [replicas=N] [host=127.0.0.1]"
    " [port=8100] [runs_dir=runs] [task=instruct-mini] [judge.KEY=VALUE ...] [task.KEY=VALUE ...]"
)
SIMULATED_PORT = 8100


@dataclass(frozen=True)
class Command:
    """The command line, read."""

    judge: str
    task: str = "instruct-mini"
    host: str | None = None
    port: int | None = None
    """None: that of the preset's endpoint, 8100 for a simulated judge; 0: any free one."""
    print_only: bool = False
    stop: bool = False
    """Stop the server that a killed sweep left behind."""
    runs_dir: Path = Path("runs")
    overrides: list[str] = field(default_factory=list)
    """Further settings of the judge and the task, as Hydra takes them."""


def read_command(arguments: Sequence[str]) -> Command:
    """Read ``key=value`` arguments.

    Raises:
        UserError: something else than key=value, an unknown key, a bad value, or no judge.
    """
    known = ("judge", "task", "host", "port", "print_only", "stop", "replicas", "runs_dir")
    values, overrides = read_pairs(arguments, known, "judges.serve", USAGE)
    if (replicas := values.pop("replicas", None)) is not None:
        overrides.append(f"judge.serve.replicas={replicas}")
    port = values.pop("port", None)
    if port is not None and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise UserError(f"port={port} is no port: give 0 (any free one) to 65535.")
    switches = {name: values.pop(name, "false").lower() for name in ("print_only", "stop")}
    for name, value in switches.items():
        if value not in ("true", "false"):
            raise UserError(f"{name}={value} is neither true nor false.")
    return Command(
        judge=values["judge"],
        task=values.get("task", "instruct-mini"),
        host=values.get("host"),
        port=None if port is None else int(port),
        print_only=switches["print_only"] == "true",
        stop=switches["stop"] == "true",
        runs_dir=Path(values.get("runs_dir", "runs")),
        overrides=overrides,
    )


def serve(command: Command) -> None:
    """Serve until interrupted; prints the address once the judge answers.

    Raises:
        UserError: there is nothing to serve, or it cannot be served here.
    """
    judge, task = load_presets(command.judge, command.task, command.overrides)
    if judge.simulated is None:
        serve_vllm(judge, command)
    elif command.print_only or command.stop:
        raise UserError(
            f"judge={judge.name} is simulated: no other process serves it, so there is nothing to"
            " print or to stop."
        )
    else:
        serve_simulated(judge, task, command)


def serve_simulated(judge: Judge, task: Task, command: Command) -> None:
    """Serve a simulated judge in this process, until interrupted.

    Raises:
        UserError: the address cannot be had.
    """
    import uvicorn

    app = simulated_app(judge, oracle(task))
    port = SIMULATED_PORT if command.port is None else command.port
    listener = _listen(command.host or "127.0.0.1", port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"{judge.name} answers at http://{shown}:{port}/v1 (stop it with Ctrl-C)", flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def serve_vllm(judge: Judge, command: Command) -> None:
    """Start vLLM, wait until it is healthy, get one verdict from each replica, and stay.

    Raises:
        UserError: it cannot be started, serves another model, cannot judge, or ended by itself.
    """
    host, port = _address(judge, command)
    if command.stop:
        print(server.sweep_up(judge, port, command.runs_dir))
        return
    if command.print_only:
        print("\n".join(vllm_command.shown(judge, host, port)))
        return
    with terminated_as_interrupt():
        servers: list[Server] = []
        try:
            servers = server.start(judge, host, port, command.runs_dir)
            for each in servers:
                print(
                    f"{judge.name} starts as process {each.pid}; its log is {each.log}", flush=True
                )
            seconds = server.wait_ready(judge, servers)
            for each in servers:
                print(f"{judge.name} answers at {each.url} after {seconds:.0f} s", flush=True)
                _probe(judge, each)
            print(_how_to_ask(judge, servers), flush=True)
            while all(map(server.alive, servers)):
                time.sleep(server.POLL_S)
            server.wait_ready(judge, servers, timeout_s=0.0)  # says how it ended, with its log
        finally:
            server.stop(servers)


def _address(judge: Judge, command: Command) -> tuple[str, int]:
    """Where to listen: what was typed, else what the preset's endpoint says of this machine."""
    parts = urlsplit(judge.endpoint.url)
    host = command.host or (parts.hostname if parts.hostname in LOCAL else None) or "127.0.0.1"
    port = command.port
    if port is None:
        port = parts.port if parts.hostname in LOCAL and parts.port else 8000
    if port == 0:
        with _listen(host, 0) as listener:
            port = listener.getsockname()[1]
    return host, port


def _probe(judge: Judge, each: Server) -> None:
    """One verdict from one replica, printed.

    Raises:
        UserError: it gave none, for a reason that is the server's.
    """
    endpoint = dataclasses.replace(judge.endpoint, url=each.url, replicas=[])
    verdict = probe(dataclasses.replace(judge, endpoint=endpoint))
    if verdict.outcome is Outcome.scored:
        print(f"a probe was scored {verdict.score:.3f} in {verdict.latency_s:.2f} s", flush=True)
        return
    if verdict.text or verdict.reasoning:  # it talks, and only the grading could not use it
        why = visible(f"{verdict.outcome}, {verdict.reason}")
        print(f"a probe was not scored: {why}", file=sys.stderr)
        return
    raise UserError(
        f"The server at {each.url} is healthy and gives no verdict: {verdict.outcome},"
        f" {verdict.reason}. Its log is {each.log}."
    )


def _how_to_ask(judge: Judge, servers: Sequence[Server]) -> str:
    words = [f"judge={judge.name}"]
    if judge.endpoint.url != servers[0].url:
        words.append(f"judge.endpoint.url={servers[0].url}")
    if len(servers) > 1:
        more = ",".join(each.url for each in servers[1:])
        words.append(f"'judge.endpoint.replicas=[{more}]'")
    return f"ask it with {' '.join(words)} (stop it with Ctrl-C)"


@contextmanager
def terminated_as_interrupt() -> Generator[None, None, None]:
    """Within the block SIGTERM interrupts as Ctrl-C does, so that what was started is stopped."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as problem:
        raise UserError(
            f"Nothing can listen on {host}:{port} ({problem.strerror}). Give another address; type"
            " for example port=0 to take any free port."
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 2 for what the user can put right."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(argument in ("-h", "--help") for argument in given):
        print(f"{__doc__}\n{USAGE}\n\nThe judges are {', '.join(preset_names('judge'))}.")
        return 0
    try:
        serve(read_command(given))
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
