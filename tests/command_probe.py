"""A command that says how it was started, or ends as it is told: what tests of starts compare."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np


def seen() -> dict[str, object]:
    """Everything that a process has from its start."""
    umask = os.umask(0)
    os.umask(umask)
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    streams = [
        [stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering,
         stream.write_through, stream.isatty(), stream.fileno()]
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    ]  # fmt: skip
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": repr(sys.flags),
        "executable": sys.executable,
        "cwd": os.getcwd(),
        "parent": os.getppid(),
        "is_leader": os.getpgid(0) == os.getpid() == os.getsid(0),
        "group": 0 if os.getpgid(0) == os.getpid() else os.getpgid(0),
        "umask": umask,
        "descriptors": sorted(fd for fd in descriptors if os.path.exists(f"/proc/self/fd/{fd}")),
        "limits": [resource.getrlimit(number) for number in range(resource.RLIM_NLIMITS)]
        if hasattr(resource, "RLIM_NLIMITS")
        else [resource.getrlimit(resource.RLIMIT_NOFILE)],
        "handlers": {int(n): str(signal.getsignal(n)).partition(" at ")[0]
                     for n in signal.valid_signals()},
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "streams": streams,
        "same_streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "main": [main.__name__, main.__file__, main.__package__, main.__spec__.name],
        "is_main": main.__dict__ is globals(),
        "imported_as_itself": "tests.command_probe" in sys.modules,
        "threads": [thread.name for thread in threading.enumerate()],
        "process": [multiprocessing.current_process().name, len(multiprocessing.active_children())],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
                  sys.gettrace() is None, sys.getrecursionlimit(), gc.isenabled(),
                  gc.get_threshold(), sys.getswitchinterval()],
        "shown_warnings": [kind.__name__ for action, _, kind, _, _ in warnings.filters
                           if action == "error"],
        "temporary": tempfile.gettempdir(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "nice": os.nice(0),
    }  # fmt: skip


def drawn() -> list[object]:
    """What no two processes should draw alike."""
    key = bytes(multiprocessing.current_process().authkey).hex()
    return [random.random(), float(np.random.random()), key, tempfile.mktemp()]


def end(how: str) -> None:
    """End this process in a way."""
    print("before the end")
    print("an error", file=sys.stderr)
    match how:
        case "return":
            return
        case "exit 3" | "exit 300":
            sys.exit(int(how.split()[1]))
        case "exit with words":
            sys.exit("words")
        case "raise":
            raise ValueError("raised")
        case "interrupt":
            raise KeyboardInterrupt
        case "thread":
            threading.Timer(0.05, print, ("from a thread",)).start()
        case "lost output":
            os.close(1)
        case "underscore":
            sys.stdout.flush()
            os._exit(7)
        case _:
            sys.stdout.flush()
            os.kill(os.getpid(), getattr(signal, how))


if __name__ == "__main__":
    what, *more = sys.argv[1:]
    match what:
        case "seen":
            print(json.dumps([seen(), dict(os.environ)]))
        case "drawn":
            print(json.dumps(drawn()))
        case "echo":
            print(sys.stdin.read().upper())
        case "wait":
            Path(more[0]).touch()
            time.sleep(600)
        case _:
            end(more[0])
