"""Starts and stops vLLM servers for judges, and shares one server among many users.

`judges.serve` uses ``start`` and ``stop``. A sweep uses ``leases``: the first user starts the
server, the last one stops it, and a user that died does not count.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from judges.endpoint.channel import read_key
from judges.serving.vllm_command import arguments, check_model, environment, launcher
from study import clock, locks
from study.errors import UserError
from study.files import read_json, write_json
from study.schema import Model
from study.secrets import redact

POLL_S = 0.5
TAIL_LINES = 20
STOP_S = 30.0
"""How long a server may take to end by itself before it is killed."""
MOVE = "another port, and judge.endpoint.url with it; type for example port=8200."
ANY_PORT = "another address; type for example port=0 to take any free port."
LOCAL = ("127.0.0.1", "localhost", "::1", "0.0.0.0")

_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""Servers that this process started, by pid: only their parent can wait for them."""


@dataclass(frozen=True)
class Process:
    """A process; the start time tells it from a later one with the same pid."""

    pid: int
    started: str


@dataclass(frozen=True)
class Server(Process):
    """One vLLM process."""

    url: str
    log: str


def start(
    model: Model, host: str, port: int, runs_dir: Path, attached: bool = True
) -> list[Server]:
    """Start every replica and return at once; ``wait_ready`` waits until they answer.

    The first listens on ``port``, the others on the next ones; log files are under ``servers/`` in
    ``runs_dir``. ``attached`` servers end when this process does, however it ends.
    Raises UserError: vLLM or the model is missing, or a port is taken."""
    ports = range(port, port + model.serve.replicas)
    lists = [arguments(model, host, place) for place in ports]
    command = launcher(model.serve.device)
    added = [environment(model, index) for index in range(model.serve.replicas)]
    check_model(model.serve.model)
    for place in ports:
        listen(host, place, MOVE).close()
    folder = runs_dir / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    servers: list[Server] = []
    try:
        for place, words, variables in zip(ports, lists, added, strict=True):
            log = folder / f"{model.name or model.role}-{place}.log"
            with log.open("wb") as file:
                file.write(f"$ {shlex.join(['vllm', 'serve', *words])}\n".encode())
                file.flush()
                process = subprocess.Popen(
                    [*command, "serve", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=os.environ | variables,
                    start_new_session=True,  # Ctrl-C is for us, and the group is the server's own
                    preexec_fn=end_with_parent if attached else None,
                )
            _CHILDREN[process.pid] = process
            started = _start_time(process.pid) or ""
            servers.append(Server(process.pid, started, address(host, place), str(log)))
    except BaseException:
        stop(servers)
        raise
    return servers


def end_with_parent() -> None:
    """Run in a child: on Linux it gets SIGTERM when its parent is gone, even by kill -9."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def address(host: str, port: int) -> str:
    """The base URL of a server that listens on ``host`` and ``port``."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}/v1" if ":" in reached else f"http://{reached}:{port}/v1"


def listen(host: str, port: int, instead: str) -> socket.socket:
    """A listening socket.
    Raises UserError: the port is taken, or the address is not of this machine; the message ends
        with ``instead``."""
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as problem:
        raise UserError(
            f"Nothing can listen on {host}:{port} ({problem.strerror}). Give {instead}"
        ) from None


def wait_ready(model: Model, servers: Sequence[Server], timeout_s: float | None = None) -> float:
    """Seconds until every server was healthy and served the model that the judge asks for.
    Raises UserError: a server ended or was not ready in time (both with the end of its log), or it
        serves another model."""
    limit = model.serve.start_timeout_s if timeout_s is None else timeout_s
    began = time.monotonic()
    for server in servers:
        while get(model, server.url.removesuffix("/v1") + "/health") is None:
            if not alive(server):
                child = _CHILDREN.get(server.pid)
                code = child.poll() if child else None
                how = "" if code is None else f" with exit code {code}"
                raise UserError(f"vLLM ended{how} before it answered.{_tail(model, server)}")
            if time.monotonic() - began > limit:
                raise UserError(
                    f"vLLM did not answer at {server.url} within {limit:g} s. Give it longer with"
                    f" {model.role}.serve.start_timeout_s=..., or see why.{_tail(model, server)}"
                )
            time.sleep(POLL_S)
        served = models(model, server.url)
        if model.endpoint.model not in (served or []):
            raise UserError(
                f"The server at {server.url} serves {', '.join(served or []) or 'no model'}, and"
                f" the {model.role} asks for {model.role}.endpoint.model={model.endpoint.model!r}."
                " Stop the other server, or take another port."
            )
    return time.monotonic() - began


def models(model: Model, url: str) -> list[str] | None:
    """The models that the endpoint at ``url`` lists; None if nothing answers there."""
    body = get(model, f"{url}/models")
    if body is None:
        return None
    try:
        return [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, TypeError, KeyError):
        return []


def get(model: Model, url: str) -> bytes | None:
    """The body of a 200 response; None for anything else."""
    key = read_key(model.endpoint)
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"} if key else {})
    # A proxy named in the environment is not for servers on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5) as response:
            return response.read(1_000_000) if response.status == 200 else None
    except urllib.error.HTTPError as problem:
        problem.close()
        return None
    except (OSError, ValueError):
        return None


def stop(servers: Sequence[Server], patience_s: float = STOP_S) -> None:
    """End the servers and all their processes."""
    ours = [server for server in servers if alive(server) or server.pid in _CHILDREN]
    for server in ours:
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    for server in ours:
        while _group(server.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        while _group(server.pid):
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            time.sleep(0.05)
        if child := _CHILDREN.pop(server.pid, None):
            child.wait()


def alive(process: Process) -> bool:
    """Whether the process still runs."""
    return _start_time(process.pid) == process.started


def _stat(pid: int | str) -> list[str] | None:
    """Fields of /proc/PID/stat after the name: state, parent, group, ...; None if it ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields


def _start_time(pid: int) -> str | None:
    """Boot id and clock ticks since the boot when a process started; None if it ended."""
    fields = _stat(pid)
    return f"{clock.boot()}-{fields[19]}" if fields else None


def _group(pgid: int) -> list[int]:
    """The running processes of a process group."""
    return [
        int(name)
        for name in os.listdir("/proc")
        if name.isdigit() and (fields := _stat(name)) and int(fields[2]) == pgid
    ]


def _tail(model: Model, server: Server) -> str:
    try:
        text = Path(server.log).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = redact(text, [read_key(model.endpoint)]).strip().splitlines()[-TAIL_LINES:]
    return f" The end of {server.log}:\n" + "\n".join(lines)


@contextmanager
def leases(asked: Iterable[Model], runs_dir: Path) -> Generator[None, None, None]:
    """Run the servers of all models with ``serve.auto`` during the block.
    Raises UserError: as ``lease`` does."""
    wanted = {repr((model.endpoint, model.serve)): model for model in asked if model.serve.auto}
    with ExitStack() as stack:
        for model in wanted.values():
            stack.enter_context(lease(model, runs_dir))
        yield


@contextmanager
def lease(model: Model, runs_dir: Path) -> Generator[list[str], None, None]:
    """Run the judge's server during the block, shared with all processes that need it; gives the
    addresses of its replicas.

    A server that somebody else started at the same address is used, and not stopped.
    Raises UserError: it cannot be started, or the address is taken by another server."""
    host, port = _where(model)
    path, lock = _book(runs_dir, port)
    me = Process(os.getpid(), _start_time(os.getpid()) or "")
    try:
        # Whoever starts the server holds the lock until it is ready.
        with locks.held(lock, model.serve.start_timeout_s + STOP_S):
            joined = _join(model, host, port, runs_dir, path, me)
    except locks.LockTimeout:
        raise UserError(
            f"Another process has been starting the server of {model.role}={model.name} for more"
            f" than {model.serve.start_timeout_s:g} s; see {path.parent}."
        ) from None
    try:
        yield [address(host, port + index) for index in range(model.serve.replicas)]
    finally:
        if joined:
            with locks.held(lock):
                _Book.read(path).leave(me)


def sweep_up(model: Model, port: int, runs_dir: Path) -> str:
    """Stop the leased server at ``port`` and return what was done.
    Raises UserError: a living process uses it."""
    path, lock = _book(runs_dir, port)
    with locks.held(lock):
        book = _Book.read(path)
        if book.users:
            raise UserError(
                f"The server of {model.role}={model.name} is in use by process {_pids(book.users)};"
                " it stops when the last of them ends."
            )
        stopped = [server for server in book.servers if alive(server)]
        stop(book.servers)
        path.unlink(missing_ok=True)
    return f"stopped process {_pids(stopped)}" if stopped else "no server was left behind"


def _pids(processes: Iterable[Process]) -> str:
    return ", ".join(str(process.pid) for process in processes)


def _where(model: Model) -> tuple[str, int]:
    parts = urlsplit(model.endpoint.url)
    host, port = parts.hostname or "", parts.port
    if host not in LOCAL or port is None:
        raise UserError(
            f"{model.role}.serve.auto=true starts a server on this machine, and"
            f" {model.role}.endpoint.url={model.endpoint.url} is not on it; give"
            " http://127.0.0.1:PORT/v1, or"
            f" {model.role}.serve.auto=false."
        )
    wanted = [address(host, port + index) for index in range(1, model.serve.replicas)]
    if sorted(model.endpoint.replicas) != sorted(wanted):
        raise UserError(
            f"{model.role}.serve.replicas={model.serve.replicas} starts servers on ports in a row,"
            " so the client has to know them; type"
            f" '{model.role}.endpoint.replicas=[{','.join(wanted)}]'."
        )
    return host, port


@dataclass
class _Book:
    """What is recorded of the server at a port: its command, processes and living users."""

    path: Path
    command: list[list[str]]
    servers: list[Server]
    users: list[Process]

    @classmethod
    def read(cls, path: Path) -> _Book:
        state = read_json(path)
        users = [Process(**user) for user in state.get("users", [])]
        servers = [Server(**server) for server in state.get("servers", [])]
        return cls(path, state.get("command", []), servers, list(filter(alive, users)))

    def write(self) -> None:
        state = dataclasses.asdict(self)
        write_json(self.path, {name: state[name] for name in ("command", "servers", "users")})

    def leave(self, me: Process) -> None:
        """Remove a user; the last one stops the servers."""
        if me in self.users:
            self.users.remove(me)  # once: a process may hold several leases
        if self.users:
            self.write()
            return
        stop(self.servers)
        self.path.unlink(missing_ok=True)


def _book(runs_dir: Path, port: int) -> tuple[Path, Path]:
    """The file of the `_Book` of a port, and its lock."""
    folder = runs_dir / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{socket.gethostname()}-{port}.json"
    return path, path.with_suffix(".lock")


def _join(model: Model, host: str, port: int, runs_dir: Path, path: Path, me: Process) -> bool:
    """Add a user, and start the server if needed; False if somebody else's server is used."""
    book = _Book.read(path)
    command = [arguments(model, host, port + index) for index in range(model.serve.replicas)]
    same = book.command == command
    up = bool(book.servers) and all(map(alive, book.servers))
    if up and not same and book.users:
        raise UserError(
            f"The server at {model.endpoint.url} runs with other settings for process"
            f" {_pids(book.users)}. Give this {model.role} another port in"
            f" {model.role}.endpoint.url, or wait."
        )
    if not book.servers and (served := models(model, address(host, port))) is not None:
        if model.endpoint.model in served:
            return False
        raise UserError(
            f"At {model.endpoint.url} another server serves {', '.join(served) or 'no model'}."
            f" Stop it, or give this {model.role} another port in {model.role}.endpoint.url."
        )
    if not up or not same:
        stop(book.servers)
        book.servers = start(model, host, port, runs_dir, attached=False)
        book.command, book.users = command, []
    book.users.append(me)
    book.write()  # before it is ready: a killed starter leaves no server unknown
    try:
        wait_ready(model, book.servers)
    except BaseException:
        _Book.read(path).leave(me)
        raise
    return True
