"""Keeps a service: starts its replicas, looks after them, and writes its book.

``keep`` runs until it is told to end. It is the work of ``judges.serve`` in the foreground, of a
process of its own (`spawn`), of a Slurm job and of a Ray actor.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from judges.serving import server
from judges.serving.book import (
    EXPIRY_S,
    STOPPING,
    VERSION,
    Book,
    Service,
    beating,
    folder_clock,
    is_wide,
    service_of,
)
from judges.serving.key import with_key
from judges.serving.server import ANOTHER_PORT, ANY_PORT, LOST, READY, STARTING, Server
from judges.serving.vllm_command import arguments, check_model, launcher
from study.config.schema import Model
from study.errors import UserError
from study.system.files import Damaged
from study.system.gpus import Lease

RESTARTS = 3
"""How often a replica is started again; those of more than an hour ago do not count."""
FORGIVEN_S = 3600.0
LOOK_S = 1.0
HEALTH_S = 10.0
SILENT_LOOKS = 6
"""Looks in a row without an answer after which a replica is started again."""


Announce = Callable[[Model, Sequence[Server], float], None]
"""Called once when a service answers, with the model as it is reached, its servers, and seconds."""


class Taken(UserError):
    """Somebody who lives serves this already."""

    def __init__(self, service: Service, book: Book) -> None:
        super().__init__(
            f"{service.name} is already served, by {book.owner}. Use it, or list its users: python"
            " -m judges.serve status=true"
        )


class _ServiceEnds(Exception):
    """The service is to end; the text says why."""


@dataclass
class _RunningReplica:
    """A replica as its keeper sees it."""

    index: int
    port: int
    server: Server
    since: float
    """By the monotonic clock, when it was started."""
    silent: int = 0

    def becomes(self, state: str) -> None:
        """Change the state of its server."""
        self.server = dataclasses.replace(self.server, state=state)


class Keeper:
    """One service, owned by this process.

    Args:
        while_used: it ends with its last user; else when it is told to.
        port: the first that is tried; a port that is taken is replaced by a free one.
        kept_by: what sees to it that there is one owner; it takes the place of an owner of the same
            at once, without waiting for its sign of life to lapse.
    """

    def __init__(
        self,
        model: Model,
        runs_dir: Path,
        while_used: bool = False,
        port: int = 0,
        kept_by: str = "",
        service: Service | None = None,
    ) -> None:
        self.service = service or service_of(model, runs_dir)
        self.halted = threading.Event()
        """Set by another thread: the service is to end."""
        self._model, self._while_used, self._kept_by = model, while_used, kept_by
        self._port = port
        self._owner = self.service.this_process()
        self._runs: list[_RunningReplica] = []
        self._leases: list[Lease] = []
        """The GPUs of each replica, which stay its own while it is started again."""
        self._began = 0.0
        self._state = STARTING
        self._bind = self._reached = "127.0.0.1"

    def keep(self, on_ready: Announce | None = None) -> str:
        """Serve until there is a reason to end, and return it; ``on_ready`` is called once, when
        every replica answers.
        Raises Taken: another process serves this already.
        Raises UserError: it cannot be started, or no replica could be kept."""
        arguments(self._model, "", 0)  # before anything is written
        launcher(self._model.serve.device)
        check_model(self._model.serve.model)
        if is_wide(self._model):
            self._bind, self._reached = self._model.serve.bind, server.reached_by(self._model)
        self.service.prepare()
        ports = self._become_owner()
        try:
            with beating(self._touch):
                self._start(ports)
                servers = [run.server for run in self._runs]
                seconds = server.wait_ready(self._model, servers, meanwhile=self._end_if_due)
                for run in self._runs:
                    run.becomes(READY)
                self._state = READY
                self._write()
                if on_ready is not None:
                    on_ready(self._model, servers, seconds)
                self._watch()
        except _ServiceEnds as ends:
            return str(ends)
        finally:
            self._end()

    def _become_owner(self) -> list[int]:
        """Become the owner; gives the ports of an owner that was killed on this host."""
        service = self.service
        with service.locked():
            book = service.read()
            succeeds = book is not None and bool(book.kept_by) and book.kept_by == self._kept_by
            if book is not None and service.owned(book) and not succeeds:
                raise Taken(service, book)
            self._model = with_key(self._model, service, makes=True)
            service.stop_path.unlink(missing_ok=True)
            self._began = folder_clock(service.folder)
            self._write()
        # What an owner leaves that was killed is ending, and has the ports and the GPUs till then.
        if book is None or not service.end_servers(book):
            return []
        return [server.port_of(each.url) for each in book.replicas]

    def _watch(self) -> NoReturn:
        """Look after the replicas.
        Raises _ServiceEnds: as `_end_if_due`. Raises UserError: none is left."""
        service = self.service
        looked = tidied = time.monotonic()
        while True:
            try:
                self._end_if_due()
                if time.monotonic() - tidied >= EXPIRY_S:
                    tidied = time.monotonic()
                    with service.locked():
                        service.remove_lapsed_users()
                asks = time.monotonic() - looked >= HEALTH_S
                looked = time.monotonic() if asks else looked
                for run in self._runs:
                    self._check_replica(run, asks)
            except OSError as error:  # another owner takes over if this lasts
                print(f"{service.folder} cannot be used: {error}", flush=True)
            self.halted.wait(LOOK_S)

    def _start(self, ports: Sequence[int]) -> None:
        for index in range(self._model.serve.replicas):
            first = self._port + index if self._port else 0
            wanted = ports[index] if index < len(ports) else first
            port = self._free_port(wanted)
            self._leases.append(server.lease_gpus(self._model))
            run = _RunningReplica(index, port, self._launch(index, port), since=time.monotonic())
            self._runs.append(run)
            print(
                f"{self.service.name} starts as process {run.server.pid} on port {port}; its log"
                f" is {run.server.log}",
                flush=True,
            )
            self._write()

    def _launch(self, index: int, port: int) -> Server:
        log = self.service.folder / f"{self._owner.host}-{port}.log"
        leased = self._leases[index]
        launched = server.launch(self._model, self._bind, port, index, log, leased)
        return dataclasses.replace(launched, url=server.address(self._reached, port))

    def _free_port(self, port: int) -> int:
        """``port`` if nothing listens there, else any port that is free. On loopback a service is
        found by its port, so it has no other.
        Raises UserError: it is on loopback, and its port is taken."""
        if not is_wide(self._model):
            server.listen(self._bind, port, ANOTHER_PORT).close()
            return port
        try:
            server.listen(self._bind, port, ANY_PORT).close()
            if port:
                return port
        except UserError:
            pass  # something else took it
        instead = f"another {self._model.role}.serve.bind: an address of this host, or 0.0.0.0."
        with server.listen(self._bind, 0, instead) as listener:
            return listener.getsockname()[1]

    def _check_replica(self, run: _RunningReplica, asks: bool) -> None:
        """See after one replica, and start it again where it has ended or does not answer."""
        if run.server.state == LOST:
            return
        age = time.monotonic() - run.since
        if not server.alive(run.server):
            self._restart(run, "ended")
            return
        if run.server.state == STARTING or asks:
            if server.healthy(self._model, run.server.url):
                run.silent = 0
                if run.server.state == STARTING:
                    run.becomes(READY)
                    run.since = time.monotonic()
                    print(f"{run.server.url} answers again", flush=True)
                    self._write()
            elif run.server.state == STARTING:
                if age > self._model.serve.start_timeout_s:
                    self._restart(run, "did not answer in time")
            else:
                run.silent += 1
                if run.silent >= SILENT_LOOKS:
                    self._restart(run, "runs but does not answer")
        if run.server.state == READY and age > FORGIVEN_S:
            run.server = dataclasses.replace(run.server, restarts=0)

    def _restart(self, run: _RunningReplica, why: str) -> None:
        server.stop([run.server], patience_s=5.0)
        print(f"{run.server.url} {why}; its log is {run.server.log}", flush=True)
        if run.server.restarts >= RESTARTS:
            run.becomes(LOST)
            self._write()
            if all(each.server.state == LOST for each in self._runs):
                raise UserError(
                    f"No replica of {self.service.name} is left: each was restarted {RESTARTS}"
                    f" times and ended.{server.tail(self._model, run.server)}"
                )
            return
        run.port = self._free_port(run.port)
        launched = self._launch(run.index, run.port)
        run.server = dataclasses.replace(launched, restarts=run.server.restarts + 1)
        run.since, run.silent = time.monotonic(), 0
        self._write()

    def _end_if_due(self) -> None:
        """Raises _ServiceEnds: told to end, replaced by another owner, or used by nobody now."""
        if self.halted.is_set():
            raise _ServiceEnds("it was told to end")
        service = self.service
        try:
            book = service.read()
        except Damaged:
            self._write()  # what it should say is known here
            return
        except (UserError, OSError):
            return
        if book is None or book.owner != self._owner:
            raise _ServiceEnds("another owner took its place" if book else "its book was removed")
        stops = service.stop_path.exists()
        if (stops or self._while_used) and not any(service.users()):
            with service.locked():
                if not any(service.users()):  # nobody came meanwhile
                    self._admit_nobody()
                    raise _ServiceEnds("it was told to end" if stops else "no process uses it")
        elif stops:
            service.stop_path.unlink(missing_ok=True)  # whoever asked sees it, and says who does

    def _admit_nobody(self) -> None:
        """From now on nobody new may use it; the caller holds the lock."""
        self._state = STOPPING
        self._write()

    def _end(self) -> None:
        with suppress(OSError), self.service.locked():
            if self._is_mine():
                self._admit_nobody()
        server.stop([run.server for run in self._runs])
        for leased in self._leases:
            leased.close()
        with suppress(OSError), self.service.locked():
            if self._is_mine():
                self.service.clear()

    def _is_mine(self) -> bool:
        try:
            book = self.service.read()
        except (UserError, OSError):
            return False
        return book is not None and book.owner == self._owner

    def _touch(self) -> None:
        if self._is_mine():
            self.service.touch()

    def _write(self) -> None:
        book = Book(
            version=VERSION,
            model=self._model.endpoint.model,
            state=self._state,
            began=self._began,
            owner=self._owner,
            replicas=[run.server for run in self._runs],
            kept_by=self._kept_by,
        )
        self.service.write(book)
