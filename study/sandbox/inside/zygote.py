"""A warm interpreter inside the sandbox: for each call it forks a child that is locked down first.

A call is one request and one reply. A conversation, which a request with a ``role`` begins, goes on
line by line between the parent and the child, child first, until an empty line of the parent's.
A child may not fork, signal, open a socket or see the channel to the parent, so it cannot leave
anything behind: memory goes with the process, and a touched /tmp is reported, whereupon the parent
throws the whole sandbox away.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from study.sandbox.inside import candidate, landlock, seccomp, tester

REPLY = 3
"""The one handle besides the three of /dev/null that a child of one call has; one that converses
hears over the next."""
ROLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "candidate": candidate.serve,
    "tester": tester.run,
}
WARM = (
    "re string math json collections itertools functools datetime unicodedata heapq bisect typing"
)
PARENT_DEATH = 1
LAST_GASP_S = 0.05
MB = 1 << 20


def main(options: dict[str, Any]) -> None:
    """Serve calls from standard input until it ends.

    Options: ``isolation`` (bwrap, landlock, unsafe), ``readable`` (paths, for landlock).
    """
    _die_with_parent()
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for name in WARM.split():
        __import__(name)
    program = b""
    if options["isolation"] != "unsafe":
        machine, writable = platform.machine(), options["isolation"] == "bwrap"
        program = seccomp.assemble(seccomp.permitted(parent=False, writable=writable), machine)
        parent_filter = seccomp.assemble(seccomp.permitted(parent=True, writable=writable), machine)
        seccomp.give_up_privileges()
        if options["isolation"] == "landlock":
            landlock.restrict(options["readable"])
        seccomp.install(parent_filter)
    os.dup2(null, 2)  # until here a fault is told to whoever started this
    gc.collect()
    gc.freeze()
    watched = options["isolation"] == "bwrap"  # elsewhere nothing can be written, or all can
    born = _touched()
    while line := requests.readline():
        request = json.loads(line)
        if "role" in request:
            reply = _converse(request, program, requests, replies)
        else:
            reply = _serve(request, program)
        reply["dirty"] = watched and _touched() != born
        _tell(replies, reply)


def _tell(replies: BinaryIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


def _touched() -> int:
    """Changes whenever an entry of the folder, or the folder itself, is changed."""
    return os.stat(".").st_ctime_ns


def _die_with_parent() -> None:
    if sys.platform == "linux":
        seccomp.libc().prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)


def _serve(request: dict[str, Any], program: bytes) -> dict[str, Any]:
    """Fork a child for one call; what it wrote, how it ended, and the CPU seconds it took."""
    limits = request["limits"]
    read, write = os.pipe()
    deadline = time.monotonic() + limits["wall_s"]
    child = _fork(lambda: candidate.answer(request, REPLY), limits, program, write)
    os.close(write)
    data, end = _collect(read, deadline, limits["reply_bytes"])
    os.close(read)
    return _ended(child, end, data)


def _converse(
    request: dict[str, Any], program: bytes, requests: BinaryIO, replies: BinaryIO
) -> dict[str, Any]:
    """Fork a child and carry lines between it and the parent; how it ended."""
    limits = request["limits"]
    read, write = os.pipe()
    hear, say = os.pipe()
    deadline = time.monotonic() + limits["wall_s"]
    child = _fork(lambda: ROLES[request["role"]](request), limits, program, write, hear)
    os.close(write)
    os.close(hear)
    data, end = bytearray(), "line"
    while end == "line":
        end = _next_line(read, data, deadline, limits["reply_bytes"])
        if end == "line":
            line, _, rest = bytes(data).partition(b"\n")
            data[:] = rest
            _tell(replies, {"end": "line", "data": line.decode("utf-8", "replace")})
            message = requests.readline()
            if not message.strip():
                end = "left"
            elif not _pass_on(say, message, deadline):
                end = "deadline"
    os.close(read)
    os.close(say)
    return _ended(child, end, b"")


def _fork(work: Callable[[], None], limits: dict[str, Any], program: bytes, *handles: int) -> int:
    """A locked-down child that does ``work`` and ends; it has ``handles`` as 3, 4 and so on."""
    zygote = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _die_with_parent()
            if os.getppid() != zygote:  # it had died before anything was asked for
                os._exit(99)
            _lock_down(limits, handles, program)
            work()
            os._exit(0)
        finally:
            os._exit(99)
    return child


def _ended(child: int, end: str, data: bytes) -> dict[str, Any]:
    status, usage, killed = _reap(child, LAST_GASP_S if end == "closed" else 0.0)
    return {
        "end": end,
        "data": data.decode("utf-8", "replace"),
        "code": os.waitstatus_to_exitcode(status),
        "killed": killed,
        "cpu_s": usage.ru_utime + usage.ru_stime,
    }


def _lock_down(limits: dict[str, Any], handles: tuple[int, ...], program: bytes) -> None:
    # the zygote's own channel is on 3 and 4, so that no pipe is, and none is overwritten here
    for place, handle in enumerate(handles, REPLY):
        os.dup2(handle, place)
    os.closerange(REPLY + len(handles), 256)
    random.seed(0)
    memory = limits["memory_mb"] * MB
    for which, value in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * MB),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (value, value))
    if program:
        seccomp.install(program)


def _collect(read: int, deadline: float, cap: int) -> tuple[bytes, str]:
    """All that comes until the writer ends (closed), time is up (deadline) or it is too much."""
    data = bytearray()
    end = ""
    while not end:
        end = _more(read, data, deadline, cap)
    return bytes(data[:cap]), end


def _next_line(read: int, data: bytearray, deadline: float, cap: int) -> str:
    """Fill ``data`` until it holds a line; why it does not, or "line"."""
    end, seen = "", 0
    while data.find(b"\n", seen) < 0:
        seen = len(data)
        if end := _more(read, data, deadline, cap):
            return end
    return "line"


def _more(read: int, data: bytearray, deadline: float, cap: int) -> str:
    """Add what comes to ``data``; why there is no more to come, or nothing."""
    poll = select.poll()
    poll.register(read, select.POLLIN)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        return "deadline"
    chunk = os.read(read, 1 << 16)
    data += chunk
    return "closed" if not chunk else "overflow" if len(data) > cap else ""


def _pass_on(say: int, message: bytes, deadline: float) -> bool:
    """Write ``message`` to a child; False where it does not take it in time."""
    poll = select.poll()
    poll.register(say, select.POLLOUT)
    for begin in range(0, len(message), select.PIPE_BUF):
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return False
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the next line will say
            os.write(say, message[begin : begin + select.PIPE_BUF])
    return True


def _reap(child: int, grace_s: float) -> tuple[int, Any, bool]:
    """Wait for ``child``, at most ``grace_s``; then kill it, which nothing in it can refuse."""
    until = time.monotonic() + grace_s
    killed = False
    while True:
        done, status, usage = os.wait4(child, 0 if killed else os.WNOHANG)
        if done:
            return status, usage, killed
        if time.monotonic() >= until:
            os.kill(child, signal.SIGKILL)
            killed = True
        else:
            time.sleep(0.0005)
