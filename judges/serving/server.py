"""Starts and stops vLLM servers for judges: processes of this machine, their addresses and logs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from judges.endpoint.keys import read_key
from judges.serving.vllm_command import (
    arguments,
    check_model,
    environment,
    gpus_of_replica,
    launcher,
)
from study.config.schema import Model
from study.errors import UserError
from study.system import clock
from study.system.gpus import Lease, take
from study.system.machine import usable_gpus
from study.system.secrets import redact
from study.system.stopping import end_with_parent

STARTING, READY, LOST = "starting", "ready", "lost"
POLL_S = 0.5
TAIL_LINES = 20
STOP_S = 30.0
"""How long a server may take to end by itself before it is killed."""
ANOTHER_PORT = "another port, also in judge.endpoint.url. Type for example port=8200"
ANY_PORT = "another address. Type for example port=0 for any free port"
ANY_ADDRESS = ("0.0.0.0", "::")
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
    """One vLLM process, a replica of what it serves. ``state`` is starting, ready or lost: not
    started any more."""

    url: str
    log: str
    state: str = STARTING
    restarts: int = 0


def start(
    model: Model, host: str, port: int, runs_dir: Path, attached: bool = True
) -> list[Server]:
    """Start every replica and return at once; ``wait_ready`` waits until they answer.

    The first listens on ``port``, the others on the next ones; log files are under ``servers/`` in
    ``runs_dir``. ``attached`` servers end when this process does, however it ends.
    Raises UserError: vLLM or the model is missing, a port is taken, or GPUs are not free."""
    ports = range(port, port + model.serve.replicas)
    for index, place in enumerate(ports):
        _command(model, host, place, index)
    check_model(model.serve.model)
    for place in ports:
        listen(host, place, ANOTHER_PORT).close()
    folder = runs_dir / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    servers: list[Server] = []
    with ExitStack() as undo:
        undo.callback(stop, servers)
        for index, place in enumerate(ports):
            log = folder / f"{model.name or model.role}-{place}.log"
            with closing(lease_gpus(model)) as leased:
                servers.append(launch(model, host, place, index, log, leased, attached))
        undo.pop_all()
    return servers


def launch(
    model: Model,
    host: str,
    port: int,
    index: int,
    log: Path,
    leased: Lease,
    attached: bool = True,
) -> Server:
    """Start replica ``index`` on ``port`` and return at once; what it says goes to ``log``. Its
    lease of GPUs holds as long as it lives.
    Raises UserError: vLLM is missing."""
    command, words, variables = _command(model, host, port, index)
    with log.open("wb") as file:
        file.write(f"$ {shlex.join(['vllm', 'serve', *words])}\n".encode())
        file.flush()
        process = subprocess.Popen(
            [*command, "serve", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | variables | leased.variables,
            pass_fds=leased.files,
            start_new_session=True,  # Ctrl-C is for us, and the group is the server's own
            preexec_fn=end_with_parent if attached else None,
        )
    _CHILDREN[process.pid] = process
    return Server(
        pid=process.pid,
        started=start_time(process.pid) or "",
        url=address(host, port),
        log=str(log),
    )


def lease_gpus(model: Model) -> Lease:
    """GPUs of this machine for one replica, which no cell and no other server of this user has.
    Raises UserError: they are not free."""
    usable = usable_gpus()
    count, share = gpus_of_replica(model)
    if not count or not usable:  # vLLM says itself what it lacks
        return Lease({}, [])
    if leased := take(usable, count, share):
        return leased
    raise UserError(
        f"A server of {model.role}={model.name} takes {share:g} of each of {count} GPUs, but too"
        f" few of the {len(usable)} that this process may use are free: your cells and other"
        " servers have the rest. Wait until they end, or serve it on another machine. For less of"
        f" each GPU, type {model.role}.serve.gpu_memory_utilization=SHARE; for fewer GPUs,"
        f" {model.role}.serve.tensor_parallel=N or {model.role}.serve.replicas=N"
    )


def _command(
    model: Model, host: str, port: int, index: int
) -> tuple[list[str], list[str], dict[str, str]]:
    """Program, arguments and added environment of a replica."""
    words = arguments(model, host, port)
    return launcher(model.serve.device), words, environment(model, index)


def address(host: str, port: int) -> str:
    """The base URL of a server that listens on ``host`` and ``port``."""
    client_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return (
        f"http://[{client_host}]:{port}/v1"
        if ":" in client_host
        else f"http://{client_host}:{port}/v1"
    )


def reached_by(model: Model) -> str:
    """The host name or address by which other hosts reach a server bound as ``model`` says.
    Raises UserError: there is none."""
    bind, role = model.serve.bind, model.role
    if bind in ANY_ADDRESS:
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        nowhere = "2001:db8::1" if ":" in bind else "192.0.2.1"
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((nowhere, 9))  # nothing is sent: the kernel only chooses an address
                host_name = probe.getsockname()[0]
            except OSError:
                host_name = socket.gethostname()
    else:
        host_name = bind
    try:
        resolved = str(socket.getaddrinfo(host_name, None)[0][4][0])
    except (OSError, UnicodeError):
        raise UserError(
            f"{role}.serve.bind={bind} is not an address of a host. Give the name or address that"
            f" other nodes reach this host by, for example {role}.serve.bind={socket.gethostname()}"
        ) from None
    if ip_address(resolved.partition("%")[0]).is_loopback:
        raise UserError(
            f"{role}.serve.bind={bind} is {resolved} here, which other nodes do not reach. Give"
            f" this host's address in the nodes' network ({role}.serve.bind=ADDRESS; `ip address`"
            " lists them), or leave bind out to serve this host only."
        )
    return host_name


def port_of(url: str) -> int:
    """The port of an address; 0 where it names none."""
    try:
        return urlsplit(url).port or 0
    except ValueError:
        return 0


def listen(host: str, port: int, instead: str) -> socket.socket:
    """A listening socket.
    Raises UserError: the port is taken, or the address is not of this machine; the message ends
        with ``instead``."""
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as problem:
        raise UserError(
            f"A server cannot listen on {host}:{port} ({problem.strerror}). Give {instead}"
        ) from None


def free_row(host: str, count: int) -> int:
    """The first of ``count`` free ports in a row.
    Raises UserError: ``host`` is no address of this machine, or 100 rows were broken by a port that
        somebody listens on."""
    for _ in range(100):
        with listen(host, 0, ANY_PORT) as first, ExitStack() as others:
            port = first.getsockname()[1]
            with suppress(UserError, OverflowError):
                for offset in range(1, count):
                    others.enter_context(listen(host, port + offset, ANY_PORT))
                return port
    raise UserError(
        f"No {count} consecutive ports are free on {host}. Type port=FIRST for the first of such"
        " ports."
    )


def wait_ready(
    model: Model,
    servers: Sequence[Server],
    timeout_s: float | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> float:
    """Seconds until every server was healthy and served the model that the judge asks for;
    ``meanwhile`` is called between two looks.
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
                raise UserError(f"vLLM ended{how} before it answered.{tail(model, server)}")
            if time.monotonic() - began > limit:
                raise UserError(
                    f"vLLM did not answer at {server.url} within {limit:g} s. To wait longer, type"
                    f" {model.role}.serve.start_timeout_s=SECONDS.{tail(model, server)}"
                )
            meanwhile()
            time.sleep(POLL_S)
        served = served_models(model, server.url)
        if model.endpoint.model not in (served or []):
            raise UserError(
                f"The server at {server.url} serves {', '.join(served or []) or 'no model'}, but"
                f" the {model.role} needs {model.role}.endpoint.model={model.endpoint.model!r}."
                " Stop that server, or use another port."
            )
    return time.monotonic() - began


