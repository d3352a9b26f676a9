"""A place on a node of Ray that trains one cell after another."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext

from experiments.launch import pool
from study.cell.folder import CellFolder
from study.errors import UserError
from study.system.gpus import Lease


class Keys:
    """Values of environment variables on their way to a node; only their names are ever shown."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __repr__(self) -> str:
        return f"Keys({', '.join(sorted(self._values))})"

    def put(self) -> None:
        """Set them in this process; those that its node has stay as they are."""
        for name, value in self._values.items():
            os.environ.setdefault(name, value)


class Slot:
    """An actor of Ray. Its process only waits: what trains is a child of its fork server, which has
    the heavy imports already. A child leaves when this process is gone, however that ended."""

    def begin(self, preload: Sequence[str], threads: int, device: str, keys: Keys) -> str:
        """Start the fork server; the GPUs that Ray gives this actor are its children's.

        Args:
            preload: modules that it imports.
            threads: torch threads of a cell, at least 1.
            device: the config's.
            keys: of judges.

        Returns:
            Why no cell can run here, nothing where one can.
        """
        os.umask(0o077)
        keys.put()
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as Ray counts them
        # multiprocessing would load Ray's own main file in each child, which takes most of a second
        sys.modules["__main__"].__dict__.pop("__file__", None)
        pool.PRELOAD = list(preload)
        self._threads = threads
        try:
            self._context: ForkServerContext = pool.start_server(device)
        except UserError as error:
            return str(error)
        self._alive, self._keep = self._context.Pipe(duplex=False)
        return ""

    def run(self, folder: CellFolder) -> int:
        """Run a cell to its end; the exit code, negative where a signal ended it."""
        arguments = (folder, self._threads, self._alive)
        child = self._context.Process(target=_child, args=arguments)
        child.start()
        child.join()
        code = child.exitcode
        child.close()
        return 1 if code is None else code


def _child(folder: CellFolder, threads: int, alive: Connection) -> None:
    os.setsid()  # Ray kills the group of a lost worker at once; a cell ends in order, by its pipe
    pool.child_body(folder, threads, alive, Lease({}, []))  # the GPUs are leased by Ray
