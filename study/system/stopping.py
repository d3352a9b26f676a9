"""Stops a command in order, and once, on Ctrl-C, SIGTERM or a lost terminal.

The first of them interrupts what is going on. While that ends, which takes seconds, further ones
are answered and not obeyed: they would cut off the very lines that put things in order.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from study.errors import chain

PATIENCE_S = 60.0
"""How long an interrupted command may take to end before it can be interrupted again."""
AGAIN_S = 0.01
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPING_LINE = b"Stopping: what runs is being ended and recorded, which takes some seconds.\n"


class _State:
    signalled_at: float | None = None
    """Time of the first signal to stop."""
    number: int = signal.SIGINT
    held = 0
    waits = False
    sends = False
    """Whether a thread sends the signal until it is obeyed."""


def take_signals() -> None:
    """From now on each signal that means the end raises KeyboardInterrupt, once.

    What was ignored before, as under nohup or in the background of a shell, stays ignored.
    """
    _State.signalled_at, _State.held, _State.waits, _State.sends = None, 0, False, False
    sys.unraisablehook = _raise_again
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)


def _raise_again(lost: Any) -> None:
    """Python drops what is raised within a destructor, a weak reference's callback or here; an
    interruption that came there comes again."""
    if not issubclass(lost.exc_type, KeyboardInterrupt) or _State.signalled_at is None:
        sys.__unraisablehook__(lost)
        return
    _State.signalled_at = None
    _send_later()


def _send_later() -> None:
    if not _State.sends:
        _State.sends = True
        _thread.start_new_thread(_send_again, ())  # takes no lock that the main thread may hold


def _send_again() -> None:
    main = threading.main_thread().ident
    assert main is not None
    time.sleep(AGAIN_S)
    while _State.sends:
        signal.pthread_kill(main, _State.number)
        time.sleep(AGAIN_S)


def _stop(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if _State.signalled_at is not None and now - _State.signalled_at < PATIENCE_S:
        os.write(2, STOPPING_LINE)
        return
    _State.number = number
    if _is_dropped(frame):
        _send_later()
        return
    _State.signalled_at, _State.sends = now, False
    if _State.held:
        _State.waits = True
        os.write(2, STOPPING_LINE)
        return
    raise KeyboardInterrupt


def _is_dropped(frame: FrameType | None) -> bool:
    """Whether an error raised in this frame is dropped without a message."""
    while frame is not None and frame.f_code is not _raise_again.__code__:
        frame = frame.f_back
    return frame is not None


def told_by_user() -> bool:
    """Whether what interrupted the command was Ctrl-C; no where it was ended by the system, or with
    its terminal."""
    return _State.number == signal.SIGINT


def deafen() -> None:
    """What was to be stopped has ended in order; nothing may cut off the last lines any more."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def exit_code() -> int:
    """130, of a command that was stopped and has put things in order.

    Python remembers an interruption that passed through the exec() of a string, as within
    dataclasses, and would end the process by SIGINT in place of its exit code. The next such exec()
    makes it forget.
    """
    exec("")
    return 130


def interrupted(error: BaseException) -> bool:
    """Whether ``error`` is an interruption or came of one: a module that is stopped while it is
    imported says that it cannot be, and a library that puts a half-built object in order may fail
    over that."""
    return any(isinstance(link, KeyboardInterrupt) for link in chain(error))


@contextmanager
def held() -> Generator[None]:
    """Within the block nothing is interrupted; what came meanwhile interrupts at its end, or where
    `let_through` is called within it."""
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
    if not _State.held:
        let_through()


def let_through() -> None:
    """What came while interruptions were held interrupts here."""
    if _State.waits:
        _State.waits = False
        raise KeyboardInterrupt


@contextmanager
def deaf_to_terminal() -> Generator[None]:
    """Processes started within the block do not get the terminal's Ctrl-C: whoever started them
    tells them when to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_with_parent() -> None:
    """Run in a child: on Linux it gets SIGTERM when its parent is gone, even by kill -9."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
