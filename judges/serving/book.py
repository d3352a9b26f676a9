"""The book of a served judge: what is served, where it answers, who owns it and who uses it.

A service is a folder, ``runs/servers/NAME``, that all nodes read. One that has a keeper
(`judges.serving.keeper`) is named after what is served, so whoever needs the same finds the same;
one that its users share on their host's loopback (`judges.serving.lease`) is named HOST-PORT, where
they look for it.

    service.json  a `Book`; its keeper touches it as a sign of life
    users/        a file per user, which that user touches as a sign of life
    .lock         held by who changes owner or users
    key           the API key, for the account alone that started the service
    stop          somebody asked the owner to end

A process of this host is looked up; that of another host counts until its sign of life has lapsed.
The age of a file is told by the clock of the file system that stamps it, so hosts whose clocks are
apart agree on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from judges.serving import server
from judges.serving.server import Process, Server, alive, start_time
from judges.serving.vllm_command import arguments
from study.config.schema import Model, freeze
from study.errors import UserError
from study.system import clock, locks
from study.system.files import Damaged, read_json, write_json

VERSION = 2
"""2 since users on loopback have a book, too, and ``commands`` are in it."""
BEAT_S = 10.0
"""How often a sign of life is given."""
EXPIRY_S = 120.0
"""The age at which a sign of life from another host has lapsed; more than a network file system
takes to show a new file to other hosts."""
ORPHANS_END_S = 20.0
"""How long servers of an owner that was killed may take to end before they are killed."""
APART_S = 30.0
"""How far the clocks of two hosts may be apart."""
LOOPBACK = ("", "localhost", "127.0.0.1", "::1")
ELSEWHERE = "elsewhere"
"""``serve.bind`` of who uses a service and never starts one."""
BOOK = "service.json"
STOPPING = "stopping"
USERS = "its users"
"""``kept_by`` of a service without a keeper: the last of its users stops it."""


@dataclass(frozen=True)
class Place:
    """A host as its processes see it; ``kernel`` names its boot and, in a container, what processes
    can be seen there. Users of its loopback leave it empty: the host's name is that of their
    service, and when a process started says in which boot."""

    host: str
    kernel: str


def here() -> Place:
    """The place of this process."""
    try:
        visible = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        visible = 0
    return Place(socket.gethostname(), f"{clock.boot()}-{visible}")


@dataclass(frozen=True)
class Holder(Process):
    """A process somewhere: the owner of a service, or one of its users."""

    host: str
    kernel: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Book:
    """What is written of a service. ``state`` is starting, ready or stopping."""

    version: int
    model: str
    """The name under which it is asked for."""
    state: str
    began: float
    """Seconds since 1970, by the clock of the folder."""
    owner: Holder
    replicas: list[Server]
    """On its owner's host."""
    kept_by: str = ""
    """What sees to it that there is one owner, such as a Ray cluster, or `USERS`, of whom the owner
    is one; empty where nothing does."""
    commands: list[list[str]] = field(default_factory=list)
    """What vLLM was told for each replica, where the service's name does not say it."""


