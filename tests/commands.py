"""Commands in processes of their own, as a user starts them, without the seconds that Python takes
to import torch, MLflow and the rest.

`start` is ``subprocess.Popen([sys.executable, "-m", module, *words])`` and `run` is the like of
``subprocess.run``. The process is not started anew but forked from a server that has the imports
(`tests.command_server`). It is a child of the caller all the same: the server lets it go, and the
caller, who is the subreaper meanwhile, becomes its parent. So the pid, signals, process groups,
exit codes, zombies and what the kernel does as a parent ends are those of any child.

Each process that runs tests has a server of its own, started by its first command that trains:
for the others alone it would not pay. One for all workers would spare some seconds of imports, but
could not hand on its children, and would need a place, a lock and an end.

A command is started for real where it asks for what a fork cannot give: another working directory,
something to be done before it begins, another value of a variable that was read during the imports;
or where the system lacks what this needs. With ``real=True`` it always is. One such test for each
command is in `REAL`.

What a fork does not have as a fresh process: an order of its own of sets of strings, an empty
``sys.modules``, its words in the list of processes, and the end by SIGINT of a command that exits
after an interruption within ``exec`` of a string.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any

from experiments.trainer.processes import SURROUNDINGS, surroundings
from tests.command_server import (
    FORK_SERVER,
    FORKING,
    LARGE,
    Inherited,
    Ready,
    Request,
    ask,
    current_environment,
    fork_server,
    inherited,
)

ROOT = Path(__file__).resolve().parents[1]
REAL = {
    "analysis.audit": (
        "tests/judges/test_audit.py::"
        "test_a_page_shows_neither_arm_nor_score_and_lets_no_other_script_run"
    ),
    "experiments.rehearsal": (
        "tests/experiments/rehearsal/test_run.py::"
        "test_a_rehearsal_that_is_killed_goes_on_and_loses_nothing"
    ),
    "experiments.sweep": (
        "tests/experiments/test_sweep.py::test_plan_prints_the_cells_and_writes_nothing"
    ),
    "experiments.tracking": (
        "tests/experiments/test_tracking_store.py::"
        "test_printed_command_serves_and_a_remote_server_is_honoured"
    ),
    "experiments.ui": (
        "tests/experiments/test_tracking_pages.py::test_mlflow_itself_answers_until_ctrl_c"
    ),
    "judges.serve": (
        "tests/judges/test_serve.py::test_the_process_too_exits_2_without_a_traceback"
    ),
}
"""Command that tests fork -> the test that starts it for real."""
LIMIT_S = 500
"""How long `run` waits; what takes so long hangs."""
SET_SUBREAPER = 36
"""Of Linux's prctl."""
HARMLESS = {"jemalloc_bg_thd"}
"""Threads that the server may have: Arrow's allocator makes its own anew in a fork."""
EARLY = tuple(
    "ARROW_ CUDA_ GLIBC_ GOMP_ JUDGEDRIFT_REACH KMP_ LANG LC_ LD_ MALLOC_ MKL_ NUMEXPR_ NVIDIA_"
    " OMP_ OPENBLAS_ PYTHON PYTORCH_ RAYON_ TORCH_ TZ".split()
)
"""How variables begin that libraries, Python itself or `tests.mutants` read as they are loaded."""
LATE = {
    *("COLUMNS", "LINES", "PATH", "PYTEST_CURRENT_TEST", "PYTHONUNBUFFERED", "TMPDIR"),
    # set by imports of some tests, the last by Ray's
    *("_MLFLOW_TELEMETRY_SESSION_ID", "HF_XET_HIGH_PERFORMANCE", "PYTHONBREAKPOINT"),
}
"""Variables that make no difference though they were read."""


class Command(subprocess.Popen):
    """A child that runs a module, forked where that can be had."""

    forked = False
    unlike: tuple[str, ...] = ()
    """Why the last one was not forked: variables that differ from the server's, or the folder."""

    def _execute_child(self, *arguments: Any) -> None:
        begin = super()._execute_child
        given = inspect.signature(begin).bind(*arguments).arguments
        if (pid := _fork(given)) is None:
            return begin(*arguments)
        self.pid, self._child_created, self.forked = pid, True, True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in names))


def start(module: str, *words: str, real: bool = False, **named: Any) -> subprocess.Popen[Any]:
    """Begin ``python -m module words`` in the checkout, with the other arguments of Popen."""
    kind = subprocess.Popen if real else Command
    return kind([sys.executable, "-m", module, *words], **{"cwd": ROOT, **named})


