"""Cells run on this machine, in a pool, and what a terminal shows of them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments.launch.pool import ORPHANED, run_pool, threads_of, workers_of
from experiments.launch.refusals import Refusals
from experiments.track.runs import mark_killed
from study import cells, storage
from study.cells import Cell
from study.screen import visible
from study.status import read_status


def run_cells(todo: Sequence[Cell]) -> None:
    """Run the cells to their ends; what each came to is said, and is in its ``status.json``.

    Raises:
        DiskTrouble: a cell met a full disk, to which the others write too.
    """
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

    def skipped(folder: Path) -> bool:
        return refusals.covers(cell_of[folder])

    def tick() -> None:
        if live is not None:
            live.update(Text(visible("\n".join(_running_lines(todo)))))

    with live or nullcontext():
        run_pool(list(cell_of), workers, threads, ended, tick, skipped)
    if refusals.left:
        say(refusals.paragraph())


def _running_lines(todo: Sequence[Cell]) -> list[str]:
    statuses = [(cell.name, read_status(cell.dir)) for cell in todo]
    return [
        f"{name}  step {status.get('step', 0)}/{status.get('steps', '?')}"
        for name, status in statuses
        if status.get("state") == "running"
    ]
