"""The environment of a process that trains a cell."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator

from study.system.machine import device_variables

SURROUNDINGS = {
    # Children share cores with each other and with a local judge: a thread that spins while it
    # waits takes the core from whoever it waits for.
    "OMP_WAIT_POLICY": "PASSIVE",
    # A step of TRL's own frees and takes the same hundreds of megabytes again. Kept by the process,
    # they are not given back to the kernel, which would clear every page anew.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
"""Environment of the children, where the user's own does not say otherwise."""


@contextlib.contextmanager
def surroundings(device: str = "") -> Generator[None]:
    """Within the block a process begins with `SURROUNDINGS` and computes on ``device``; a judge's
    server does not. Raises UserError: as `study.system.machine.device_variables`."""
    added = {name: value for name, value in SURROUNDINGS.items() if name not in os.environ}
    added |= device_variables(device)
    before = {name: os.environ[name] for name in added if name in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
        os.environ.update(before)
