"""Shares the servers of judges among all processes that need them.

A sweep uses ``leases``. On loopback the first user starts the server, the last one stops it, and a
user that died does not count; all of them are processes of this host.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from judges.serving.book import (
    BOOK,
    USERS,
    VERSION,
    Book,
    Service,
    auto_served,
    beating,
    folder_clock,
    is_wide,
    loopback_service,
    server_identity,
)
from judges.serving.server import (
    LOCAL,
    READY,
    STARTING,
    STOP_S,
    address,
    alive,
    served_models,
    start,
    stop,
    wait_ready,
)
from judges.serving.service import end_service, use
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
    wanted = {server_identity(model): model for model in auto_served(models)}
    endpoints: dict[str, Endpoint] = {}
    with ExitStack() as stack:
        for identity, model in wanted.items():
            if is_wide(model):
                endpoints[identity] = stack.enter_context(use(model, runs_dir, starts)).endpoint
            elif starts:
                stack.enter_context(lease(model, runs_dir))
            else:
                _refuse_other_host(model, runs_dir)

        def reached(model: Model) -> Model:
            endpoint = endpoints.get(server_identity(model), model.endpoint)
            return dataclasses.replace(model, endpoint=endpoint)

        yield reached


def _refuse_other_host(model: Model, runs_dir: Path) -> None:
    """Refuse a server that was started on the loopback of another host than this process's."""
    host, port = _loopback_address(model)
    here = loopback_service(port, runs_dir).folder
    elsewhere = [path.parent for path in here.parent.glob(f"*-{port}/{BOOK}")]
    if not elsewhere or here in elsewhere or served_models(model, address(host, port)) is not None:
        return
    names = ", ".join(folder.name.removesuffix(f"-{port}") for folder in elsewhere)
    raise UserError(
        f"{model.role}={model.name} is served on the loopback of {names}, but this cell runs on"
        f" {socket.gethostname()}, which does not reach it. To serve it for all nodes, rerun the"
        f" sweep with {model.role}.serve.bind=0.0.0.0, which makes its own API key."
    )


@contextmanager
def lease(model: Model, runs_dir: Path) -> Generator[list[str]]:
    """Run the judge's server during the block, shared with all processes that need it; gives the
    addresses of its replicas.

    A server that somebody else started at the same address is used, and not stopped.
    Raises UserError: it cannot be started, or the address is taken by another server."""
    host, port = _loopback_address(model)
    service = loopback_service(port, runs_dir)
    service.users_dir.mkdir(parents=True, exist_ok=True)
    try:
        # Whoever starts the server holds the lock until it is ready.
        with service.locked(model.serve.start_timeout_s + STOP_S):
            sign = _join(model, host, port, runs_dir, service)
    except locks.LockTimeout:
        raise UserError(
            f"Another process has been starting the server of {model.role}={model.name} for more"
            f" than {model.serve.start_timeout_s:g} s. Read the logs in {service.folder.parent}."
        ) from None
    with beating(partial(os.utime, sign)) if sign else nullcontext():
        try:
            yield [address(host, port + index) for index in range(model.serve.replicas)]
        finally:
            if sign:
                with service.locked():
                    _leave(service, sign)


def sweep_up(port: int, runs_dir: Path) -> str:
    """Stop the shared server at ``port`` and return what was done.
    Raises UserError: a living process uses it."""
    service = loopback_service(port, runs_dir)
    service.users_dir.mkdir(parents=True, exist_ok=True)
    with service.locked():
        _take_over_older(service)
    return end_service(service) if service.read() else "no server was left behind"


