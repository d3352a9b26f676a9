"""Shares the servers of judges among all processes that need them.

A sweep uses ``leases``. On loopback the first user starts the server, the last one stops it, and a
user that died does not count; all of them are processes of this host.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from judges.serving.book import auto_served, is_wide, words_of
from judges.serving.server import (
    LOCAL,
    STOP_S,
    Process,
    Server,
    address,
    alive,
    models,
    start,
    start_time,
    stop,
    wait_ready,
)
from judges.serving.service import use
from judges.serving.vllm_command import arguments
from study.config.schema import Endpoint, Model
from study.errors import UserError
from study.system import locks
from study.system.files import read_json, write_json


@contextmanager
def leases(
    models: Iterable[Model], runs_dir: Path, starts: bool = True
) -> Generator[Callable[[Model], Model]]:
    """Have the servers of all models with ``serve.auto`` during the block; gives a function that
    says how a model is reached from here.

    Args:
        starts: whether servers that are missing are started; a cell leaves that to its sweep.

    Raises:
        UserError: as `lease` and `judges.serving.service.use`.
    """
    wanted = {words_of(model): model for model in auto_served(models)}
    endpoints: dict[str, Endpoint] = {}
    with ExitStack() as stack:
        for words, model in wanted.items():
            if is_wide(model):
                endpoints[words] = stack.enter_context(use(model, runs_dir, starts)).endpoint
            elif starts:
                stack.enter_context(lease(model, runs_dir))
            else:
                _refuse_other_host(model, runs_dir)

        def reached(model: Model) -> Model:
            endpoint = endpoints.get(words_of(model), model.endpoint)
            return dataclasses.replace(model, endpoint=endpoint)

        yield reached


def _refuse_other_host(model: Model, runs_dir: Path) -> None:
    """Refuse a server that was started on the loopback of another host than this process's."""
    host, port = _where(model)
    here = _book(runs_dir, port)[0]
    elsewhere = [path for path in here.parent.glob(f"*-{port}.json") if path != here]
    if here.exists() or not elsewhere or models(model, address(host, port)) is not None:
        return
    names = ", ".join(path.stem.removesuffix(f"-{port}") for path in elsewhere)
    raise UserError(
        f"{model.role}={model.name} is served on the loopback of {names}, and this cell runs on"
        f" {socket.gethostname()}, which does not reach it. Serve it for all nodes: run the sweep"
        f" again with {model.role}.serve.bind=0.0.0.0, which makes an API key of its own."
    )


@contextmanager
def lease(model: Model, runs_dir: Path) -> Generator[list[str], None, None]:
    """Run the judge's server during the block, shared with all processes that need it; gives the
    addresses of its replicas.

    A server that somebody else started at the same address is used, and not stopped.
    Raises UserError: it cannot be started, or the address is taken by another server."""
    host, port = _where(model)
    path, lock = _book(runs_dir, port)
    me = Process(os.getpid(), start_time(os.getpid()) or "")
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
    host = "127.0.0.1" if host == "0.0.0.0" else host  # beyond loopback is said by serve.bind
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
    with ExitStack() as undo:
        undo.callback(lambda: _Book.read(path).leave(me))
        wait_ready(model, book.servers)
        undo.pop_all()
    return True