def served_models(model: Model, url: str) -> list[str] | None:
    """The models that the endpoint at ``url`` lists; None if nothing answers there."""
    body = get(model, f"{url}/models")
    if body is None:
        return None
    try:
        return [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, TypeError, KeyError):
        return []


def healthy(model: Model, url: str) -> bool:
    """Whether the server at ``url`` is well and serves the model that is asked for."""
    if get(model, url.removesuffix("/v1") + "/health") is None:
        return False
    return model.endpoint.model in (served_models(model, url) or [])


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
        while _group_members(server.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        while _group_members(server.pid):
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            time.sleep(0.05)
        if child := _CHILDREN.pop(server.pid, None):
            child.wait()


def alive(process: Process) -> bool:
    """Whether the process still runs."""
    return start_time(process.pid) == process.started


def _stat(pid: int | str) -> list[str] | None:
    """Fields of /proc/PID/stat after the name: state, parent, group, ...; None if it ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields


def start_time(pid: int) -> str | None:
    """Boot id and clock ticks since the boot when a process started; None if it ended."""
    fields = _stat(pid)
    return f"{clock.boot()}-{fields[19]}" if fields else None


def _group_members(pgid: int) -> list[int]:
    """The running processes of a process group."""
    return [
        int(name)
        for name in os.listdir("/proc")
        if name.isdigit() and (fields := _stat(name)) and int(fields[2]) == pgid
    ]


def tail(model: Model, server: Server) -> str:
    """A sentence with the last lines of a server's log, without keys; empty where there is none."""
    try:
        text = Path(server.log).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = redact(text, [read_key(model.endpoint)]).strip().splitlines()[-TAIL_LINES:]
    return f" The end of {server.log}:\n" + "\n".join(lines)
