"""Expiring lease on a remote cell.

An object store has no locks. The lease is an object that is made only where there is none, as far
as the store can promise that, and that its holder writes anew every few seconds. Whoever made it
looks again after a moment: of two who wrote at once, the last has it. A lease that has ended is
taken over, and so is at once that of a process of this machine which is gone.

Two machines whose clocks are further apart than a lease lasts, or a holder that hears nothing for
that long, can both run a cell. Its records stay those of one: who sends some looks for its own
lease first, and a run that lost it ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Generator, Mapping

from study.cell import exchange
from study.cell.folder import CellFolder
from study.cell.places import StorageError, holds, opened, trouble
from study.errors import UserError
from study.system.clock import boot

LASTS_S = 60.0
"""Seconds that a lease lasts from when it was last written."""
SETTLES_S = 1.0
"""Seconds after which it is looked at again."""


class Taken(UserError):
    """Another process runs the cell."""


@contextlib.contextmanager
def held(cell: CellFolder) -> Generator[None]:
    """Within the block this process runs the cell, which is first brought to what was sent last.
    Nothing of that is done for a folder of this machine alone: that has its lock.

    Raises:
        Taken: another process runs it.
        StorageError: its place cannot be read or written.
    """
    if not cell.url:
        yield
        return
    folder, lease = cell.path.absolute(), Lease(cell.url)
    lease.take()
    exchange.FENCES[folder] = lease.check
    try:
        exchange.pull(folder, whole=True)
        yield
    finally:
        del exchange.FENCES[folder]
        lease.leave()


class Lease:
    """The lease of one cell; `take` it, and `leave` it."""

    def __init__(self, url: str) -> None:
        self.url, self.token = url, uuid.uuid4().hex
        self._fs, root = opened(url)
        self._path = f"{root}/{exchange.LEASE}"
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def take(self) -> None:
        """Raises Taken: another process has it."""
        with trouble(self.url):
            holder = self._read()
            if holder is not None:
                if holds(holder):
                    raise self._taken(holder)
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(self._path)
            self._make()
            time.sleep(SETTLES_S)
        self.check()
        self._thread.start()

    def check(self) -> None:
        """Raises Taken: another process has it by now."""
        with trouble(self.url):
            holder = self._read()
        if holder is None or holder.get("token") != self.token:
            raise self._taken(holder or {})

    def leave(self) -> None:
        """Let the next have it at once."""
        self._left.set()
        self._thread.join()
        with contextlib.suppress(StorageError), trouble(self.url):
            if (self._read() or {}).get("token") == self.token:
                self._fs.rm_file(self._path)

    def _renew(self) -> None:
        while not self._left.wait(LASTS_S / 4):
            # a store that does not answer is asked again; another's lease stays as it is
            with contextlib.suppress(Exception):
                if (self._read() or {}).get("token") != self.token:
                    return
                self._write()

    def _make(self) -> None:
        """Write the lease where there is none, as one act where the store has such an act."""
        try:
            self._fs.pipe_file(self._path, self._content(), mode="create")
        except Exception as error:  # each client has its own for "there is one"
            if self._read() is not None:
                return  # another was first; `check` says who
            if not _no_such_act(error):
                raise
            self._write()

    def _write(self) -> None:
        exchange.put(self._fs, self._path, self._content())

    def _content(self) -> bytes:
        content = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "boot": boot(),
            "token": self.token,
            "expires": time.time() + LASTS_S,
        }
        return json.dumps(content).encode()

    def _read(self) -> Mapping[str, object] | None:
        try:
            record = json.loads(self._fs.cat_file(self._path))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):  # half-written, by who has no rename
            return {}
        return record if isinstance(record, dict) else {}

    def _taken(self, holder: Mapping[str, object]) -> Taken:
        host, pid = str(holder.get("host", "another machine"))[:100], holder.get("pid", "?")
        return Taken(
            f"{self.url} is being run by process {pid} on {host}. To run it here, stop that"
            f" process; if it was killed, its lease ends within {LASTS_S:g} s. Then rerun the"
            " command."
        )


def _no_such_act(error: Exception) -> bool:
    """Whether the store, or its client, cannot make an object only where there is none."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSYS, errno.ENOTSUP)
    return isinstance(error, TypeError | ValueError | NotImplementedError)
