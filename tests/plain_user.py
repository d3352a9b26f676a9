"""Tests of denied permissions, for whoever runs them: root may read and write everything."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Generator

VERSION_3 = 0x20080522
"""Of the structures of capset(2)."""
OVERRIDE, SEARCH = 1 << 1, 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: by these, permissions do not hold for root."""
SET_SECUREBITS, GET_SECUREBITS = 28, 27
NO_SETUID_FIXUP = 1 << 2
"""Without it access(2) asks what root could have, not what it has."""


class _Capabilities(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


@contextlib.contextmanager
def plain_user() -> Generator[None]:
    """Within the block, permissions hold for this thread as they do for any owner of files who is
    not root; for a plain user it changes nothing."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    held = (_Capabilities * 2)()

    def call(name: str, *words: object) -> int:
        result: int = getattr(libc, name)(*words)
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{name} failed")
        return result

    call("capget", header, held)
    effective, secure = held[0].effective, call("prctl", GET_SECUREBITS, 0, 0, 0, 0)
    call("prctl", SET_SECUREBITS, secure | NO_SETUID_FIXUP, 0, 0, 0)
    held[0].effective = effective & ~(OVERRIDE | SEARCH)
    call("capset", header, held)
    try:
        yield
    finally:
        held[0].effective = effective
        call("capset", header, held)
        call("prctl", SET_SECUREBITS, secure, 0, 0, 0)
