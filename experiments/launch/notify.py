"""``sweep.notify``: a command of the user's that is run when a sweep has ended, or on an alarm.

It is started as it is typed, by no shell. Environment variables tell it what happened, and its
standard input is a JSON object of the same. It may take `LIMIT_S`; whatever it does, the sweep goes
on, and what went wrong with it is one line.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from study.errors import UserError
from study.files import first_line, plain
from study.screen import visible
from study.secrets import redact

LIMIT_S = 30.0
"""How long the command may take; then it is killed, with what it started."""
LONGEST = 500
"""Characters of one fact, at most."""
READS = 32
"""Blocks of what it says that are read at a time; a pipe holds 16."""


def check_notify(command: str) -> None:
    """Refuse a command that cannot be started.
    Raises UserError: it is no command line, or its program is not there."""
    given = f"sweep.notify={redact(visible(command))[:LONGEST]}"
    example = "Type for example: sweep.notify=./tell-me.sh, a script that may be executed"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(
            f"{given} is not a command line ({first_line(error)}). {example}."
        ) from error
    if command and not words:
        raise UserError(f"{given} names no command. {example}.")
    if words and shutil.which(words[0]) is None:
        raise UserError(
            f"{given} starts {visible(words[0])}, which is not a program here: it is neither on the"
            f" PATH nor a file that may be executed. No shell reads it, so that pipes, $NAME and ;"
            f" mean nothing in it. {example}."
        )


class Call:
    """The command, started once. Nothing it does can hold up who started it."""

    def __init__(self, command: str, facts: Mapping[str, Any]) -> None:
        words = shlex.split(command)
        self._name, self._words, self._trouble = visible(words[0]), b"", ""
        self._process: subprocess.Popen[bytes] | None = None
        self._limit = time.monotonic() + LIMIT_S
        try:
            with tempfile.TemporaryFile() as facts_file:  # a pipe could fill
                facts_file.write(json.dumps(plain(facts), allow_nan=False).encode())
                facts_file.seek(0)
                self._process = subprocess.Popen(
                    words,
                    stdin=facts_file,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=os.environ | variables(facts),
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or first_line(error)
            self._trouble = f"could not be started ({why})"
            return
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)

    def ended(self) -> bool:
        """Whether it is over; one that takes too long is killed."""
        if self._process is None:
            return True
        self._read()
        code = self._process.poll()
        if code is None and time.monotonic() < self._limit:
            return False
        if code is None:
            self._trouble = f"did not end within {LIMIT_S:.0f} s and was killed"
            self._kill()
        elif code != 0:
            self._read()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            last = self._words.decode("utf-8", "replace").strip().splitlines()[-1:]
            said = "".join(f": {redact(visible(line))[:LONGEST]}" for line in last)
            self._trouble = f"ended with {how}{said}"
        self._close()
        return True

    def wait(self) -> None:
        """Until it is over."""
        while not self.ended():
            time.sleep(0.05)

    def end(self) -> None:
        """Kill it now, unless it is over."""
        if not self.ended():
            self._kill()

    def trouble(self) -> str:
        """What went wrong, as a line; empty where nothing did."""
        if not self._trouble:
            return ""
        return f"sweep.notify: {self._name} {self._trouble.rstrip('.')}. The sweep goes on."

    def _read(self) -> None:
        """Keep the last of what it said; what it says faster than this waits in its pipe."""
        assert self._process is not None and self._process.stderr is not None
        with contextlib.suppress(OSError):
            for _ in range(READS):
                data = os.read(self._process.stderr.fileno(), 1 << 12)
                if not data:
                    break
                self._words = (self._words + data)[-2 * LONGEST :]

    def _kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)

    def _close(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        self._process.stderr.close()
        self._process = None


def variables(facts: Mapping[str, Any]) -> dict[str, str]:
    """The facts that are one value each, and the totals, as environment variables."""
    flat = {**facts, **facts["totals"]}
    return {
        f"JUDGEDRIFT_{name.upper()}": "" if value is None else str(value)
        for name, value in flat.items()
        if value is None or isinstance(value, str | int | float)
    }
