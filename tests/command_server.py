"""The process from which `tests.commands` forks commands: it has imported what is heavy, once.

``python -m tests.command_server FD`` imports, then waits on the socket FD for requests until the
other end closes. It never starts a thread, runs an operation of torch or opens a file of ours, so a
child of its own is as good as a process that imported the same. Such a child becomes the command:
it takes on all that a fresh process has from its parent, and runs ``python -m MODULE`` as Python
itself does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import itertools
import logging
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any, ClassVar, NoReturn

PRELOAD = (
    "experiments.launch.preload",
    "hydra",
    "hydra._internal.hydra",
    "hydra._internal.utils",
    "hydra.core.override_parser.overrides_parser",
    "starlette.applications",
    "starlette.requests",
    "starlette.responses",
    "uvicorn",
    "aiohttp",
    "httpx",
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "scipy.optimize",
    "scipy.stats",
    "statsmodels.api",
    "statsmodels.formula.api",
    "statsmodels.stats.multitest",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "seaborn",
    "jinja2",
    "nbformat",
    "datasets",
    "sklearn",
)
"""What commands import that takes long; no module that is a command."""
FORKING = ("experiments.sweep", "tests.command_children", "tests.sweeps")
"""Commands that start the fork server of multiprocessing."""
LARGE = 2**18
"""Bytes that a message may have."""
MOST_FILES = 16
"""Descriptors that come with a message."""
FORK_SERVER = "from multiprocessing.forkserver import main"
"""How the program of multiprocessing's own fork server begins."""


@dataclass(frozen=True)
class Inherited:
    """What a process has from the one that starts it."""

    cwd: str
    environment: dict[str, str]
    umask: int
    limits: dict[int, tuple[int, int]]
    ignored: frozenset[int]
    """Signals."""
    blocked: frozenset[int]


@dataclass(frozen=True)
class Request:
    """A command: ``python`` with these arguments, ``-m MODULE`` or ``-c PROGRAM`` the first."""

    arguments: tuple[str, ...]
    inherited: Inherited
    new_session: bool
    files: tuple[int, ...] = (0, 1, 2)
    """Descriptors that it should have, in the order in which they are sent."""


@dataclass(frozen=True)
class Ready:
    """What the server says once it has imported everything."""

    read: frozenset[str]
    """Names of the environment's variables that were looked up meanwhile."""
    threads: frozenset[str]
    """Names of those beside the main one."""
    files: tuple[str, ...]
    """What stays open beside its streams and its socket."""
    added: dict[str, str]
    """Variables that the imports set; a caller who imports the same has them, too."""


@dataclass
class _Start:
    """What this process had before it imported anything heavy."""

    path: list[str] = field(default_factory=lambda: sys.path[1:])
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    added: dict[str, str] = field(default_factory=dict)
    """Variables that imports set."""


class _Recorded(type(os.environ)):
    """The environment, which notes the names that are looked up."""

    names: ClassVar[set[str]] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)


