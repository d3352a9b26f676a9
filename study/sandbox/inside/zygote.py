"""A warm interpreter inside the sandbox: for each call it forks a child that is locked down first.

A call is one request and one reply. A conversation, which a request with a ``role`` begins, goes on
line by line between the parent and the child, child first. It ends with one reply that is no line
and one empty line of the parent's, whichever comes first.
A child may not fork, signal, open a socket or see the channel to the parent, so it cannot leave
anything behind: memory goes with the process, and a touched /tmp is reported, whereupon the parent
throws the whole sandbox away.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import random
import resource
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO

from study.sandbox.inside import candidate, landlock, seccomp, tester
from study.sandbox.inside.frames import Bounds, CallRequest, Conversation, Frame, Options

REPLY = 3
"""The one handle besides the three of /dev/null that a child of one call has; one that converses
hears over the next."""
ROLES: dict[str, Callable[[Any], None]] = {
    "candidate": candidate.serve,
    "tester": tester.run,
}
WARM = (
    "re string math json collections itertools functools datetime unicodedata heapq bisect typing"
)
ON_DEMAND = {"program": "study.sandbox.inside.program"}
"""Roles that few sandboxes have: the modules of their function ``run``, and of what they need, are
imported before the first child that has one."""
WARM_FOR = "asyncio selectors inspect statistics fractions decimal"
PARENT_DEATH = 1
LAST_GASP_S = 0.05
MB = 1 << 20


def main(options: Options) -> None:
    """Serve calls from standard input until it ends."""
    _die_with_parent()
    requests, replies = Lines(os.dup(0)), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for name in WARM.split():
        __import__(name)
    screen = b""
    if options["isolation"] != "unsafe":
        machine, writable = platform.machine(), options["isolation"] == "bwrap"
        screen = seccomp.assemble(seccomp.permitted(parent=False, writable=writable), machine)
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
    while line := requests.wait():
        request = json.loads(line)
        if "role" in request:
            _warm(request["role"])
            reply = _converse(request, screen, requests, replies)
        else:
            reply = _serve(request, screen)
        reply["dirty"] = watched and _touched() != born
        parent_left = reply.get("end") == "left"
        _tell(replies, reply)
        while "role" in request and not parent_left:  # what the parent said before it read the end
            parent_left = not requests.wait().strip()


class Lines:
    """Reads lines from a handle without ever reading past what `select` can see of it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.begun = bytearray()
        """Of a line that has not ended."""
        self.whole: deque[bytes] = deque()

    def read(self) -> bool:
        """Take what is there, or wait for it; False at the end."""
        data = os.read(self.handle, 1 << 16)
        first, *others = data.split(b"\n")
        self.begun += first
        for part in others:
            self.whole.append(bytes(self.begun) + b"\n")
            self.begun = bytearray(part)
        return bool(data)

    def wait(self) -> bytes:
        """The next line with its end; empty where there are no more."""
        while not self.whole:
            if not self.read():
                return b""
        return self.whole.popleft()


def _warm(role: str) -> None:
    """Import what the role needs, and a program may."""
    if role in ROLES:
        return
    # asyncio takes ssl where it can, for sockets, which nobody has here
    sys.modules.setdefault("ssl", None)  # ty: ignore[no-matching-overload]
    for name in WARM_FOR.split():
        __import__(name)
    ROLES[role] = importlib.import_module(ON_DEMAND[role]).run
    gc.collect()
    gc.freeze()


def _tell(replies: BinaryIO, reply: Frame) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


def _touched() -> int:
    """Changes whenever an entry of the folder, or the folder itself, is changed."""
    return os.stat(".").st_ctime_ns


def _die_with_parent() -> None:
    if sys.platform == "linux":
        seccomp.libc().prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)


def _serve(request: CallRequest, screen: bytes) -> Frame:
    """Fork a child for one call; what it wrote, how it ended, and the CPU seconds it took."""
    limits = request["limits"]
    read, write = os.pipe()
    deadline = time.monotonic() + limits["wall_s"]
    child = _fork(lambda: candidate.answer(request, REPLY), limits, screen, (write,))
    os.close(write)
    data, end = _collect(read, deadline, limits["reply_bytes"])
    os.close(read)
    return _ended(child, end, data)


