"""``sweep.notify``: a command of the user's that is run when a sweep has ended, or on an alarm.

It is started as it is typed, by no shell. Environment variables tell it what happened, and its
standard input is a JSON object of the same. It may take `LIMIT_S`; whatever it does, the sweep goes
on, and what went wrong with it is one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from experiments.monitor.alarms import alarms
from experiments.monitor.read import Alarm, StudyReader, totals
from experiments.monitor.screen import summary
from study.cell.cells import Cell
from study.config.schema import Sweep
from study.errors import UserError
from study.screen import visible
from study.system.files import first_line, plain
from study.system.secret_names import may_be_shown
from study.system.secrets import redact

LIMIT_S = 30.0
"""How long the command may take; then it is killed, with what it started."""
LONGEST = 500
"""Characters of one fact, at most."""
SHORTEST_HIDDEN = 8
"""Characters from which on a word of the command is not repeated in what is said of it."""
READS = 32
"""Blocks of what it says that are read at a time; a pipe holds 16."""


EXAMPLE = "Type for example: sweep.notify=./tell-me.sh, an executable script"


def command_of(sweep: Sweep) -> str:
    """The command of a sweep: ``sweep.notify``, or what the variable ``sweep.notify_env`` holds.
    Raises UserError: both are given, or the variable is not set."""
    if not sweep.notify_env:
        return sweep.notify
    if sweep.notify:
        raise UserError(
            "sweep.notify and sweep.notify_env are both given, but only one command can run."
            f" Leave one of them out. {EXAMPLE}."
        )
    command = os.environ.get(sweep.notify_env, "").strip()
    if not command:
        raise UserError(
            f"sweep.notify_env={sweep.notify_env} names a variable that is unset or empty here."
            f" Type export {sweep.notify_env}='...' with the command before the sweep."
        )
    return command


def check_notify(command: str, key: str = "sweep.notify") -> None:
    """Refuse a command that cannot be started. It is not repeated, for it may hold a secret;
    ``key`` is where it was given.
    Raises UserError: it is no command line, or its program is not there."""
    subject = f"The command of {key}"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(
            f"{subject} is not a command line ({first_line(error)}). {EXAMPLE}."
        ) from error
    if command and not words:
        raise UserError(f"{subject} names no command. {EXAMPLE}.")
    if words and shutil.which(words[0]) is None:
        plain = key == "sweep.notify" and may_be_shown(words[0])
        program = visible(words[0]) if plain else "a word that is not shown, for it may be a key"
        raise UserError(
            f"{subject} starts {program}, which is neither on the PATH nor an executable file. No"
            f" shell reads the command, so pipes, $NAME and ; have no meaning in it. {EXAMPLE}."
        )


class Call:
    """The command, started once. Nothing it does can hold up who started it."""

    def __init__(self, command: str, facts: Mapping[str, Any]) -> None:
        words = shlex.split(command)
        self._name = visible(words[0]) if may_be_shown(words[0]) else "the command"
        parts = {part for word in words[1:] for part in (word, *re.split(r"[\s:=@]+", word))}
        self._hidden = [part for part in parts if len(part) >= SHORTEST_HIDDEN]
        self._words, self._trouble = b"", ""
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
            last_line = "".join(
                f": {redact(visible(line), self._hidden)[:LONGEST]}" for line in last
            )
            self._trouble = f"ended with {how}{last_line}"
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process = None
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


def variables(facts: Mapping[str, Any]) -> dict[str, str]:
    """The facts that are one value each, and the totals, as environment variables."""
    flat = {**facts, **facts["totals"]}
    return {
        f"JUDGEDRIFT_{name.upper()}": "" if value is None else str(value)
        for name, value in flat.items()
        if value is None or isinstance(value, str | int | float)
    }


PAUSE_S = 60.0
"""Alarms of one minute are told together."""
MOST_ALARMS = 20
REPORT = "report/bias_report.html"


class AlarmBell:
    """Tells the command of alarms while cells run, one call at a time."""

    def __init__(self, command: str, study: str) -> None:
        self._command, self._study = command, study
        self._waiting: list[Alarm] = []
        self._call: Call | None = None
        self._next = 0.0

    def tick(self, new: Sequence[Alarm], read_totals: Callable[[], Mapping[str, Any]]) -> str:
        """To be called about once a second. Returns what went wrong with the last call, or nothing.

        Args:
            new: alarms since the last time.
            read_totals: gives the totals of the sweep.
        """
        if not self._command:
            return ""
        self._waiting += new
        trouble = ""
        if self._call is not None and self._call.ended():
            trouble, self._call = self._call.trouble(), None
        if self._waiting and self._call is None and time.monotonic() >= self._next:
            facts = facts_of("alarm", self._study, "running", read_totals(), self._waiting)
            self._call, self._waiting = Call(self._command, facts), []
            self._next = time.monotonic() + PAUSE_S
        return trouble

    def close(self, wait: bool = True) -> str:
        """Wait for the call that is under way, and no longer than it may take; or end it, where
        somebody waits for this process to end."""
        if self._call is None:
            return ""
        if not wait:
            self._call.end()
        self._call.wait()
        trouble, self._call = self._call.trouble(), None
        return trouble


def facts_of(
    event: str,
    study: str,
    state: str,
    sweep_totals: Mapping[str, Any],
    rung: Sequence[Alarm] = (),
    **more: Any,
) -> dict[str, Any]:
    """What the command is told.

    Args:
        event: alarm or end.
        state: of the sweep: running, done, unfinished, stopped or failed.
        sweep_totals: `experiments.monitor.read.totals` of its cells.
        rung: the alarms that it is about.
        more: further facts, texts for people among them.
    """
    if event == "alarm":
        others = f"; and {len(rung) - 1} more alarms" if len(rung) > 1 else ""
        words = f"{rung[0].cell}  {rung[0].describe()}{others}"
    else:
        words = f"{state}. {summary(dict(sweep_totals))}"
    facts = {
        "event": event,
        "study": study,
        "state": state,
        "summary": f"{study}: {words}",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **more,
        "totals": dict(sweep_totals),
        "alarms": [dataclasses.asdict(alarm) for alarm in rung[:MOST_ALARMS]],
        "alarms_in_all": len(rung),
    }
    return _short(facts)


def _short(value: Any) -> Any:
    """With every text cut, and fit for a terminal: errors quote what judges wrote."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return redact(visible(value))[:LONGEST] if isinstance(value, str) else value


