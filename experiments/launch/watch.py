"""Watches and reports a sweep's cells as they run: table, heartbeat and alarms.

A cell is looked at while an engine runs it, and once more when it has ended; what of it did not
change is not read again. What stays as it was, however many cells that are, costs nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from analysis.records.arms import arm_names
from experiments.monitor.alarms import Rings, alarms, rise
from experiments.monitor.notify import AlarmBell, command_of
from experiments.monitor.read import Alarm, CellReader, View, clock, totals
from experiments.monitor.screen import draws, screen, summary, throttled
from experiments.tracking.runs import mark_killed
from study.cell import cells
from study.cell.cells import Cell, judges_of
from study.cell.folder import CellFolder
from study.cell.places import StorageError
from study.command_names import typed
from study.config.schema import Judge
from study.progress import LATER_S, PRINTED_S
from study.screen import visible
from study.system import storage
from study.system.files import first_line

if TYPE_CHECKING:
    from rich.console import Group


LOOKS = 256
"""Cells that are looked at at a time, at most: so many files are asked for their time."""
ENDED_EARLY = ("failed", "killed")


class Board:
    """One `View` of each cell that this sweep runs."""

    def __init__(self, todo: Sequence[Cell]) -> None:
        config = todo[0].config
        self.study, self._runs_dir = config.study, config.runs_dir
        arms = arm_names([cell.data for cell in todo], config.factors)
        self._views = {
            cell.folder: View(
                *(cell.name, cell.folder, arm, cell.config.judge.name, cell.config.seed),
                steps=cell.config.trainer.steps,
            )
            for cell, arm in zip(todo, arms, strict=True)
        }
        self._readers: dict[CellFolder, CellReader] = {}
        """Of the cells that an engine runs now."""
        self._began_at: dict[CellFolder, float] = {}
        self._looked: dict[CellFolder, tuple[Any, ...]] = {}
        """Cell -> what its alarms were told by."""
        self._round: list[CellFolder] = []
        self._rings = Rings()

    @property
    def views(self) -> list[View]:
        """The views of all cells of the sweep, in its order."""
        return list(self._views.values())

    def begin(self, folder: CellFolder) -> None:
        """An engine runs this cell now, or will as soon as there is room."""
        if folder not in self._readers:
            self._readers[folder], self._began_at[folder] = CellReader(folder), time.time()

    def ended(self, folder: CellFolder) -> None:
        """An engine is done with this cell, whatever became of it."""
        reader = self._readers.pop(folder, None) or CellReader(folder)
        self._look(folder, reader, runs=False)

    def look(self) -> bool:
        """Look at some of the cells that run, in turn; whether that ended a round of all."""
        self._round = self._round or list(self._readers)
        now, self._round = self._round[:LOOKS], self._round[LOOKS:]
        for folder in now:
            if folder in self._readers:
                self._look(folder, self._readers[folder], runs=True)
        return not self._round

    def _look(self, folder: CellFolder, reader: CellReader, runs: bool) -> None:
        reader.read_config()
        before = self._views[folder]
        view = reader.view(before.arm, time.time())
        view.steps = view.steps or before.steps
        if runs and view.state in ENDED_EARLY:
            view.state = self._begins(folder, view)
        told_by = (view.state, view.stalled, view.step)
        if self._looked.get(folder) == told_by:
            view.alarms, view.rise = before.alarms, before.rise
        else:
            view.alarms, view.rise = alarms(view, self._runs_dir), rise(view)
        self._looked[folder], self._views[folder] = told_by, view

    def _begins(self, folder: CellFolder, view: View) -> str:
        """The state of a cell that an engine runs and that seems to have ended: so it was left by
        an earlier sweep, or this host cannot see its process and its lock."""
        alive = view.status.get("beat", 0.0) > self._began_at[folder]
        return "running" if alive and view.status.get("state") == "running" else "new"

    def new_alarms(self) -> list[Alarm]:
        """Those that were not there when this was asked last."""
        return self._rings.new([alarm for view in self.views for alarm in view.alarms])

    def totals(self) -> dict[str, Any]:
        """Sums over the cells; see `experiments.monitor.read.totals`."""
        return totals(self.views)

    def line(self) -> str:
        """The cells in one line, with the time."""
        words = [clock(time.time()), summary(self.totals()), *throttled(self.views)]
        return "  ".join(words)

    def screen(self, width: int, height: int | None) -> Group:
        """The table of the cells, fitted to ``width`` characters and ``height`` lines."""
        notes = [view.problem for view in self.views if view.problem] + throttled(self.views)
        return screen(self.study, self.views, self.totals(), notes, width, height)


LOOK_S = 5.0
"""Without a terminal all cells that run are looked at so often, at most."""
BELOW = 2
"""Lines of the terminal that the table leaves free."""


class Watch:
    """Told by an engine what becomes of each cell. Within its block a terminal shows a live table,
    which is redrawn in place and stays as it was last; without one a line says now and then how
    things stand.

    What a cell came to is said, and is in its ``status.json``. Of a cell that runs, that file is
    read where it has changed.
    """

    def __init__(self, todo: Sequence[Cell]) -> None:
        config = todo[0].config
        self.cell_of = {cell.folder: cell for cell in todo}
        self.board = Board(todo)
        self._bell = AlarmBell(command_of(config.sweep), config.study)
        self._refusals = Refusals()
        self._console = Console()
        self._live: Live | None = None
        self._shown_texts: set[str] = set()
        self._waits = itertools.chain(PRINTED_S, itertools.repeat(LATER_S))
        """Without a terminal a line is said after so many seconds each."""
        self._heartbeat = time.monotonic() + next(self._waits)
        self._look = 0.0

    def __enter__(self) -> Watch:
        if draws(self._console):
            # what goes elsewhere than to this terminal must not come here
            here = sys.stderr.isatty()
            self._live = Live(console=self._console, auto_refresh=False, redirect_stderr=here)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live is not None:
            with self._harmless():
                self._draw()
            self._live.stop()
            self._live = None
        self._say_once(self._bell.close(wait=kind is None))
        if kind is None and self._refusals.not_started:
            self.say(self._refusals.paragraph())

    def say(self, text: str) -> None:
        """Print a line. Nothing in it is taken for markup: errors quote what judges wrote."""
        self._console.print(Text(visible(text)), soft_wrap=True)

    def skips(self, folder: CellFolder) -> bool:
        """To be asked before a cell is started; where it says so, the cell is left as it is."""
        if self._refusals.covers(self.cell_of[folder]):
            return True
        self.board.begin(folder)
        return False

    def ended(self, folder: CellFolder, code: int) -> None:
        """A cell ended with an exit code; negative is the signal that killed it. Raises
        DiskError: it met a full disk, to which the others write too."""
        with contextlib.suppress(StorageError):  # what is here of it is told then
            folder.refresh()
        with self._harmless():
            self.board.ended(folder)
        status = folder.status()
        note = f"{folder.name}: {folder.state()} after {status.get('seconds', 0):.1f} s"
        self.say(note + (f" (exit {code}) {status.get('error', '')}" if code else ""))
        if code == cells.REFUSED:
            self._refusals.add(self.cell_of[folder], str(status.get("error", "")))
        if code < 0 or code in (cells.ORPHANED, storage.EXIT):
            mark_killed(folder, f"exit code {code}")
        if code == storage.EXIT:
            raise storage.DiskError(status.get("error") or storage.paragraph(None, folder.path))

    def tick(self) -> None:
        """To be called about once a second while cells run."""
        with self._harmless():
            self._tell(time.monotonic())

    def _tell(self, now: float) -> None:
        if now >= self._look and self.board.look():
            self._look = now + (0.0 if self._live is not None else LOOK_S)
        new = self.board.new_alarms()
        self._say_once(self._bell.tick(new, self.board.totals))
        if self._live is not None:
            self._draw()
            return
        for alarm in new:
            self.say(f"ALARM  {alarm.cell}  {alarm.describe()} Type: {alarm.type}")
        if now >= self._heartbeat:
            self._heartbeat = now + next(self._waits)
            self.say(self.board.line())

    @contextlib.contextmanager
    def _harmless(self) -> Generator[None]:
        """What goes wrong within the block is said: whatever stands in the files of a cell, the
        sweep goes on."""
        try:
            yield
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            self._say_once(f"The state of the cells was not shown ({why}). They continue.")

    def _draw(self) -> None:
        assert self._live is not None
        width, height = self._console.size
        self._live.update(self.board.screen(width, max(1, height - BELOW)), refresh=True)

    def _say_once(self, text: str) -> None:
        if text and text not in self._shown_texts:
            self._shown_texts.add(text)
            self.say(text)


class Refusals:
    """Judges whose endpoint refused key, account or model: no further cell that asks them starts. A
    judge is its address, its key and its model here, since those are what is refused."""

    def __init__(self) -> None:
        self.not_started: list[str] = []
        """Names of the cells that were not started."""
        self._refused: dict[tuple[str, str, str], str] = {}

    def add(self, cell: Cell, error: str) -> None:
        """A cell of which ``error`` says that a judge was refused."""
        hosted = [judge for judge in judges_of([cell]) if judge.endpoint.url.startswith("http")]
        named_in_error = [judge for judge in hosted if judge.endpoint.url in error]
        for judge in named_in_error or hosted:
            self._refused[_account(judge)] = judge.name

    def covers(self, cell: Cell) -> bool:
        """Whether the cell asks a judge that was refused; it is then noted as left."""
        refused = any(_account(judge) in self._refused for judge in judges_of([cell]))
        if refused:
            self.not_started.append(cell.name)
        return refused

    def paragraph(self) -> str:
        """What was not started, why, and what to type."""
        names = ", ".join(dict.fromkeys(self._refused.values()))
        return typed(
            f"The endpoint of {names} refused its key, its account or its model, so "
            f"{len(self.not_started)} cells that use it were not started: "
            f"{', '.join(self.not_started)}. Correct the key, the account or judge.endpoint.model,"
            " check it with python -m judges.check, and rerun the command."
        )


def _account(judge: Judge) -> tuple[str, str, str]:
    endpoint = judge.endpoint
    return endpoint.url, endpoint.api_key_env or "", endpoint.model