def inherited(cwd: str, environment: dict[str, str]) -> Inherited:
    """What a process would have that this one starts now."""
    umask = os.umask(0o077)
    os.umask(umask)
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return Inherited(
        cwd,
        environment,
        umask,
        {number: resource.getrlimit(number) for number in limits},
        frozenset(
            int(number)
            for number in signal.valid_signals()
            if signal.getsignal(number) is signal.SIG_IGN
        ),
        frozenset(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    )


def current_environment() -> dict[str, str]:
    """The environment that a child has where none is given: also what a library such as readline
    has set, of which `os.environ` does not know."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    pairs = (os.fsdecode(entry).partition("=") for entry in itertools.takewhile(bool, entries))
    return {name: value for name, _, value in pairs}


def serve(channel: socket.socket) -> str:
    """Answer requests until the other end closes. Returns in each new process, where it has become
    that of a request: the module to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit.register(_end_well, set(sys.modules))  # the first, so the last to be called
    start = _Start()
    channel.send(pickle.dumps(_import_all(start, channel)))
    while True:
        data, files, _, _ = socket.recv_fds(channel, LARGE, MOST_FILES)
        if not data:
            os._exit(0)
        if (pid := _orphan()) == 0:
            channel.detach()
            return _become(pickle.loads(data), files, start)
        for file in files:
            os.close(file)
        channel.send(pickle.dumps(pid))


class _Ending:
    interrupted = False
    """Whether an interruption is what ends the command."""


def _end_well(kept: set[str]) -> None:
    """The last to be called at the end of a command. Python takes its modules apart, which takes
    half a second for those that were imported here: let them be. And it ends by SIGINT where that
    interrupted it, unless one of the functions that are called at the end makes it forget."""
    if _Ending.interrupted:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")
    spared = {name: module for name, module in sys.modules.items() if name not in kept}
    spared.pop("__main__", None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(spared))
    for name in spared:
        del sys.modules[name]


def _import_all(start: _Start, channel: socket.socket) -> Ready:
    """Import `PRELOAD`."""
    plain = os.environ.__class__
    os.environ.__class__ = _Recorded
    try:
        for name in PRELOAD:
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(name)
    finally:
        os.environ.__class__ = plain
    now = dict(os.environ)
    start.added = {k: v for k, v in now.items() if start.environment.get(k) != v}
    gc.collect()
    gc.freeze()
    ours = {0, 1, 2, channel.fileno()}
    files = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            if int(entry) not in ours:
                files.append(os.readlink(f"/proc/self/fd/{entry}"))
    others = {int(entry) for entry in os.listdir("/proc/self/task")} - {os.getpid()}
    threads = {Path(f"/proc/self/task/{entry}/comm").read_text().strip() for entry in others}
    return Ready(frozenset(_Recorded.names), frozenset(threads), tuple(files), start.added)


def _orphan() -> int:
    """Fork a process whose parent ends at once, so that the subreaper above is its parent: who
    asked for it. Returns its pid, -1 where there is none, and 0 within it."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        pid, parent = -1, os.getpid()
        with contextlib.suppress(OSError):
            pid = os.fork()
        if pid:
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.close(reading)
        os.close(writing)
        while os.getppid() == parent:  # which it must not know, nor be told of its end
            time.sleep(0.001)
        return 0
    os.close(writing)
    os.waitpid(between, 0)  # from here on its child has another parent
    with open(reading, "rb") as said:
        return int(said.read() or -1)


def _take(given: Inherited, files: dict[int, int], start: _Start) -> None:
    """Have what a fresh process has from its parent, and nothing else of this one.

    Args:
        files: descriptor that it should have -> the one that is it now.
    """
    aside = {wanted: fcntl.fcntl(now, fcntl.F_DUPFD, 500) for wanted, now in files.items()}
    for wanted, now in aside.items():
        os.dup2(now, wanted)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) not in files:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(int(entry))
    os.chdir(given.cwd)
    os.umask(given.umask)
    for limit, values in given.limits.items():
        if resource.getrlimit(limit) != values:
            resource.setrlimit(limit, values)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        ignored = number in given.ignored or number in (signal.SIGPIPE, signal.SIGXFSZ)
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    if signal.SIGINT not in given.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, given.blocked)
    os.environ.clear()
    os.environ.update(start.added)
    os.environ.update(given.environment)
    _open_streams("PYTHONUNBUFFERED" in given.environment)
    multiprocessing.current_process().authkey = os.urandom(32)
    tempfile.tempdir = None
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _open_streams(unbuffered: bool) -> None:
    """Standard streams as Python makes them at its start, over the descriptors of now."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        old = getattr(sys, f"__{name}__")
        raw = unbuffered and mode == "w"  # of its input Python reads ahead all the same
        buffer: Any = open(  # noqa: SIM115
            old.fileno(), f"{mode}b", buffering=0 if raw else -1, closefd=False
        )
        (buffer if raw else buffer.raw).name = f"<{name}>"
        lines = not unbuffered and (buffer.isatty() or name == "stderr")
        new = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n", lines, unbuffered)
        new.mode = mode
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
        for reference in logging._handlerList:
            handler = reference()
            if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                handler.setStream(new)


def _become(request: Request, files: list[int], start: _Start) -> str:
    """Be as Python is when it begins with what was asked for. Returns the module to run; where it
    is a program, that is run here."""
    if request.new_session:
        os.setsid()
    _take(request.inherited, dict(zip(request.files, files, strict=True)), start)
    kind, what, *words = request.arguments
    if what in FORKING:
        _keep_a_twin(start)
    sys.path[:] = [request.inherited.cwd if kind == "-m" else "", *start.path]
    sys.argv[:] = [kind, *words]
    sys.orig_argv[:] = [sys.executable, *request.arguments]
    sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "-m":
        _forget(what)
        return what
    exec(what, vars(sys.modules["__main__"]))
    sys.exit()


def _forget(module: str) -> None:
    """Let no module be imported that the command is."""
    if hasattr(sys.modules.get(module), "__path__"):
        module += ".__main__"
    if module in sys.modules:
        package, _, name = module.rpartition(".")
        del sys.modules[module]
        vars(sys.modules[package]).pop(name, None)


def _keep_a_twin(start: _Start) -> None:
    """Fork a process as this one is now, which becomes the fork server of multiprocessing when the
    command starts that, and ends with the command otherwise."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _wait_as_twin(theirs, start)
    theirs.close()
    spawn = util.spawnv_passfds

    def start_it(path: Any, arguments: Any, files: Any) -> int:
        if not arguments[-1].startswith(FORK_SERVER):
            return spawn(path, arguments, files)
        util.spawnv_passfds = spawn
        try:
            ask(ours, fork_server(arguments, files))
        except OSError:  # a signal to the group has ended it
            return spawn(path, arguments, files)
        finally:
            ours.close()
        return pid

    util.spawnv_passfds = start_it


def _wait_as_twin(channel: socket.socket, start: _Start) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    data, files, _, _ = socket.recv_fds(channel, LARGE, MOST_FILES)
    if not data:
        os._exit(0)
    channel.detach()
    _become(pickle.loads(data), files, start)
    sys.exit()


def fork_server(arguments: list[str], files: list[int]) -> Request:
    """The fork server that multiprocessing starts by these arguments, with these descriptors."""
    had = inherited(os.getcwd(), current_environment())
    return Request(tuple(arguments[-2:]), had, False, (0, 1, 2, *files))


def ask(channel: socket.socket, request: Request, files: Sequence[int] = ()) -> None:
    """Send a request; its descriptors are this process's ``files``, those of the same numbers where
    none are named."""
    socket.send_fds(channel, [pickle.dumps(request)], list(files or request.files))


if __name__ == "__main__":
    import runpy

    from tests import command_server  # under its own name, for pickle

    module = command_server.serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        runpy._run_module_as_main(module)
    except KeyboardInterrupt:
        command_server._Ending.interrupted = True
        raise
