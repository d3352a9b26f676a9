"""What a report was made of: whether it would come out the same is told without reading records.

Nothing is compared but names, sizes and times of change: of every file of the study, of the program
and of the presets, with the packages that are installed and the settings. So a file that is
changed and given its old time again is not noticed; take the report away, and it is written anew.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Collection, Iterator
from pathlib import Path

from study.cell.folder import study_cells
from study.cell.timing import SWEEPS
from study.config import presets
from study.system.files import Damaged, read_json, write_json

FOLDER, PAGE, SUMMARY, NOTED = "report", "bias_report.html", "summary.json", "made_of.json"
PACKAGES = ("analysis", "experiments", "judges", "study")
PROGRAM = Path(__file__).parents[2]


def inputs(study_dir: Path, sample_prompts: int) -> str:
    """A digest of all that a report of the study is made of now.

    Args:
        sample_prompts: as of `analysis.report.writing.write_report`.
    """
    digest = hashlib.sha256(f"{sample_prompts} {os.getcwd()}".encode())
    # what is written of a study, not read
    apart = {study_dir / FOLDER, study_dir / SUMMARY, study_dir / SWEEPS}
    folders = [study_dir, *(PROGRAM / name for name in PACKAGES), *presets.folders()]
    for folder in folders:
        for line in _files(folder, apart):
            digest.update(line.encode(errors="surrogateescape"))
    states = [cell.state(cell.status([]), by_beat=True) for cell in study_cells(study_dir)]
    digest.update(",".join(states).encode())  # a process that is gone changes no file
    digest.update("\n".join(sorted(os.listdir(sysconfig.get_paths()["purelib"]))).encode())
    return digest.hexdigest()


def note(report_dir: Path, digest: str) -> None:
    """Keep beside a report what it was made of, and which files it has."""
    write_json(report_dir / NOTED, {"inputs": digest, "files": _outputs(report_dir)})


def is_current(report_dir: Path, digest: str) -> bool:
    """Whether the report in a folder was made of the same, and lies there as it was written."""
    try:
        noted = read_json(report_dir / NOTED)
    except Damaged:
        return False
    return noted == {"inputs": digest, "files": _outputs(report_dir)}


def _outputs(report_dir: Path) -> str:
    """A digest of the files of a report, a notebook beside them left out."""
    tables = _files(report_dir / "tables", ())
    lines = [_look(report_dir / name) for name in (PAGE, SUMMARY)]
    return hashlib.sha256("\n".join([*lines, *tables]).encode()).hexdigest()


def _files(folder: Path, apart: Collection[Path]) -> Iterator[str]:
    """A line of each file in a folder, in a fixed order, but of what is ``apart``."""
    for place, folders, names in os.walk(folder):
        within = [name for name in folders if name != "__pycache__"]
        folders[:] = sorted(name for name in within if Path(place, name) not in apart)
        for path in (Path(place, name) for name in sorted(names)):
            if path not in apart:
                yield _look(path)


def _look(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:  # it goes away meanwhile, or leads nowhere
        return f"{path} is not there"
    return f"{path} {status.st_size} {status.st_mtime_ns}"
