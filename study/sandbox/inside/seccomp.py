"""A seccomp filter as an allow-list, assembled in pure Python and installed through ctypes.

Whatever is not named answers EPERM, so a system call of a future kernel is denied too. Numbers
differ per machine: a call of another architecture, or of x86_64's x32 dialect, kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from dataclasses import dataclass

LOAD, EQUALS, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NR_OFFSET, ARCH_OFFSET, ARGS_OFFSET = 0, 4, 16
X32_BIT = 0x40000000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

X86_64 = """read=0 write=1 open=2 close=3 stat=4 fstat=5 lstat=6 poll=7 lseek=8 mmap=9 mprotect=10
munmap=11 brk=12 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 ioctl=16 pread64=17 pwrite64=18
readv=19 writev=20 access=21 pipe=22 select=23 sched_yield=24 mremap=25 madvise=28 dup=32 dup2=33
pause=34 nanosleep=35 getitimer=36 alarm=37 setitimer=38 getpid=39 clone=56 fork=57 exit=60 wait4=61
kill=62 uname=63 fcntl=72 fsync=74 ftruncate=77 getcwd=79 chdir=80 rename=82 mkdir=83 rmdir=84
unlink=87 readlink=89 umask=95 gettimeofday=96 getrlimit=97 getrusage=98 sysinfo=99 times=100
getuid=102 getgid=104 geteuid=107 getegid=108 getppid=110 getpgrp=111 getpgid=121 rt_sigpending=127
rt_sigtimedwait=128 rt_sigsuspend=130 sigaltstack=131 prctl=157 setrlimit=160 gettid=186 time=201
futex=202 sched_getaffinity=204 getdents64=217 restart_syscall=219 fadvise64=221 clock_gettime=228
clock_getres=229 clock_nanosleep=230 exit_group=231 openat=257 mkdirat=258 newfstatat=262
unlinkat=263 renameat=264 readlinkat=267 faccessat=269 pselect6=270 ppoll=271 set_robust_list=273
dup3=292 pipe2=293 prlimit64=302 renameat2=316 seccomp=317 getrandom=318 statx=332 rseq=334
clone3=435 close_range=436 faccessat2=439"""

AARCH64 = """getcwd=17 dup=23 dup3=24 fcntl=25 ioctl=29 mkdirat=34 unlinkat=35 renameat=38
ftruncate=46 faccessat=48 chdir=49 openat=56 close=57 pipe2=59 getdents64=61 lseek=62 read=63
write=64 readv=65 writev=66 pread64=67 pwrite64=68 pselect6=72 ppoll=73 readlinkat=78 newfstatat=79
fstat=80 fsync=82 exit=93 exit_group=94 futex=98 set_robust_list=99 nanosleep=101 getitimer=102
setitimer=103 clock_gettime=113 clock_getres=114 clock_nanosleep=115 sched_getaffinity=123
sched_yield=124 restart_syscall=128 kill=129 sigaltstack=132 rt_sigsuspend=133 rt_sigaction=134
rt_sigprocmask=135 rt_sigpending=136 rt_sigtimedwait=137 rt_sigreturn=139 times=153 getpgid=155
uname=160 getrlimit=163 setrlimit=164 getrusage=165 umask=166 prctl=167 gettimeofday=169 getpid=172
getppid=173 getuid=174 geteuid=175 getgid=176 getegid=177 gettid=178 sysinfo=179 brk=214 munmap=215
mremap=216 clone=220 mmap=222 fadvise64=223 mprotect=226 madvise=233 wait4=260 prlimit64=261
renameat2=276 seccomp=277 getrandom=278 statx=291 rseq=293 clone3=435 close_range=436
faccessat2=439"""

TABLES: dict[str, dict[str, int]] = {
    machine: {name: int(number) for name, number in (pair.split("=") for pair in text.split())}
    for machine, text in (("x86_64", X86_64), ("aarch64", AARCH64))
}

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


@dataclass(frozen=True)
class Only:
    """Argument ``index`` must be one of ``values`` (32 bits)."""

    index: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Without:
    """Argument ``index`` must have no bit of ``mask`` (32 bits)."""

    index: int
    mask: int


IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. FIOSETOWN and FIOASYNC send signals."""
FCNTLS = (0, 1, 2, 3, 4, 1030)
"""F_DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC. F_SETOWN with F_SETSIG is a kill."""


def permitted(*, parent: bool, writable: bool) -> dict[str, Only | Without | None]:
    """System call -> what its argument must be, or None where any will do.

    Args:
        parent: for the zygote, which forks and kills; else for untrusted code.
        writable: whether any file may be written at all.
    """
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

    Raises:
        KeyError: there is no table for ``machine``.
    """
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
        body = [allow]
        if isinstance(rule, Only):
            body = [step(LOAD, ARGS_OFFSET + 8 * rule.index)]
            for value in rule.values:
                body += [step(EQUALS, value, 0, 1), allow]
            body.append(deny)
        elif isinstance(rule, Without):
            body = [step(LOAD, ARGS_OFFSET + 8 * rule.index)]
            body += [step(ANY_BIT, rule.mask, 0, 1), deny, allow]
        program += [step(EQUALS, table[name], 0, len(body)), *body]
    return b"".join([*program, deny])


def give_up_privileges() -> None:
    """Set no_new_privs: without it an ordinary user may install neither a filter nor Landlock.

    Raises:
        OSError: the kernel refuses.
    """
    no_new_privileges = 38
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")


def install(program: bytes) -> None:
    """Put ``program`` on this thread and all that it starts, for ever; privileges are given up.

    Raises:
        OSError: the kernel refuses (no seccomp, or privileges were not given up).
    """

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    set_filter = 1
    program_at = Program(len(program) // 8, program)
    number = TABLES[platform.machine()]["seccomp"]
    if libc.syscall(number, set_filter, 0, ctypes.byref(program_at)) != 0:
        raise OSError(ctypes.get_errno(), "the seccomp filter was refused")
