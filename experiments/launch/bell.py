"""When the command of ``sweep.notify`` is run, and what it is told."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from experiments.monitor.alarms import alarms
from experiments.monitor.lines import summary
from experiments.monitor.notify import LONGEST, Call, command_of
from experiments.monitor.read import Alarm, StudyReader, totals
from study.cell.cells import Cell
from study.errors import UserError
from study.screen import visible
from study.system.files import first_line
from study.system.secrets import redact

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
    sentences = [f"{alarm.cell}  {alarm.describe()}" for alarm in rung]
    others = f"; and {len(sentences) - 1} more alarms" if len(sentences) > 1 else ""
    words = (
        f"{sentences[0]}{others}" if event == "alarm" else f"{state}. {summary(dict(sweep_totals))}"
    )
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
