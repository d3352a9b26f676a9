"""A warm interpreter inside the sandbox: for each call it forks a child that is locked down first.

A child may not fork, signal, open a socket or see the channel to the parent, so it cannot leave
anything behind: memory goes with the process, and a touched /tmp is reported, whereupon the parent
throws the whole sandbox away.
"""

from __future__ import annotations

import ctypes
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
from typing import Any

from study.sandbox.inside import candidate, landlock, seccomp

REPLY = 3
"""The one handle besides the three of /dev/null that a child has."""
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
        reply = _serve(json.loads(line), program)
        reply["dirty"] = watched and _touched() != born
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _touched() -> int:
    """Changes whenever an entry of the folder, or the folder itself, is changed."""
    return os.stat(".").st_ctime_ns


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)


def _serve(request: dict[str, Any], program: bytes) -> dict[str, Any]:
    """Fork a child for one call; what it wrote, how it ended, and the CPU seconds it took."""
    limits = request["limits"]
    read, write = os.pipe()
    deadline = time.monotonic() + limits["wall_s"]
    zygote = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _die_with_parent()
            if os.getppid() != zygote:  # it had died before anything was asked for
                os._exit(99)
            _lock_down(limits, write, program)
            candidate.answer(request, REPLY)
        finally:
            os._exit(99)
    os.close(write)
    data, end = _collect(read, deadline, limits["reply_bytes"])
    os.close(read)
    status, usage, killed = _reap(child, LAST_GASP_S if end == "closed" else 0.0)
    return {
        "end": end,
        "data": data.decode("utf-8", "replace"),
        "code": os.waitstatus_to_exitcode(status),
        "killed": killed,
        "cpu_s": usage.ru_utime + usage.ru_stime,
    }


def _lock_down(limits: dict[str, Any], write: int, program: bytes) -> None:
    os.dup2(write, REPLY)
    os.closerange(REPLY + 1, 256)
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
    poll = select.poll()
    poll.register(read, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return bytes(data), "deadline"
        chunk = os.read(read, 1 << 16)
        if not chunk:
            return bytes(data), "closed"
        data += chunk
        if len(data) > cap:
            return bytes(data[:cap]), "overflow"


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