def _converse(request: Conversation, screen: bytes, requests: Lines, replies: BinaryIO) -> Frame:
    """Fork a child and carry lines between it and the parent; how it ended.

    The parent answers each line of the child's with one. The child has at most ``window`` lines
    unanswered (1 where the request does not say), and may be silent for ``limits["own_s"]`` in all
    while none is; time in which it waits for the parent is not its own.
    """
    limits, window = request["limits"], request.get("window", 1)
    read, write = os.pipe()
    hear, say = os.pipe()
    child = _fork(lambda: ROLES[request["role"]](request), limits, screen, (write, hear))
    os.close(write)
    os.close(hear)
    os.set_blocking(say, False)
    began = last = time.monotonic()
    own_s, unanswered, end = 0.0, 0, ""
    own_most = limits.get("own_s") or limits["wall_s"]
    child_lines, unsent = Lines(read), bytearray()
    while not end:
        while child_lines.whole and unanswered < window:
            line = child_lines.whole.popleft()[:-1].decode("utf-8", "replace")
            _tell(replies, {"end": "line", "data": line})
            unanswered += 1
        wall_left = began + limits["wall_s"] - last
        own_left = own_most - own_s if not unanswered else wall_left
        if min(wall_left, own_left) <= 0:
            end = "deadline" if wall_left <= 0 else "own"
            break
        listens = [requests.handle, *([read] if unanswered < window else [])]
        writes = [say] if unsent else []
        ready, _, _ = select.select(listens, writes, [], min(wall_left, own_left))
        now = time.monotonic()
        own_s, last = own_s + (0.0 if unanswered else now - last), now
        if requests.handle in ready and not requests.read():
            end = "left"
        while requests.whole and not end:
            message = requests.whole.popleft()
            unsent += message
            unanswered -= 1
            end = "" if message.strip() else "left"
        if unsent and not end:
            unsent = _pass_on(say, unsent)
        if read in ready and not end:
            if not child_lines.read():
                end = "closed"
            elif len(child_lines.begun) + sum(map(len, child_lines.whole)) > limits["reply_bytes"]:
                end = "overflow"
    os.close(read)
    os.close(say)
    return {**_ended(child, end, b""), "own_s": own_s}


def _fork(work: Callable[[], None], limits: Bounds, screen: bytes, handles: tuple[int, ...]) -> int:
    """A locked-down child that does ``work`` and ends; it has ``handles`` as 3, 4 and so on."""
    zygote = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _die_with_parent()
            if os.getppid() != zygote:  # it had died before anything was asked for
                os._exit(99)
            _lock_down(limits, handles, screen)
            work()
            os._exit(0)
        finally:
            os._exit(99)
    return child


def _ended(child: int, end: str, data: bytes) -> Frame:
    status, usage, killed = _reap(child, LAST_GASP_S if end == "closed" else 0.0)
    return {
        "end": end,
        "data": data.decode("utf-8", "replace"),
        "code": os.waitstatus_to_exitcode(status),
        "killed": killed,
        "cpu_s": usage.ru_utime + usage.ru_stime,
    }


def _lock_down(limits: Bounds, handles: tuple[int, ...], screen: bytes) -> None:
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
    if screen:
        seccomp.install(screen)


def _collect(read: int, deadline: float, cap: int) -> tuple[bytes, str]:
    """All that comes until the writer ends (closed), time is up (deadline) or it is too much."""
    data = bytearray()
    end = ""
    while not end:
        end = _more(read, data, deadline, cap)
    return bytes(data[:cap]), end


def _more(read: int, data: bytearray, deadline: float, cap: int) -> str:
    """Add what comes to ``data``; why there is no more to come, or nothing."""
    poll = select.poll()
    poll.register(read, select.POLLIN)
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
        return "deadline"
    chunk = os.read(read, 1 << 16)
    data += chunk
    return "closed" if not chunk else "overflow" if len(data) > cap else ""


def _pass_on(say: int, unsent: bytearray) -> bytearray:
    """Write to a child as much as it takes now; what is left."""
    try:
        return unsent[os.write(say, unsent) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:  # it has ended, which its own line will say
        return bytearray()


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
