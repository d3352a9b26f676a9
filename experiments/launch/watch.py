"""What a sweep sees and says of its cells while an engine runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments.asked import judges_of
from experiments.launch.pool import ORPHANED
from experiments.track.runs import mark_killed
from study import cells, exchange, storage
from study.cells import Cell
from study.places import PlaceTrouble
from study.schema import Judge
from study.screen import visible
from study.status import read_status

LOOKS = 256
"""Cells that are looked at in one second, at most: so many files are asked for their time."""


class Watch:
    """Told by an engine what becomes of each cell. Within its block a terminal shows a live table.

    What a cell came to is said, and is in its ``status.json``. Of a cell that runs, that file is
    read where it has changed.
    """

    def __init__(self, todo: Sequence[Cell]) -> None:
        self.cell_of = {cell.dir: cell for cell in todo}
        self._refusals = Refusals()
        self._console = Console()
        self._live: Live | None = None
        self._begun: dict[Path, tuple[int, str]] = {}
        """Cell that was begun -> when its status last changed, and its line."""
        self._next = 0

    def __enter__(self) -> Watch:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=1)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if kind is None and self._refusals.left:
            self.say(self._refusals.paragraph())

    def say(self, text: str) -> None:
        """Print a line. Nothing in it is taken for markup: errors quote what judges wrote."""
        self._console.print(Text(visible(text)), soft_wrap=True)

    def skips(self, folder: Path) -> bool:
        """To be asked before a cell is started; where it says so, the cell is left as it is."""
        if self._refusals.covers(self.cell_of[folder]):
            return True
        self._begun.setdefault(folder, (0, ""))
        return False

    def ended(self, folder: Path, code: int) -> None:
        """A cell ended with an exit code; negative is the signal that killed it. Raises
        DiskTrouble: it met a full disk, to which the others write too."""
        self._begun.pop(folder, None)
        with contextlib.suppress(PlaceTrouble):  # what is here of it is told then
            exchange.refresh(folder)
        status = read_status(folder)
        note = f"{folder.name}: {cells.state(folder)} after {status.get('seconds', 0):.1f} s"
        self.say(note + (f" (exit {code}) {status.get('error', '')}" if code else ""))
        if code == cells.REFUSED:
            self._refusals.add(self.cell_of[folder], str(status.get("error", "")))
        if code < 0 or code in (ORPHANED, storage.EXIT):
            mark_killed(folder, f"exit code {code}")
        if code == storage.EXIT:
            raise storage.DiskTrouble(status.get("error") or storage.paragraph(None, folder))

    def tick(self) -> None:
        """To be called about once a second while cells run."""
        if self._live is None:
            return
        begun = list(self._begun)
        first = self._next % max(1, len(begun))
        for folder in (begun[first:] + begun[:first])[:LOOKS]:
            self._look(folder)
        self._next = first + LOOKS
        self._live.update(Text(visible("\n".join(self.lines()))))

    def lines(self) -> list[str]:
        """A line for each cell that runs, as it was when its status was last read."""
        return [line for _, line in self._begun.values() if line]

    def _look(self, folder: Path) -> None:
        try:
            changed = (folder / "status.json").stat().st_mtime_ns
        except OSError:
            return
        if changed == self._begun[folder][0]:
            return
        status, line = read_status(folder), ""
        if status.get("state") == "running":
            step = f"step {status.get('step', 0)}/{status.get('steps', '?')}"
            line = f"{folder.name}  {step}  {status.get('phase', '')}"
        self._begun[folder] = (changed, line)


class Refusals:
    """Judges whose endpoint refused key, account or model: no further cell that asks them starts. A
    judge is its address, its key and its model here, since those are what is refused."""

    def __init__(self) -> None:
        self.left: list[str] = []
        """Names of the cells that were not started."""
        self._refused: dict[tuple[str, str, str], str] = {}

    def add(self, cell: Cell, error: str) -> None:
        """A cell of which ``error`` says that a judge was refused."""
        asked = [judge for judge in judges_of([cell]) if judge.endpoint.url.startswith("http")]
        named = [judge for judge in asked if judge.endpoint.url in error]
        for judge in named or asked:
            self._refused[_account(judge)] = judge.name

    def covers(self, cell: Cell) -> bool:
        """Whether the cell asks a judge that was refused; it is then noted as left."""
        refused = any(_account(judge) in self._refused for judge in judges_of([cell]))
        if refused:
            self.left.append(cell.name)
        return refused

    def paragraph(self) -> str:
        """What was not started, why, and what to type."""
        names = ", ".join(dict.fromkeys(self._refused.values()))
        return (
            f"The endpoint of {names} refused its key, its account or its model, so "
            f"{len(self.left)} cells that ask it were not started and stay as they were: "
            f"{', '.join(self.left)}. Put the key, the account or judge.endpoint.model right, see "
            f"that it answers with python -m judges.check, and run the same command again."
        )


def _account(judge: Judge) -> tuple[str, str, str]:
    endpoint = judge.endpoint
    return endpoint.url, endpoint.api_key_env or "", endpoint.model