@contextmanager
def told_at_end(todo: Sequence[Cell], mine: Sequence[Cell]) -> Generator[None]:
    """However the block ends, the command of ``sweep.notify`` is told; a sweep that has nothing to
    run has no end to tell.

    Args:
        todo: the cells of the sweep.
        mine: those that are run here.
    """
    command = command_of(todo[0].config.sweep)
    if not command or all(cell.folder.is_done() for cell in mine):
        yield
        return
    try:
        yield
    except BaseException as error:
        _harmless_end(command, todo[0], mine, error)
        raise
    _harmless_end(command, todo[0], mine, None)


def _harmless_end(
    command: str, first: Cell, mine: Sequence[Cell], error: BaseException | None
) -> None:
    """Tell the end that ``error`` made, or none; what goes wrong with that is said, and does not
    hide how the sweep ended."""
    try:
        _tell_end(command, first, _state(mine, error), error)
    except Exception as problem:
        print(f"sweep.notify: the notification failed ({visible(first_line(problem))}).")


def _state(mine: Sequence[Cell], error: BaseException | None) -> str:
    if error is not None:
        return "failed" if isinstance(error, Exception) else "stopped"
    return "done" if all(cell.folder.is_done() for cell in mine) else "unfinished"


def _tell_end(command: str, first: Cell, state: str, error: BaseException | None) -> None:
    study_dir = first.folder.study_dir
    views = []
    with contextlib.suppress(UserError):  # nothing of it was laid yet
        views = StudyReader(study_dir).views()
    for view in views:
        if view.state != "done":  # of many cells only those that somebody has to see to
            view.alarms = alarms(view, first.config.runs_dir)
    report = study_dir / REPORT
    more = {
        "error": first_line(error) if isinstance(error, Exception) else "",
        "folder": str(study_dir),
        "report": str(report) if report.exists() else None,
    }
    rung = [alarm for view in views for alarm in view.alarms]
    call = Call(command, facts_of("end", first.config.study, state, totals(views), rung, **more))
    call.wait()
    if trouble := call.trouble():
        print(trouble, flush=True)