def run(
    module: str, *words: str, real: bool = False, timeout: float = LIMIT_S, **named: Any
) -> subprocess.CompletedProcess[str]:
    """The end of ``python -m module words`` in the checkout, and what it said.
    Raises TimeoutExpired: it took longer than ``timeout`` seconds, and was killed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(module, *words, real=real, **{**pipes, **named}) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def run_program(program: str, *words: str, **named: Any) -> subprocess.CompletedProcess[str]:
    """The end of a Python of its own that runs a program in the checkout, and what it said."""
    usual = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": LIMIT_S}
    return subprocess.run([sys.executable, "-c", program, *words], **{**usual, **named})


def start_program(program: str, *words: object, **named: Any) -> subprocess.Popen[str]:
    """Begin a Python that runs a program in the checkout, forked where the server is there; what it
    prints can be read."""
    kind = Command if _Server.owner == os.getpid() else subprocess.Popen
    usual = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    return kind([sys.executable, "-c", program, *map(str, words)], **{**usual, **named})


def prepare() -> None:
    """Start this process's server, if there is none."""
    with _Server.lock:
        if _Server.owner != os.getpid():
            _Server.begin()


def close() -> None:
    """End this process's server, if there is one."""
    _Server.end()


class _Server:
    """The server of this process."""

    lock = threading.Lock()
    owner = 0
    """The process that tried to start it."""
    process: subprocess.Popen[bytes] | None = None
    channel: socket.socket | None = None
    ready: Ready | None = None
    environment: dict[str, str]
    """That of this process when it started it."""

    @classmethod
    def begin(cls) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cls.owner, cls.channel = os.getpid(), ours
        # what a sweep of this process has set meanwhile is no difference later
        cls.environment = dict(current_environment().items() - SURROUNDINGS.items())
        with theirs, surroundings():
            cls.process = subprocess.Popen(
                [sys.executable, "-m", "tests.command_server", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        with contextlib.suppress(OSError, EOFError):
            ready: Ready = pickle.loads(ours.recv(LARGE))
            if ready.threads <= HARMLESS and not ready.files:
                cls.ready = ready

    @classmethod
    def end(cls) -> None:
        if cls.process is not None and cls.channel is not None and cls.owner == os.getpid():
            cls.channel.close()
            cls.process.wait()
        cls.owner, cls.process, cls.channel, cls.ready = 0, None, None, None

    @classmethod
    def fork(cls, request: Request, files: Sequence[int] = ()) -> int | None:
        """Pid of the child that was made for a request; None where it takes a real start."""
        with cls.lock:
            if cls.owner != os.getpid():
                if request.arguments[0] == "-m" and request.arguments[1] not in FORKING:
                    return None
                cls.begin()
            if cls.ready is None:
                return None
            if unlike := _unlike(request.inherited):
                Command.unlike = unlike
                return None
            assert cls.channel is not None
            prctl = ctypes.CDLL(None).prctl
            prctl(SET_SUBREAPER, 1, 0, 0, 0)
            try:
                ask(cls.channel, request, files)
                pid: int = pickle.loads(cls.channel.recv(LARGE))
            except (OSError, EOFError):
                cls.ready = None
                return None
            finally:
                prctl(SET_SUBREAPER, 0, 0, 0, 0)
        return pid if pid > 0 else None


PLAIN: dict[str, Any] = {
    "executable": None,
    "preexec_fn": None,
    "close_fds": True,
    "pass_fds": (),
    "shell": False,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "process_group": -1,
}
"""What a forked child can only have as it is."""


def _fork(given: dict[str, Any]) -> int | None:
    """Pid of a forked child for these arguments of Popen; None where it takes a real start."""
    if sys.platform != "linux" or any(given[name] != value for name, value in PLAIN.items()):
        return None
    environment = current_environment() if given["env"] is None else dict(given["env"])
    had = inherited(os.path.realpath(given["cwd"] or os.getcwd()), environment)
    ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
    files = [number if file == -1 else file for number, file in enumerate(ends)]
    request = Request(tuple(given["args"][1:]), had, given["start_new_session"])
    return _Server.fork(request, files)


def _unlike(request: Inherited) -> tuple[str, ...]:
    """What differs from the place and the variables under which the server imported."""
    assert _Server.ready is not None
    before, after = _Server.environment, request.environment
    changed = {
        name
        for name in {*before, *after} - LATE
        if all(
            after.get(name) != legal.get(name, before.get(name))
            for legal in (before, SURROUNDINGS, _Server.ready.added)
        )
    }
    early = [name for name in changed if name in _Server.ready.read or name.startswith(EARLY)]
    return (*early, *([] if request.cwd == str(ROOT) else [request.cwd]))


_spawn = util.spawnv_passfds


def share_imports() -> None:
    """From now on fork servers of multiprocessing that this process starts are forked, too."""
    util.spawnv_passfds = _start_fork_server


def _start_fork_server(path: Any, arguments: Any, files: Any) -> int:
    if sys.platform == "linux" and arguments[-1].startswith(FORK_SERVER):
        pid = _Server.fork(fork_server(arguments, files))
        if pid is not None:
            return pid
    return _spawn(path, arguments, files)
