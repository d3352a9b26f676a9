"""Watches a study while it runs, from its records alone; nothing of the study is written.

    python -m experiments.monitor study=NAME
    python -m experiments.monitor study=NAME show=disagreements domain=qa

status prints where a study stands once, monitor until its end; list says which studies and cells
there are, show what one cell is.

It ends once every cell is done. On a terminal it is one screen; into a pipe it prints a line for
each cell that changed, or with json=true an object each time. docs/monitor.md says what each column
and alarm means.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from experiments.monitor.alarms import Rings, alarms, rise
from experiments.monitor.disagreements import Disagreements
from experiments.monitor.read import StudyReader, View, totals
from experiments.monitor.restart import restart
from experiments.monitor.screen import draws, line, screen, summary, throttled
from study.cell import exchange
from study.cli import StudyOptions, command, option
from study.config.bounds import Choice, Number
from study.errors import UserError
from study.screen import unread, visible
from study.system import stopping
from study.system.files import plain

SHOWS = ("disagreements",)


@dataclass(frozen=True)
class Options(StudyOptions):
    """Options of the monitor: the study, how often to look, and what to print."""

    once: bool = option("print status once and exit", False)
    json: bool = option("one JSON object a line each time, for programs", False)
    restart: bool = option("restart each stalled cell on this host, once", False)
    every: float = option("seconds between two updates", 2.0, Number(low=0.2, high=3600))
    show: str | None = option(
        "print the newest answers where judge and rule disagree, with the judge's reply, and exit",
        legal=Choice(SHOWS),
    )
    domain: str | None = option("with show=: the only domain to show")
    limit: int = option("with show=: most answers to print", 10, Number(low=1, high=10_000))
    given: frozenset[str] = frozenset()

    def check(self) -> None:
        """Refuse a study that is not there, and options that have no meaning together."""
        super().check()
        belongs = ("domain", "limit") if self.show is None else ("once", "restart", "every")
        if wrong := [name for name in belongs if name in self.given]:
            where = "show=disagreements" if self.show is None else "the monitor without show="
            raise UserError(f"{wrong[0]}= has no meaning without {where}. Leave it out.")


@command("experiments.monitor study=quickstart once=true", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 all cells are done, or ``once`` or ``show``; 2 a user's error; 130 Ctrl-C."""
    reader = StudyReader(options.folder)
    if options.show:
        return _show(options)
    watch = Watch(options, reader)
    if options.json:
        return watch.run(watch.print_json)
    from rich.console import Console

    return watch.run_screen() if draws(Console()) else watch.run(watch.print_lines)


class Watch:
    """Looks at a study again and again."""

    def __init__(self, options: Options, reader: StudyReader) -> None:
        self.options, self.reader = options, reader
        self.views: list[View] = []
        self._restarted: dict[str, str] = {}
        """Cell -> what came of its restart."""
        self._printed_notes: dict[str, tuple[Any, ...]] = {}
        self._rings = Rings()

    def look(self) -> bool:
        """Read what is new; whether this was the last time."""
        exchange.fetch(self.options.folder)
        self.views = self.reader.views()
        stalled = [view for view in self.views if view.stalled and view.cell not in self._restarted]
        if self.options.restart and stalled:
            self._restarted |= {view.cell: restart(view) for view in stalled}
            self.views = self.reader.views()
        for view in self.views:
            view.alarms = alarms(view, str(self.options.runs_dir))
            view.rise = rise(view)
        all_done = bool(self.views) and all(view.state == "done" for view in self.views)
        return all_done or self.options.once

    def notes(self) -> list[str]:
        """What could not be read, and what was restarted."""
        problems = [view.problem for view in self.views if view.problem]
        return [*self._restarted.values(), *self.reader.problems, *problems]

    def run(self, tell: Any) -> int:
        """Look and tell until the end."""
        while True:
            last = self.look()
            tell()
            sys.stdout.flush()
            if last:
                return 0
            self._wait()

    def _wait(self) -> None:
        """Until the next look. Raises BrokenPipeError: nobody reads any more."""
        time.sleep(self.options.every)
        if unread():
            raise BrokenPipeError

    def print_json(self) -> None:
        """Print totals, cells and alarms as one JSON object; new notes go to stderr."""
        for note in self._new_notes():
            print(note, file=sys.stderr)
        record = {
            "study": self.options.study,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "totals": totals(self.views),
            "cells": [view.as_json() for view in self.views],
            "alarms": [dataclasses.asdict(alarm) for view in self.views for alarm in view.alarms],
        }
        print(json.dumps(plain(record), allow_nan=False))

    def print_lines(self) -> None:
        """A line for each cell that changed since the last time, and for each alarm that is new."""
        now, first = time.time(), not self._printed_notes
        rung = self._rings.new([alarm for view in self.views for alarm in view.alarms])
        for view in self.views:
            changed = (view.state, view.stalled, view.step, view.steps, view.judge)
            if self._printed_notes.get(view.cell) != changed:
                self._printed_notes[view.cell] = changed
                print(visible(line(view, now)))
            for alarm in rung:
                if alarm.cell == view.cell:
                    print(visible(f"ALARM  {alarm.cell}  {alarm.describe()} Type: {alarm.type}"))
        for note in self._new_notes():
            print(note)
        if first:
            print(summary(totals(self.views)))

    def _new_notes(self) -> list[str]:
        new = [note for note in self.notes() if note not in self._printed_notes]
        self._printed_notes |= dict.fromkeys(new, ())
        return [visible(note) for note in new]

    def run_screen(self) -> int:
        """Show one screen that is made anew each time; on its end it goes away, and the last state
        stays below what was there before."""
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)

        def render(height: int | None) -> Any:
            width = console.width
            sums = totals(self.views)
            notes = [*self.notes(), *throttled(self.views)]
            return screen(self.options.study, self.views, sums, notes, width, height)

        if not self.options.once:
            stopping.take_signals()
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while not self.look():
                    live.update(render(console.height), refresh=True)
                    time.sleep(self.options.every)
        else:
            self.look()
        console.print(render(None), soft_wrap=True)
        return 0


def _show(options: Options) -> int:
    search = Disagreements(options.folder, options.domain or "")
    disagreements = search.find(options.limit)
    for each in disagreements:
        print(json.dumps(plain(dataclasses.asdict(each))) if options.json else f"{each.text()}\n")
    for problem in search.problems:
        print(visible(problem), file=sys.stderr)
    looked = f"{search.answers} answers of the newest recorded steps"
    if not options.json:
        print(f"{len(disagreements)} disagreements, newest first; looked at {looked}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
