"""What is wrong in the folders of a study, one sentence each: nothing here is changed or fatal.

Parts are looked at from outside, by their first and last bytes, so that a plan can do it; whoever
reads one finds the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from study.cells import Cell, lock, same_cells, save_config, set_status
from study.files import Damaged, read_json, read_yaml, say
from study.identity import identifying
from study.records import KINDS, METRICS, parts, read_metrics, step_of, where
from study.status import read_status

MAGIC = b"PAR1"
HIDDEN = "."
FORMS: dict[str, dict[str, type]] = {
    "environment.json": {"git": dict, "packages": dict, "sandbox": str},
    "mlflow.json": {
        **dict.fromkeys(("uri", "experiment_id", "parent_run_id", "run_id"), str),
        "sent": int,
    },
}
"""Files that a run can do without, and the kinds of what they hold."""


def say_problems(study_dir: Path, cells: Iterable[Cell | Path]) -> None:
    """Say what is wrong in a study: in its folder, and in these cells of it."""
    for sentence in strangers(study_dir):
        say(sentence)
    for cell in cells:
        for sentence in unsound(cell):
            say(sentence)


def mend(cell: Cell) -> None:
    """Write a damaged config or status of an existing cell again: the first from the command that
    names the cell, the second from its records."""
    problems: list[str] = []
    read_status(cell.dir, problems)
    try:
        saved = read_yaml(cell.dir / "config.yaml")
        wrong_config = identifying(saved) != identifying(cell.data)
    except FileNotFoundError:
        wrong_config = cell.dir.is_dir()
    except Damaged:
        wrong_config = True
    held = lock(cell.dir) if problems or wrong_config else None
    if held is not None:
        with held:
            if wrong_config:
                save_config(cell)
            if problems:
                set_status(cell.dir)


def strangers(study_dir: Path) -> list[str]:
    """Folders of a study that look like cells and are left out."""
    found = [
        f"{copy.name} has the config of {cell.name}, so it is a copy and is left out."
        for cell, copies in same_cells(study_dir).items()
        for copy in copies
    ]
    for path in sorted(study_dir.glob("*/")):
        if (path / "config.yaml").exists() or path.name in ("replays", "report"):
            continue
        if any((path / name).exists() for name in (*KINDS, METRICS, "status.json", "DONE")):
            found.append(
                f"{path.name} has records and no config.yaml, so it is left out. The command that "
                "made it writes its config again."
            )
    return found


def unsound(cell: Cell | Path) -> list[str]:
    """What in a cell's folder is damaged or not the cell's."""
    folder = cell.dir if isinstance(cell, Cell) else cell
    found: list[str] = []
    if not folder.is_dir():
        return found
    try:
        config = read_yaml(folder / "config.yaml")
        if isinstance(cell, Cell) and identifying(config) != identifying(cell.data):
            found.append(
                f"{where(folder / 'config.yaml')} is not the config that the folder was made for; "
                "a run of this command writes it again."
            )
    except FileNotFoundError:
        pass
    except Damaged as error:
        found.append(f"{where(error.path)} is damaged: it {error.why}.")
    read_status(folder, found)
    for name in ("environment.json", "mlflow.json"):
        try:
            read_form(folder / name)
        except Damaged as error:
            found.append(f"{where(error.path)} is damaged: it {error.why}.")
    lines, problems = read_metrics(folder)
    found += [f"{problem}." for problem in problems]
    made = {line["step"] for line in lines}
    for kind in KINDS:
        found += _unsound_parts(folder / kind, made)
    return found


def _unsound_parts(folder: Path, made: set[int]) -> list[str]:
    if not folder.is_dir():
        return [f"{folder.parent.name}/{folder.name} is gone."] if made else []
    found = foreign_parts(folder)
    for path in sorted(folder.iterdir()):
        if step_of(path) is not None and (why := _outside(path)):
            found.append(f"{where(path)} is damaged: it {why}.")
    there = {step_of(path) for path in parts(folder)}
    if gone := sorted(made - there):
        found.append(f"{folder.parent.name}/{folder.name} has no part of step {_listed(gone)}.")
    return found


def read_form(path: Path) -> dict[str, Any]:
    """`read_json` of a file in `FORMS`, whose values must be of their kinds.

    Raises:
        Damaged: they are not.
    """
    found = read_json(path)
    for key, kind in FORMS[path.name].items():
        if key in found and not isinstance(found[key], kind):
            raise Damaged(path, f"holds {key}={found[key]!r:.40}")
    return found


def foreign_parts(folder: Path) -> list[str]:
    """Files among the parts that are none, such as copies. A part that was being written when its
    run was killed is none either, and nothing is said of it."""
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        f"{where(path)} is no part of the records and is left out."
        for path in names
        if step_of(path) is None and not path.name.startswith(HIDDEN) and path.suffix != ".tmp"
    ]


def _outside(path: Path) -> str:
    try:
        if not path.is_file():
            return "is no regular file"
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if not size:
                return "is empty"
            file.seek(0)
            first = file.read(4)
            file.seek(max(0, size - 4))
            whole = size >= 12 and first == MAGIC == file.read(4)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "" if whole else "is no whole Parquet file"


def _listed(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[:5]))
    return f"{shown} and {len(steps) - 5} others" if len(steps) > 5 else shown