def _loopback_address(model: Model) -> tuple[str, int]:
    parts = urlsplit(model.endpoint.url)
    host, port = parts.hostname or "", parts.port
    host = "127.0.0.1" if host == "0.0.0.0" else host  # beyond loopback is said by serve.bind
    if host not in LOCAL or port is None:
        raise UserError(
            f"{model.role}.serve.auto=true starts a server on this machine, but"
            f" {model.role}.endpoint.url={model.endpoint.url} is on another. Give"
            f" http://127.0.0.1:PORT/v1, or {model.role}.serve.auto=false."
        )
    wanted = [address(host, port + index) for index in range(1, model.serve.replicas)]
    if sorted(model.endpoint.replicas) != sorted(wanted):
        raise UserError(
            f"{model.role}.serve.replicas={model.serve.replicas} starts servers on consecutive"
            " ports, which the client must know. Type"
            f" '{model.role}.endpoint.replicas=[{','.join(wanted)}]'."
        )
    return host, port


def _join(model: Model, host: str, port: int, runs_dir: Path, service: Service) -> Path | None:
    """Become a user, and start the server if needed; gives the user's sign of life, None where
    somebody else's server is used. The caller holds the lock."""
    _take_over_older(service)
    book = service.read()
    replicas = book.replicas if book else []
    commands = [arguments(model, host, port + index) for index in range(model.serve.replicas)]
    same = book is not None and book.commands == commands
    up = bool(replicas) and all(map(alive, replicas))
    if up and not same and (users := list(service.users())):
        raise UserError(
            f"The server at {model.endpoint.url} runs with different settings for process"
            f" {', '.join(str(user.pid) for user in users)}. Give this {model.role} another port in"
            f" {model.role}.endpoint.url, or wait."
        )
    if not replicas and (served := served_models(model, address(host, port))) is not None:
        if model.endpoint.model in served:
            return None
        raise UserError(
            f"At {model.endpoint.url} another server serves {', '.join(served) or 'no model'}."
            f" Stop it, or give this {model.role} another port in {model.role}.endpoint.url."
        )
    with ExitStack() as undo:
        sign, owner = service.add_user(), service.this_process()
        undo.callback(_leave, service, sign)
        if book is None or not up or not same:
            stop(replicas)
            book = Book(
                version=VERSION,
                model=model.endpoint.model,
                state=STARTING,
                began=folder_clock(service.folder),
                owner=owner,
                replicas=start(model, host, port, runs_dir, attached=False),
                kept_by=USERS,
                commands=commands,
            )
            service.write(book)  # before it is ready: a killed starter leaves no server unknown
        wait_ready(model, book.replicas)
        ready = [dataclasses.replace(each, state=READY) for each in book.replicas]
        service.write(dataclasses.replace(book, state=READY, owner=owner, replicas=ready))
        undo.pop_all()
    return sign


def _leave(service: Service, sign: Path) -> None:
    """Remove a user; the last one stops the servers. The caller holds the lock."""
    sign.unlink(missing_ok=True)
    book = service.read()
    if book is None:
        return
    if remaining := next(service.users(), None):
        service.write(dataclasses.replace(book, owner=remaining))
        return
    stop(book.replicas)
    service.clear()


def _take_over_older(service: Service) -> None:
    """Make the book of a file HOST-PORT.json, in which releases before books of version 2 have the
    server of a port: its users count, and its server is shared. The caller holds the lock."""
    path = service.folder.with_name(f"{service.name}.json")
    record = read_json(path)
    if not record:
        return
    here = {"host": service.place.host, "kernel": service.place.kernel}
    users = [user | here for user in record["users"]]
    for number, user in enumerate(users):
        write_json(service.users_dir / f"{service.place.host}-{user['pid']}-{number}.json", user)
    book = {
        "version": VERSION,
        "model": "",
        "state": READY,
        "began": path.stat().st_mtime,
        "owner": users[0] if users else dataclasses.asdict(service.this_process()),
        "replicas": [server | {"state": READY} for server in record["servers"]],
        "kept_by": USERS,
        "commands": record["command"],
    }
    write_json(service.folder / BOOK, book)  # what is wrong with it is said when it is read
    path.unlink()
