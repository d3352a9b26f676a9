"""A cell is one training run of a study: its identity, its folder, its state and its lock.

The folder is ``runs/<study>/<judge>-s<seed>-<hash>/``; the hash covers what of the resolved config
can change a result (`study.config.identity`), so the same command finds the same folder and resumes
it.
"""

from __future__ import annotations

import functools
import re
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from study.cell import places
from study.cell.records import recorded
from study.cell.signature import cell_id
from study.cell.status import read_status
from study.config.identity import digest, identifying
from study.config.schema import Study, freeze
from study.system import locks
from study.system.files import Damaged, read_json, read_text, read_yaml, write_json, write_yaml

LOCK = ".lock"
STOPPED = 3
"""Exit code of a cell that a signal stopped: its sweep was stopped, its job preempted, or its time
up."""
BUSY = 4
"""Exit code of a cell that another process runs."""
_WRITING = threading.Lock()
REFUSED = 5
"""Exit code of a cell whose key, account or model the endpoint refused: others would be, too."""


@dataclass(frozen=True)
class Cell:
    """One run to be made: the resolved config as plain data, frozen, and where it lives."""

    data: dict[str, Any]
    config: Study
    id: str
    dir: Path

    @property
    def name(self) -> str:
        """The name of the cell, which is that of its folder."""
        return self.dir.name

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """The flat config that makes the cell what it is: `study.config.identity.identifying`."""
        return identifying(self.data)


def make_cell(
    data: dict[str, Any], folder: Path | None = None, config: Study | None = None
) -> Cell:
    """Freeze a resolved config, unless ``config`` is that already, and give it its address, or the
    ``folder`` where it lives."""
    config = config or freeze(Study, data)
    digits = digest(data)
    if folder is None:
        name = f"{config.judge.name}-s{config.seed}-{digits}"
        folder = places.local(config.runs_dir) / config.study / name
    return Cell(data, config, digits, folder.absolute())


def load_cell(folder: Path) -> Cell:
    """The cell that lives in ``folder``, from the config that was saved there.
    Raises Damaged: its ``config.yaml`` does not hold a config of this version."""
    path = folder / "config.yaml"
    remedy = (
        "The command that made the cell writes its config again: run that, or move the folder away"
    )
    try:
        return make_cell(read_yaml(path, remedy), folder)
    except FileNotFoundError as error:
        raise Damaged(path, "is not there", remedy) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"is not the config of a cell ({type(error).__name__}: {error})"
        raise Damaged(path, why, remedy) from error


def other_config(folder: Path, config: dict[str, Any]) -> str:
    """Why a saved config is not the one that a cell's folder was made for, or is that of another
    study; empty where it is the cell's."""
    try:
        digits = digest(config)
        judge, seed = config.get("judge", {}).get("name"), config.get("seed")
    except (TypeError, ValueError, AttributeError) as error:
        return f"is not the config of a cell ({type(error).__name__})"
    name = f"{judge}-s{seed}-{digits}"
    if folder.name != name and re.fullmatch(r".+-s-?\d+-[0-9a-f]{10}", folder.name):
        return f"is the config of the cell {name}"
    try:
        study = read_json(folder.parent / "study.json").get("study")
    except Damaged:
        return ""
    other = study and config.get("study") not in (None, study)
    return (
        f"is of a cell of the study {config['study']!r:.60}, and lies in {study}" if other else ""
    )


def other_end(folder: Path, status: dict[str, Any]) -> str:
    """What a cell's status says against its DONE; empty where they agree."""
    state, step = status.get("state", "nothing"), status.get("step")
    if not is_done(folder):
        return "says done, and DONE is not there" if state == "done" else ""
    if state not in ("done", "running"):  # running: it was made again from the records
        return f"says {state}, and DONE is there"
    last = status.get("stopped_at", status.get("steps", step))
    return f"says step {step} of {last}, and DONE is there" if step != last else ""


def save_cell(cell: Cell) -> None:
    """Make the folder: write the resolved config, then a state if there is none yet.

    A cell that is done, or that another process runs, stays as it is.
    """
    cell_lock = lock(cell.dir, wait_s=1.0)
    if cell_lock is None:
        return
    with cell_lock:
        if is_done(cell.dir):
            return
        save_config(cell)
        if not (cell.dir / "status.json").exists():
            set_status(cell.dir, state="new", step=0, steps=cell.config.trainer.steps)


def save_config(cell: Cell) -> None:
    """Write the resolved config, for whoever holds the cell."""
    write_yaml(cell.dir / "config.yaml", cell.data)


def set_status(folder: Path, **changes: Any) -> None:
    """Merge ``changes`` into ``status.json``, for whoever holds the cell. The records can
    restore it, so it is not synced to the disk. Any thread may."""
    with _WRITING:
        status = {**read_status(folder), **changes, "cell": cell_id(folder)}
        status.setdefault("training", _training(folder))
        write_json(folder / "status.json", status, durable=False, signed=True)


def _training(folder: Path) -> str:
    """The training that the lines of a cell are of, or a new one."""
    lines = (line.get("training") for line in recorded(folder))
    return next(filter(None, lines), secrets.token_hex(4))


def lock(folder: Path, wait_s: float = 0.0) -> IO[str] | None:
    """Hold the cell for the life of the returned file, or None where another process does so for
    longer than ``wait_s``; whoever asks for a cell's state holds its lock for a moment."""
    folder.mkdir(parents=True, exist_ok=True)
    return locks.take(folder / LOCK, wait_s)


def is_done(folder: Path) -> bool:
    """Whether the cell has come to its end; it stays so, and nothing of it is written again."""
    return (folder / "DONE").exists()


def state(folder: Path) -> str:
    """new, running, done, failed or killed; a cell whose process is gone was killed."""
    if (recorded := state_of_held(folder)) != "killed":
        return recorded
    if places.runs_elsewhere(folder):
        return "running"
    try:
        cell_lock = lock(folder)
    except OSError:  # a folder that may only be read: nobody runs in it
        return "killed"
    if cell_lock is None:
        return "running"
    with cell_lock:
        return state_of_held(folder)


def state_of_held(folder: Path) -> str:
    """The state of a cell whose lock the caller holds: done, failed, new or killed."""
    if is_done(folder):
        return "done"
    last_state = read_status(folder).get("state", "new")
    # DONE comes after the status that says it
    return "killed" if last_state in ("running", "done") else last_state


def study_cells(study_dir: Path) -> list[Path]:
    """The folders of a study that hold a cell, by name; copies of one are left out."""
    return sorted(same_cells(study_dir))


def same_cells(study_dir: Path) -> dict[Path, list[Path]]:
    """Cell -> copies of its folder: folders with the very same config or digits, of longer names. A
    link is the copy of the folder that it leads to, whatever its name."""

    def order(path: Path) -> tuple[bool, bool, int, Path]:
        folder = path.parent
        return folder.is_symlink(), path.is_symlink(), len(folder.name), path

    groups: dict[str, list[Path]] = {}
    for path in sorted(study_dir.glob("*/config.yaml"), key=order):
        try:
            text = read_text(path)
        except Damaged:
            text = str(path.resolve())  # nobody's copy
        digits = cell_id(path.parent)
        group = groups.get(text) or groups.get(digits) or []
        group.append(path.parent)
        groups[text] = groups[digits] = group
    return {group[0]: group[1:] for group in groups.values()}
