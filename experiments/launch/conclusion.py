"""How a sweep ends: its report, its table, and what to type next."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import analysis
from experiments import plan
from experiments.track.store import ui_command, ui_link
from study import cells, storage
from study.cells import Cell
from study.cli import COSTS, print_table
from study.files import read_left
from study.screen import visible
from study.status import read_status

REPORT = Path("report") / "bias_report.html"


def say_nothing_to_run(todo: Sequence[Cell]) -> None:
    """Why nothing is started: all is done, or another sweep is at it."""
    study = todo[0].config.study
    done = sum(cells.state(cell.dir) == "done" for cell in todo)
    if done == len(todo):
        print(f"All {done} cells of {study} are done; nothing to run.")
    else:
        print(
            f"{done} of {len(todo)} cells of {study} are done, and another sweep runs the others "
            "now: nothing is started here."
        )


def report(todo: Sequence[Cell], stale: bool) -> None:
    """Write the report where there is something new to say."""
    study_dir, config = todo[0].dir.parent, todo[0].config
    done = any(cells.state(cell.dir) == "done" for cell in todo)
    if config.sweep.report and done and (stale or not (study_dir / REPORT).exists()):
        write_report(study_dir)


def conclude(todo: Sequence[Cell], tracked: dict[str, Any]) -> int:
    """Print the table, where to look, and what to type next; 0 when every cell is done, else 1."""
    config, study_dir = todo[0].config, todo[0].dir.parent
    lines = plan.rows(todo, config.factors)
    print_table(lines, f"{config.study}: {len(todo)} cells", COSTS)
    if (study_dir / REPORT).exists():
        print(f"Report: {study_dir / REPORT}")
        summarise(study_dir)
    if tracked:
        families = {cell.config.judge.family for cell in todo}
        link = ui_link(tracked, "judge.family" if len(families) > 1 else "judge.name")
        print(f"Compare the runs: {ui_command(tracked['uri'])}\n  then open {link}")
    states = [(cell, cells.state(cell.dir)) for cell in todo]
    running = [cell for cell, state in states if state == "running"]
    left = [(cell, state) for cell, state in states if state not in ("done", "running")]
    for cell in running:
        status, log = read_status(cell.dir), cell.dir / "log.txt"
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.get("started", 0)))
        whereabouts = (
            f"{cell.name} is run by process {status.get('pid', '?')} on {status.get('host', '?')} "
            f"since {began}, at step {status.get('step', 0)} of {status.get('steps', '?')}; "
            f"to watch it: tail -f {log}"
        )
        print(visible(whereabouts))
    for cell, state in left:
        print(f"{cell.name} is {state}; its log: {cell.dir / 'log.txt'}")
    if running:
        print(
            "When those have ended, run the same command again: it takes up what is left and "
            "writes the report."
        )
    elif left:
        print("Run the same command again to continue where these stopped.")
    return 1 if running or left else 0


def write_report(study_dir: Path) -> None:
    """The bias report; a report that fails is said, and the runs stay what they are."""
    started = time.perf_counter()
    try:
        analysis.write_report(study_dir)
    except Exception as error:
        if trouble := storage.explained(error, study_dir):
            print(f"The report could not be written. {trouble}")
            return
        logging.exception("the report could not be written")
        why = visible(f"{type(error).__name__}: {error}")
        print(
            f"The report could not be written ({why}). The runs are "
            f"whole; to try again, type: python -m analysis.report study={study_dir.name}"
        )
        return
    print(f"report written in {time.perf_counter() - started:.1f} s")


def summarise(study_dir: Path) -> None:
    """Print the study's summary table as the report computed it."""
    path = study_dir / "report" / "summary.json"
    again = f"python -m analysis.report study={study_dir.name} writes it again"
    rows = read_left(path, f"its table is left out, and {again}").get("rows", [])
    if not isinstance(rows, list) or not rows:
        return
    tabular = all(
        isinstance(row, dict)
        and row.keys() == rows[0].keys()
        and all(isinstance(text, str) for text in row.values())
        for row in rows
    )
    if tabular:
        print_table(rows, "What each judge taught (mean over seeds)")
