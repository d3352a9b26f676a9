"""The cells of a sweep as they are now, for its table, its heartbeat and its alarms.

A cell is looked at while an engine runs it, and once more when it has ended; what of it did not
change is not read again. What stays as it was, however many cells that are, costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.records.arms import arm_names
from experiments.monitor.alarms import Rings, alarms
from experiments.monitor.lines import summary
from experiments.monitor.read import Alarm, CellReader, View, clock, totals
from experiments.monitor.screen import screen
from study.cell.cells import Cell
from study.cell.folder import CellFolder

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
            view.alarms = before.alarms
        else:
            view.alarms = alarms(view, self._runs_dir)
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
        return f"{clock(time.time())}  {summary(self.totals())}"

    def screen(self, width: int, height: int | None) -> Group:
        """The table of the cells, fitted to ``width`` characters and ``height`` lines."""
        notes = [view.problem for view in self.views if view.problem]
        return screen(self.study, self.views, self.totals(), notes, width, height)
