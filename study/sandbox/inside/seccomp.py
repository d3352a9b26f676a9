"""A seccomp filter as an allow-list, assembled in pure Python and installed through ctypes.

Whatever is not named answers EPERM, so a system call of a future kernel is denied too. Numbers
differ per machine: a call of another architecture, or of x86_64's x32 dialect, kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import struct
import tomllib
from pathlib import Path
from typing import NamedTuple

LOAD, EQUALS, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NR_OFFSET, ARCH_OFFSET, ARGS_OFFSET = 0, 4, 16
X32_BIT = 0x40000000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

TABLES: dict[str, dict[str, int]] = tomllib.loads(
    Path(__file__).with_name("syscalls.toml").read_text(encoding="utf-8")
)
"""Machine -> system call -> its number there."""

WRITING = frozenset(
    "mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 ftruncate fsync".split()
)
"""Calls that change a folder or a file; legal only where the writable part is a capped tmpfs."""
PARENT_ONLY = frozenset(
    "clone fork wait4 kill prctl seccomp prlimit64 setrlimit getrlimit close_range".split()
)
"""What the zygote needs to make and to end a child, and no child has."""
NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
OPEN_FOR_WRITING = 0o3 | 0o100 | 0o1000 | 0o20000000
"""O_ACCMODE, O_CREAT, O_TRUNC and the bit of O_TMPFILE, the same on both machines."""


class Only(NamedTuple):
    """Argument ``index`` must be one of ``values`` (32 bits)."""

    index: int
    values: tuple[int, ...]


class Without(NamedTuple):
    """Argument ``index`` must have no bit of ``mask`` (32 bits)."""

    index: int
    mask: int


IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. FIOSETOWN and FIOASYNC send signals."""
FCNTLS = (0, 1, 2, 3, 4, 1030)
"""F_DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC. F_SETOWN with F_SETSIG is a kill."""


def permitted(*, parent: bool, writable: bool) -> dict[str, Only | Without | None]:
    """System call -> what its argument must be, or None where any will do: for the zygote, which
    forks and kills (``parent``), or for untrusted code; ``writable`` where any file may be written
    at all."""
    names = set(TABLES["x86_64"]) | set(TABLES["aarch64"])
    names -= {"clone3"} | (set() if parent else PARENT_ONLY) | (set() if writable else WRITING)
    rules: dict[str, Only | Without | None] = dict.fromkeys(sorted(names))
    rules |= {"ioctl": Only(1, IOCTLS), "fcntl": Only(1, FCNTLS)}
    if parent:
        rules |= {"clone": Without(0, NAMESPACE_FLAGS)}
    if not writable:
        rules |= {"open": Without(1, OPEN_FOR_WRITING), "openat": Without(2, OPEN_FOR_WRITING)}
    return rules


def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction of the filter; jumps count the instructions to leave out."""
    return struct.pack("<HBBI", code, yes, no, value)


def assemble(rules: dict[str, Only | Without | None], machine: str) -> bytes:
    """The filter as the kernel takes it, 8 bytes an instruction.
    Raises KeyError: there is no table for ``machine``."""
    table = TABLES[machine]
    allow, deny = step(RETURN, ALLOW), step(RETURN, ERRNO | errno.EPERM)
    program = [step(LOAD, ARCH_OFFSET), step(EQUALS, AUDIT_ARCH[machine], 1), step(RETURN, KILL)]
    program.append(step(LOAD, NR_OFFSET))
    if machine == "x86_64":
        program += [step(AT_LEAST, X32_BIT, 0, 1), step(RETURN, KILL)]
    # libc falls back from clone3, whose flags no filter can read, to clone only on ENOSYS
    program += [step(EQUALS, table["clone3"], 0, 1), step(RETURN, ERRNO | errno.ENOSYS)]
    for name, rule in rules.items():
        if name not in table:
            continue
        body = [step(LOAD, ARGS_OFFSET + 8 * rule.index)] if rule else [allow]
        if isinstance(rule, Only):
            for value in rule.values:
                body += [step(EQUALS, value, 0, 1), allow]
            body.append(deny)
        elif isinstance(rule, Without):
            body += [step(ANY_BIT, rule.mask, 0, 1), deny, allow]
        program += [step(EQUALS, table[name], 0, len(body)), *body]
    return b"".join([*program, deny])


def give_up_privileges() -> None:
    """Set no_new_privs: without it an ordinary user may install neither a filter nor Landlock.
    Raises OSError: the kernel refuses."""
    no_new_privileges = 38
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")


class _Program(ctypes.Structure):
    """A filter as the kernel takes it."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library, looked up once: children find it open."""
    return ctypes.CDLL(None, use_errno=True)


def install(program: bytes) -> None:
    """Put ``program`` on this thread and all that it starts, for ever; privileges are given up.
    Raises OSError: the kernel refuses (no seccomp, or privileges were not given up)."""
    set_filter = 1
    program_at = _Program(len(program) // 8, program)
    number = TABLES[platform.machine()]["seccomp"]
    if libc().syscall(number, set_filter, 0, ctypes.byref(program_at)) != 0:
        raise OSError(ctypes.get_errno(), "the seccomp filter was refused")
