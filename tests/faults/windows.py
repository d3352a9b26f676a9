"""Where a process can be killed between two writes, and a kill in exactly that place.

Python announces every change of a file before it makes it (`sys.addaudithook`): each rename,
removal, new folder and opening for writing is a window. So the list of windows is taken from a run,
and a write that is added to the product is covered without being named anywhere.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "open"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PASSED_OVER = (".cache", ".lock", ".mlflow.lock", "log.txt")
"""Under the runs folder, what no record depends on."""


def watch(root: Path, on_window: Callable[[str], None]) -> None:
    """From now on, call ``on_window`` before each change of a file under ``root``.

    A window is named ``event path#n``: the n-th time that this process is about to do it. There is
    no way back: audit hooks stay until the process ends.
    """
    root = root.resolve()
    seen: Counter[str] = Counter()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITING):
            return
        where = arguments[1] if event == "os.rename" else arguments[0]
        if not isinstance(where, str | bytes | os.PathLike):
            return  # a descriptor that is open already
        path = Path(os.fsdecode(where))
        if not path.is_absolute():
            handle = arguments[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1
            base = os.readlink(f"/proc/self/fd/{handle}") if handle >= 0 else os.getcwd()
            path = Path(base) / path
        if not path.is_relative_to(root) or (event == "os.mkdir" and path.is_dir()):
            return
        name = str(path.relative_to(root))
        if not name.startswith(PASSED_OVER) and path.name not in PASSED_OVER:
            plain = f"{event.removeprefix('os.')} {_without_chance(name)}"
            seen[plain] += 1
            on_window(f"{plain}#{seen[plain]}")

    sys.addaudithook(hook)


def _without_chance(name: str) -> str:
    """``name`` without the letters that a temporary file's name is drawn from."""
    return re.sub(r"\.[a-z0-9_]{8}$", ".tmp", name) if "/." in f"/{name}" else name


def note(root: Path, into: Path) -> None:
    """Write the name of every window that this process passes to ``into``, one a line."""
    handle = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    watch(root, lambda name: _line(handle, name))


def kill_at_new(root: Path, into: Path, wanted: str = "") -> None:
    """Have this process killed at the first window of a name that ``into`` does not hold yet.

    The name goes to ``into`` first, without its count. So a cell that is run again and again is
    killed once in every window of its life, and then comes to its end.

    Args:
        root: the runs folder.
        into: names, one a line.
        wanted: only windows whose name matches this regular expression.
    """
    handle = os.open(into, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    known = set(os.read(handle, 1 << 20).decode().splitlines())

    def passed(name: str) -> None:
        plain = name.partition("#")[0]
        if re.match(wanted, plain) and plain not in known:
            _line(handle, plain)
            _die()

    watch(root, passed)


def _line(handle: int, text: str) -> None:
    os.write(handle, f"{text}\n".encode())


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
