"""Landlock through ctypes: files outside a short list cannot be read, and none can be written.

For hosts without user namespaces. Landlock does not hide names and sizes (stat), which the attack
table says; changing modes, owners and times is left to the seccomp filter, which has no such call.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
"""System calls, the same numbers on every architecture."""
EXECUTE, READ_FILE, READ_DIR = 1 << 0, 1 << 2, 1 << 3
PATH_BENEATH = 1
ABI_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Version -> number of file rights it knows; all are handled, so all not granted are denied."""
NETWORK_ABI, SCOPE_ABI = 4, 6


def abi() -> int:
    """Version of Landlock in this kernel, 0 where there is none."""
    version = 1
    return max(0, ctypes.CDLL(None).syscall(CREATE, None, 0, version))


def restrict(readable: Sequence[str]) -> int:
    """Leave this process and its children only reading, and only beneath ``readable``; returns the
    ABI version in force. Raises OSError: there is no Landlock, or it refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = abi()
    if version < 1:
        raise OSError("this kernel has no Landlock")
    files = (1 << ABI_BITS[min(version, max(ABI_BITS))]) - 1
    network = 0b11 if version >= NETWORK_ABI else 0  # bind and connect by TCP
    scope = 0b11 if version >= SCOPE_ABI else 0  # abstract sockets and signals
    # older kernels take a longer record too as long as its tail is zero
    rules = struct.pack("<QQQ", files, network, scope)
    ruleset = libc.syscall(CREATE, rules, len(rules), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock made no ruleset")
    for path in readable:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = READ_FILE | EXECUTE | (READ_DIR if os.path.isdir(path) else 0)
        beneath = struct.pack("<Qi", rights, handle)
        if libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, beneath, 0) != 0:
            raise OSError(ctypes.get_errno(), f"Landlock took no rule for {path}")
        os.close(handle)
    if libc.syscall(RESTRICT, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "Landlock restricted nothing")
    os.close(ruleset)
    return version