@dataclass(frozen=True)
class Service:
    """A service by its folder, as it is seen from ``place``."""

    folder: Path
    place: Place = field(default_factory=here)

    @property
    def name(self) -> str:
        """The name of the service, which is that of its folder."""
        return self.folder.name

    @property
    def users_dir(self) -> Path:
        """Folder with one file for each user of the service."""
        return self.folder / "users"

    @property
    def key_path(self) -> Path:
        """File of the key that the replicas ask for."""
        return self.folder / "key"

    @property
    def stop_path(self) -> Path:
        """File whose presence tells the keeper to stop."""
        return self.folder / "stop"

    def prepare(self) -> None:
        """Make the folder and see that this host tells the same time as others.
        Raises UserError: the folder takes no files, or the clocks are apart."""
        try:
            self.users_dir.mkdir(parents=True, exist_ok=True)
            apart = clock.of_folder(self.folder) - time.time()
        except OSError as error:
            raise UserError(
                f"{self.folder} cannot be written from {self.place.host} ({error.strerror})."
                " Processes that serve or use a judge write a heartbeat there. Give a runs_dir"
                " that every node can write to."
            ) from None
        if abs(apart) > APART_S:
            raise UserError(
                f"The clock of {self.place.host} is {abs(apart):.0f} s"
                f" {'behind' if apart > 0 else 'ahead of'} that of the file system of"
                f" {self.folder}; at most {APART_S:g} s are allowed, or logs, records and"
                " certificates of several nodes would contradict each other. Set the clocks by"
                " NTP (type for example `chronyc makestep` there), and rerun the command."
            )

    def locked(self, wait_s: float = math.inf) -> AbstractContextManager[None]:
        """Nobody else changes owner or users within the block.
        Raises LockTimeout: another process held the lock all of ``wait_s``."""
        return locks.held(self.folder / ".lock", wait_s)

    def read(self) -> Book | None:
        """The book; None if the model is not served.
        Raises UserError: it is damaged, or written by a newer version."""
        path = self.folder / BOOK
        remedy = f"It names no service. Stop its processes and type: rm -r {self.folder}"
        data = read_json(path, remedy)
        if not data:
            return None
        version = data.get("version")
        if isinstance(version, int) and version > VERSION:
            raise UserError(
                f"{path} is of version {version}, but this environment reads versions up to"
                f" {VERSION}: another node has a newer judgedrift. Install the same version on all"
                " nodes, or give this sweep another runs_dir."
            )
        try:
            book: Book = freeze(Book, data, "")
            for replica in book.replicas:
                parts = urlsplit(replica.url)
                if parts.scheme != "http" or not parts.hostname or not parts.port:
                    raise ValueError(f"{replica.url[:80]} is not an address of a server")
        except (UserError, KeyError, TypeError, ValueError) as error:
            raise Damaged(path, f"is not the book of a service ({error})", remedy) from error
        return book

    def write(self, book: Book) -> None:
        """Replace the book. Raises OSError: the folder takes no files."""
        write_json(self.folder / BOOK, dataclasses.asdict(book))

    def touch(self) -> None:
        """Give the owner's sign of life; a book that is gone stays so. Raises OSError."""
        os.utime(self.folder / BOOK)

    def owned(self, book: Book) -> bool:
        """Whether the owner lives; one of `USERS` does while any user lives, and elsewhere nobody
        may say that none does."""
        if book.kept_by == USERS:
            return not self.sees(book.owner) or any(self.users())
        return self._lives(book.owner, self.folder / BOOK)

    def sees(self, holder: Holder) -> bool:
        """Whether the process can be looked up from here."""
        if not holder.kernel:
            return holder.host == self.place.host
        return holder.kernel == self.place.kernel

    def _lives(self, holder: Holder, sign: Path) -> bool:
        if self.sees(holder):
            return alive(holder)
        given_at = touched_at(sign)
        return given_at is not None and folder_clock(self.folder) - given_at <= EXPIRY_S

    def users(self) -> Iterator[Holder]:
        """The living users, one after the other."""
        return (holder for _, holder in self._living_users())

    def _living_users(self) -> Iterator[tuple[Path, Holder]]:
        for path in sorted(self.users_dir.glob("*.json")):
            try:
                holder: Holder = freeze(Holder, read_json(path), "")
            except (UserError, KeyError, TypeError):  # whoever it is counts while the sign is fresh
                holder = Holder(0, "", path.stem, "")
            if self._lives(holder, path):
                yield path, holder

    def add_user(self, again: Path | None = None) -> Path:
        """Become a user, ``again`` under the same name; gives the file that is to be touched, and
        in the end removed."""
        user = self.this_process()
        path = again or self.users_dir / f"{user.host}-{user.pid}-{secrets.token_hex(4)}.json"
        write_json(path, dataclasses.asdict(user), durable=False)
        return path

    def this_process(self) -> Holder:
        """This process, at this place."""
        pid = os.getpid()
        return Holder(pid, start_time(pid) or "", self.place.host, self.place.kernel)

    def remove_lapsed_users(self) -> None:
        """Remove users' signs of life that have lapsed. The caller holds the lock."""
        there = set(self.users_dir.glob("*.json"))
        for path in there - {path for path, _ in self._living_users()}:
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what says that somebody serves, and the key. The caller holds the lock."""
        self.remove_lapsed_users()
        for path in (self.stop_path, self.key_path, self.folder / BOOK):
            path.unlink(missing_ok=True)

    def end_servers(self, book: Book) -> bool:
        """End what still runs of the servers in a book whose owner is gone, where they are
        processes of this place; whether they are. Elsewhere they end with their owner."""
        if not self.sees(book.owner):
            return False
        server.stop(book.replicas, ORPHANS_END_S)
        return True

    def clear_ownerless(self) -> bool:
        """End the servers of a service without an owner and take its book away; whether that was
        done. One that has an owner, or a user who may start it again, stays. The caller holds the
        lock."""
        book = self.read()
        if book is None or self.owned(book) or any(self.users()):
            return False
        self.end_servers(book)
        self.clear()
        return True


def auto_served(models: Iterable[Model]) -> list[Model]:
    """Each model that a sweep serves if no other process does, once."""
    return list({server_identity(model): model for model in models if model.serve.auto}.values())


def server_identity(model: Model) -> str:
    """How a model is served and reached: equal for models that share a server."""
    return repr((model.endpoint, model.serve))


def is_wide(model: Model) -> bool:
    """Whether a served model can be reached from other hosts."""
    return model.serve.bind not in LOOPBACK


def name_of(model: Model, place: Place) -> str:
    """The name of the service of a model: what is asked for, and a hash of all that the server is
    told. One on loopback is a service of its host alone.
    Raises UserError: as `vllm_command.arguments`."""
    serve = model.serve
    server_settings = [*arguments(model, "", 0), serve.device, str(serve.replicas)]
    digest = hashlib.sha256(json.dumps(server_settings).encode()).hexdigest()[:10]
    model_name = re.sub(r"[^A-Za-z0-9_-]", "-", model.endpoint.model)[:40]
    return f"{model_name}-{digest}" + ("" if is_wide(model) else f"-{place.host}")


def service_of(model: Model, runs_dir: Path, place: Place | None = None) -> Service:
    """The service that a model is served by, whether or not there is one yet."""
    place = place or here()
    return Service((runs_dir / "servers" / name_of(model, place)).absolute(), place)


def loopback_service(port: int, runs_dir: Path) -> Service:
    """The service that users of this host share at a port of its loopback, whether or not there is
    one yet."""
    place = Place(socket.gethostname(), kernel="")
    return Service((runs_dir / "servers" / f"{place.host}-{port}").absolute(), place)


def services(runs_dir: Path) -> list[Service]:
    """All services of a runs folder, by name."""
    paths = (runs_dir / "servers").absolute().glob(f"*/{BOOK}")
    return [Service(path.parent) for path in sorted(paths)]


def folder_clock(folder: Path) -> float:
    """Seconds since 1970 by the clock that stamps the files of ``folder``, or by that of this host
    where it may only be read."""
    try:
        return clock.of_folder(folder)
    except OSError:
        return time.time()


def touched_at(path: Path) -> float | None:
    """When a file was touched last, by the same clock; None where there is none. It is opened,
    since a network file system then asks its server instead of its memory."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)


@contextmanager
def beating(touch: Callable[[], None]) -> Generator[None]:
    """Within the block a thread calls ``touch`` every `BEAT_S`; a failure is left to the next."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            with suppress(OSError, UserError):
                touch()

    thread = threading.Thread(target=beat, name="service", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
