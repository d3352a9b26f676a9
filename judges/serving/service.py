"""Uses a service: finds the address of a served judge, counts as its user, and starts it.

with use(judge, runs_dir, starts=True) as reached:
    Session(reached, store)        # its endpoint has the addresses and the key
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from judges.endpoint.replicas import MOVED, Addresses
from judges.serving import server
from judges.serving.book import (
    ELSEWHERE,
    EXPIRY_S,
    USERS,
    Book,
    Holder,
    Place,
    Service,
    beating,
    folder_clock,
    service_of,
    services,
)
from judges.serving.keeper import RESTARTS
from judges.serving.key import with_key
from judges.serving.server import LOST, READY, STARTING
from judges.serving.spawn import ERROR, spawn_keeper
from study.config.schema import Judge, Model
from study.errors import UserError
from study.system.files import write_text

ABSENT_S = EXPIRY_S
"""How long who may not start a service waits for somebody else to."""
UNREACHED_S = EXPIRY_S + 30.0
"""How long a service whose owner lives may answer nothing."""
POLL_S = 0.5
SHOWN = 5
"""Users that are named."""
COLUMNS = ("service", "state", "replicas", "owner", "users", "age", "address")


@dataclass
class _Starter:
    """The keeper that this process started, if it did."""

    model: Model
    service: Service
    runs_dir: Path
    while_used: bool
    port: int
    process: subprocess.Popen[bytes] | None = None
    log_offset: int = 0
    """Bytes of the log from before."""

    @property
    def log(self) -> Path:
        return self.service.folder / f"keeper-{self.service.place.host}.log"

    def start(self) -> None:
        """Start a keeper, unless one that was started here is on its way.
        Raises UserError: that one could not serve; with what it said."""
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            self.process = None
            if code:
                output = self.log.read_bytes()[self.log_offset :].decode("utf-8", errors="replace")
                why = output.partition(ERROR)[2] or output
                raise UserError(why.strip() or f"{self.service.name} ended. Its log is {self.log}.")
            return  # another was first
        self.log_offset = self.log.stat().st_size if self.log.exists() else 0
        self.process = spawn_keeper(self.model, self.runs_dir, self.while_used, self.port, self.log)


@contextmanager
def use(
    model: Model,
    runs_dir: Path,
    starts: bool,
    place: Place | None = None,
    while_used: bool = True,
    port: int = 0,
) -> Generator[Model]:
    """Within the block this process counts as a user of the model's service; gives the model as it
    is reached from here.

    Args:
        starts: whether it may start the service, and start it again where its owner is killed.
        while_used: one that is started here ends with its last user.
        port: the first port that one started here tries.

    Raises:
        UserError: nobody serves it and it cannot be started, no replica answers, or the key, the
            folder or the book cannot be used.
    """
    service = service_of(model, runs_dir, place)
    service.prepare()
    starter = None
    if starts and model.serve.bind != ELSEWHERE:
        starter = _Starter(
            model,
            service,
            runs_dir,
            while_used=while_used,
            port=port or server.port_of(model.endpoint.url),
        )
    restarts_left = RESTARTS
    reached: Model | None = None
    first: Addresses = ()
    last_urls: list[str] = []
    """Addresses in the book when they were looked at last."""
    with service.locked():
        sign = service.add_user()

    def give_sign() -> None:
        """Give a sign of life; see to an owner that was killed."""
        nonlocal restarts_left
        try:
            os.utime(sign)
        except FileNotFoundError:  # this process stood still for long, and is a user all the same
            service.add_user(sign)
        if reached is None:
            return
        book = service.read()
        if book is not None and service.owned(book):
            if book.state == READY and (urls := _answering_urls(reached, book, last_urls)):
                MOVED[first] = tuple(urls)
                whole = _kept_urls(book)
                last_urls[:] = whole if len(whole) == len(urls) else []
        elif starter is not None and restarts_left > 0:
            if starter.process is None or starter.process.poll() is not None:
                restarts_left -= 1
            starter.start()

    with ExitStack() as stack:
        stack.callback(sign.unlink, missing_ok=True)
        stack.enter_context(beating(give_sign))
        model = _reach(model, service, starter)
        first = (model.endpoint.url, *model.endpoint.replicas)
        MOVED[first] = first
        reached = model
        yield model


def _reach(model: Model, service: Service, starter: _Starter | None) -> Model:
    """The model with the addresses of replicas that answer; waits for them.
    Raises UserError: as `use`."""
    limit = model.serve.start_timeout_s + server.STOP_S
    began = alone = silent = time.monotonic()
    while True:
        moment = time.monotonic()
        book = service.read()
        owned = book is not None and service.owned(book)
        alone = moment if owned else alone
        if book is not None and owned and book.state == READY:
            reached = with_key(model, service)
            if urls := _answering_urls(reached, book):
                endpoint = dataclasses.replace(reached.endpoint, url=urls[0], replicas=urls[1:])
                return dataclasses.replace(reached, endpoint=endpoint)
            if moment - silent > UNREACHED_S:
                raise _unreached(model, service, book)
        else:
            silent = moment
        if not owned and starter is not None:
            starter.start()
        elif moment - alone > ABSENT_S:
            raise _absent(model, service, book)
        if moment - began > limit:
            raise UserError(
                f"The service {service.name} was not ready within {limit:g} s. To wait longer,"
                f" type {model.role}.serve.start_timeout_s=SECONDS. Its logs are in"
                f" {service.folder}."
            )
        time.sleep(POLL_S)


def _kept_urls(book: Book) -> list[str]:
    """Addresses of the replicas that are not given up."""
    return [each.url for each in book.replicas if each.state != LOST]


def _answering_urls(model: Model, book: Book, last_urls: Sequence[str] = ()) -> list[str]:
    """Addresses of the replicas that answer now, then of those that are being started again; none
    where none answers, or where they are the ``last_urls``."""
    urls = _kept_urls(book)
    if urls == list(last_urls):
        return []
    well = [url for url in urls if server.healthy(model, url)]
    again = [each.url for each in book.replicas if each.state == STARTING]
    return [*well, *(url for url in again if url not in well)] if well else []


def _unreached(model: Model, service: Service, book: Book) -> UserError:
    urls = ", ".join(each.url for each in book.replicas)
    return UserError(
        f"The service {service.name} is kept by {book.owner}, but none of its replicas answers"
        f" {service.place.host} as {model.endpoint.model!r}: {urls}. A firewall may block them, or"
        " they are bound to an address that this node does not reach. Try `curl"
        f" {book.replicas[0].url.removesuffix('/v1') if book.replicas else 'URL'}/health` here; to"
        f" serve at another address, stop it and give {model.role}.serve.bind=ADDRESS."
    )


def _absent(model: Model, service: Service, book: Book | None) -> UserError:
    last = f" Its last owner, {book.owner}, sends no heartbeat." if book else ""
    return UserError(
        f"{model.role}={model.name} is not served: no owner of a service in {service.folder} is"
        f" alive.{last} Start it on a node that has the GPUs, with the same runs_dir and the same"
        f" {model.role}.serve settings: python -m judges.serve {model.role}={model.name}"
        f" {model.role}.serve.bind=0.0.0.0 detached=true"
    )


def service_rows(runs_dir: Path) -> list[dict[str, str]]:
    """One line per service of a runs folder, for a table; a book that is damaged is one, too."""
    lines = []
    for service in services(runs_dir):
        line = dict.fromkeys(COLUMNS, "")
        line["service"] = service.name
        lines.append(line)
        try:
            book = service.read()
        except UserError as error:
            line["state"] = str(error)
            continue
        if book is None:
            continue
        health = [each.url.removesuffix("/v1") + "/health" for each in book.replicas]
        well = sum(server.get(Judge(), url) is not None for url in health)
        restarts = sum(each.restarts for each in book.replicas)
        users = list(service.users())
        line["state"] = book.state if service.owned(book) else "its owner is gone"
        line["replicas"] = f"{well} of {len(book.replicas)} well, {restarts} restarts"
        line["owner"] = str(book.owner)
        line["users"] = _describe_users(users)
        line["age"] = f"{max(0.0, folder_clock(service.folder) - book.began) / 60:.0f} min"
        line["address"] = " ".join(each.url for each in book.replicas)
    return lines


def end_service(service: Service, patience_s: float = 2 * server.STOP_S) -> str:
    """Stop an unused service, wherever its owner is, and return what was done.
    Raises UserError: somebody uses it, or the owner does not end."""
    with service.locked():
        book = service.read()
        if book is None:
            return f"{service.name} is not served"
        _refuse_users(service)
        left = [str(each.pid) for each in book.replicas if server.alive(each)]
        if service.clear_ownerless():
            stopped = f"stopped process {', '.join(left)}; " if left else ""
            return f"{service.name} lost its owner, {book.owner}; {stopped}its book is cleared"
        if book.kept_by == USERS:
            raise UserError(
                f"{service.name} is on the loopback of {book.owner.host} and can only be stopped"
                " there: type the same command on that host."
            )
        write_text(service.stop_path, "")
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        time.sleep(POLL_S)
        if service.read() is None:
            return f"{service.name} has stopped, which {book.owner} kept"
        if not service.stop_path.exists():
            _refuse_users(service)
    raise UserError(
        f"{book.owner} did not stop {service.name} within {patience_s:g} s. Its log is in"
        f" {service.folder}; it stops when it reads the folder again."
    )


def _refuse_users(service: Service) -> None:
    if users := list(service.users()):
        raise UserError(
            f"{service.name} is in use by {_describe_users(users)}. Stop it once they have ended;"
            f" a killed user on another host counts for {EXPIRY_S:g} s more."
        )


def _describe_users(users: Sequence[Holder]) -> str:
    more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
    return (", ".join(map(str, users[:SHOWN])) or "nobody") + more
