"""Lists the studies of a folder, or the cells of one of them: state, arms and size on disk.

python -m experiments.studies.list
python -m experiments.studies.list study=NAME

list says which studies and cells there are, show what one cell is; status prints where a study
stands once, monitor until its end.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from analysis.records.arms import arm_names
from experiments.studies.sizes import format_size, size
from study.cell import exchange
from study.cell.folder import STATES, CellFolder, study_cells
from study.cell.places import shown
from study.cell.study_file import read_study
from study.cli import AnyStudyOptions, command
from study.screen import plural, print_table
from study.system.files import Damaged


@command("experiments.studies.list study=quickstart", __doc__, AnyStudyOptions)
def main(options: AnyStudyOptions) -> int:
    """Exit codes: 0, 2 for a user's error."""
    runs_dir = options.runs_dir
    if options.folder is not None:
        _print_cells(options.folder)
        return 0
    for name in exchange.studies(runs_dir):
        exchange.fetch(runs_dir / name)
    folders = studies(runs_dir)
    if not folders:
        print(f"{shown(runs_dir)} holds no study. To make one, type: judgedrift sweep")
        return 0
    print_table([_of_study(folder) for folder in folders], f"studies in {shown(runs_dir)}")
    return 0


def studies(runs_dir: Path) -> list[Path]:
    """The folders of all studies, by name."""
    folders = {path.parent for path in runs_dir.glob("*/study.json")}
    return sorted(folders | {path.parent.parent for path in runs_dir.glob("*/*/config.yaml")})


def _of_study(folder: Path) -> dict[str, str]:
    folders = study_cells(folder)
    counts = Counter(folder.state() for folder in folders)
    report = folder / "report" / "bias_report.html"
    return {
        "study": folder.name,
        "cells": str(len(folders)),
        "state": ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]),
        "arms": str(len(set(arms(folder, folders)))),
        "report": "yes" if report.exists() else "",
        "last change": _when(
            max((_changed(cell.path) for cell in folders), default=_changed(folder))
        ),
        "size": format_size(size(folder)),
    }


def _print_cells(folder: Path) -> None:
    folders = study_cells(folder)
    if not folders:
        print(f"{folder} holds no cell.")
        return
    lines = []
    for cell, arm in zip(folders, arms(folder, folders), strict=True):
        status = cell.status()
        lines.append(
            {
                "cell": cell.name,
                "arm": arm,
                "state": cell.state(),
                "step": f"{status.get('step', 0)}/{status.get('steps', '?')}",
                "seconds": f"{status['seconds']:.1f}" if "seconds" in status else "",
                "last change": _when(_changed(cell.path)),
                "size": format_size(size(cell.path)),
            }
        )
    print_table(
        lines, f"{folder.name}: {plural(len(folders), 'cell')}, {format_size(size(folder))}"
    )
    print(f"One of them: judgedrift show cell={folders[0].name} study={folder.name}")


def arms(folder: Path, folders: list[CellFolder]) -> list[str]:
    """The arm of each of a study's cells; a config that cannot be read has no name."""
    configs = []
    for cell in folders:
        try:
            configs.append(cell.config())
        except (Damaged, FileNotFoundError):
            configs.append({})
    return arm_names(configs, read_study(folder).get("factors", ["judge", "seed"]))


def _changed(folder: Path) -> float:
    """When a cell last changed its state, in seconds since 1970."""
    path = folder / "status.json"
    return (path if path.exists() else folder).stat().st_mtime


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


if __name__ == "__main__":
    sys.exit(main())
