"""Cells run on this machine, in a pool, and what a terminal shows of them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments.launch.pool import ORPHANED, run_pool, threads_of, workers_of
from experiments.preflight import judges_of
from experiments.track.runs import mark_killed
from study import cells, storage
from study.cells import Cell
from study.schema import Judge
from study.screen import visible
from study.status import read_status


def run_cells(todo: Sequence[Cell]) -> None:
    """Run the cells to their ends; what each came to is said, and is in its ``status.json``. Raises
    DiskTrouble where a cell met a full disk, to which the others write too."""
    config = todo[0].config
    workers = min(workers_of(config), len(todo))
    threads = threads_of(config, workers)
    console = Console()
    cell_of = {cell.dir: cell for cell in todo}
    refusals = Refusals()

    def say(text: str) -> None:
        # as Text nothing is taken for markup: errors quote what judges and endpoints wrote
        console.print(Text(visible(text)), soft_wrap=True)

    say(f"{len(todo)} cells to run, {workers} at once, {threads} threads each")
    live = Live(console=console, refresh_per_second=1) if console.is_terminal else None

    def ended(folder: Path, code: int) -> None:
        status = read_status(folder)
        note = f"{folder.name}: {cells.state(folder)} after {status.get('seconds', 0):.1f} s"
        say(note + (f" (exit {code}) {status.get('error', '')}" if code else ""))
        if code == cells.REFUSED:
            refusals.add(cell_of[folder], str(status.get("error", "")))
        if code < 0 or code in (ORPHANED, storage.EXIT):
            mark_killed(folder, f"exit code {code}")
        if code == storage.EXIT:  # the other cells write to the same disk
            raise storage.DiskTrouble(status.get("error") or storage.paragraph(None, folder))

    def tick() -> None:
        if live is not None:
            statuses = [(cell.name, read_status(cell.dir)) for cell in todo]
            lines = [
                f"{name}  step {status.get('step', 0)}/{status.get('steps', '?')}"
                for name, status in statuses
                if status.get("state") == "running"
            ]
            live.update(Text(visible("\n".join(lines))))

    with live or nullcontext():
        run_pool(
            list(cell_of),
            workers,
            threads,
            ended,
            tick,
            lambda folder: refusals.covers(cell_of[folder]),
        )
    if refusals.left:
        say(refusals.paragraph())


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
