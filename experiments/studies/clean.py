"""Says what of a folder of studies may go, and takes it away with ``yes=true``. Never records.

    python -m experiments.studies.clean
    python -m experiments.studies.clean study=NAME yes=true

What may go: checkpoints of cells that are done and have their final policy, what writers that were
killed left half-written, and books of judge servers whose owner is gone and that nobody uses; what
still runs of such servers is stopped. checkpoint=STEP then finds only the steps that a cell kept.
Checkpoints of cells that are not done stay: the same sweep goes on from them. A cell that is
running now is left alone.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.policies import checkpoints
from experiments.studies.list import studies
from experiments.studies.sizes import format_size, size
from judges.serving.book import BOOK, Service, services
from study.cell.folder import CellFolder, study_cells
from study.cell.places import shown
from study.cli import AnyStudyOptions, command, option
from study.errors import UserError
from study.screen import print_table
from study.system import files
from study.system.machine import has_process

_PROBE = re.compile(r"\.write-([0-9]{1,9})")
"""A file by which a sweep tries whether it may write, and its process."""
OLD_S = 3600.0
"""Age of a file beside the cells from which on nobody writes it any more."""
CHECKPOINTS, LEFTOVER, SERVER = "checkpoints of a done cell", "half-written", "server without owner"


@dataclass(frozen=True)
class Removable:
    """Something that may go, and the cell whose lock it needs."""

    path: Path
    kind: str
    cell: CellFolder | None = None


@dataclass(frozen=True)
class Options(AnyStudyOptions):
    """Options of `experiments.studies.clean`: the study, and whether to delete."""

    yes: bool = option("remove them; left out, only list them", False)


@command("experiments.studies.clean study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0, 2 for a user's error."""
    runs_dir = options.runs_dir
    if options.folder is not None:
        removable = list(of_study(options.folder))
    else:
        removable = [
            *of_folder(runs_dir),
            *(r for each in studies(runs_dir) for r in of_study(each)),
        ]
    if not removable:
        print(f"{shown(runs_dir)} holds nothing to remove.")
        return 0
    sizes = {each.path: size(each.path) for each in removable}
    lines = [
        {"what": each.kind, "size": format_size(sizes[each.path]), "where": str(each.path)}
        for each in removable
    ]
    print_table(lines, f"can be removed: {format_size(sum(sizes.values()))}")
    if not options.yes:
        print("No file was removed. To remove all of these, add yes=true")
        return 0
    removed = [each for each in removable if remove(each)]
    print(
        f"Removed: {len(removed)} of {len(removable)},"
        f" {format_size(sum(sizes[each.path] for each in removed))}."
    )
    return 0


def of_study(folder: Path) -> Iterator[Removable]:
    """What may go of a study."""
    for path in _leftovers(folder):
        if time.time() - path.lstat().st_mtime > OLD_S:
            yield Removable(path, LEFTOVER)
    for cell in study_cells(folder):
        state = cell.state()
        if state == "running":
            continue
        if state == "done" and _spares_checkpoints(cell):
            yield Removable(cell / "checkpoints", CHECKPOINTS, cell)
        for path in _leftovers(cell.path):
            yield Removable(path, LEFTOVER, cell)


def _spares_checkpoints(cell: CellFolder) -> bool:
    """Whether a cell that is done has checkpoints that its policy makes superfluous."""
    return (cell / "checkpoints").is_dir() and (cell / "policy").is_dir()


def of_folder(runs_dir: Path) -> Iterator[Removable]:
    """What may go of the folder that holds the studies."""
    for path in sorted(runs_dir.glob(".write-*")):
        probe = _PROBE.fullmatch(path.name)
        if probe and path.is_file() and not has_process(int(probe[1])):
            yield Removable(path, LEFTOVER)
    for service in services(runs_dir):
        with suppress(UserError):  # a damaged book: judges.serve status=true says so
            book = service.read()
            if book is not None and not service.owned(book) and not any(service.users()):
                yield Removable(service.folder / BOOK, SERVER)


def _leftovers(folder: Path) -> list[Path]:
    """Files that a writer which was killed did not rename."""
    return [
        path
        for path in sorted(folder.glob(".*"))
        if files.LEFTOVER.fullmatch(path.name) and path.is_file()
    ]


def remove(each: Removable) -> bool:
    """Take something away; whether it went. What is in use by now stays."""
    try:
        return _remove(each)
    except OSError as error:  # such as somebody else's
        print(f"{each.path} stays: {error.strerror or error}")
        return False


def _remove(each: Removable) -> bool:
    if each.kind == SERVER:
        service = Service(each.path.parent)
        with service.locked():
            return service.clear_ownerless()
    if each.cell is None:
        each.path.unlink(missing_ok=True)
        return True
    lock = each.cell.lock()
    if lock is None:
        print(f"{each.cell.name} is now in use, and was not changed")
        return False
    with lock:
        if each.kind == CHECKPOINTS and not (
            each.cell.is_done() and _spares_checkpoints(each.cell)
        ):
            return False
        checkpoints.remove(each.path)
    return True


if __name__ == "__main__":
    sys.exit(main())
