"""Verifies the records of a study, or makes one Parquet file of each kind of every run that ended.

``judgedrift records verify study=NAME`` reads all records and says, a line each, which file is
damaged or of another cell, which holds rows that cannot be, and which contradict each other.

``merge`` does for an older study what a run does today at its end. Runs that are not done are left
as they are. What is read stays the same, before, after and while it works; a command that was
killed is typed again.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.records.runs import read_study
from experiments.pipeline.notes import NOTES, Notes
from experiments.policies import checkpoints
from study.cell import merged, signature
from study.cell.folder import CellFolder, study_cells
from study.cell.parts import is_signed, left_out, parts, read_all
from study.cell.verify import unsound
from study.cli import StudyOptions, command, word
from study.errors import UserError
from study.screen import visible
from study.system.files import Damaged


def merge(study_dir: Path) -> str:
    """Merge the records of a study's ended runs and of their replays; says what became of them.
    Raises UserError: none has ended."""
    runs = [folder for folder in study_cells(study_dir) if folder.is_done()]
    if not runs:
        raise UserError(
            f"{study_dir} has no finished run, and only their records are merged. Name another"
            " study: python -m experiments.records merge study=NAME runs_dir=FOLDER."
        )
    notes = Notes(study_dir) if (study_dir / NOTES).exists() else None
    before = after = 0
    for cell in runs:
        replays = (study_dir / "replays").glob(f"*/{cell.name}")
        places = [cell, *map(CellFolder, replays)]
        lock = cell.lock()
        if lock is None:
            print(f"another process is using {cell.name}, which was not changed", flush=True)
            continue
        with lock:
            before += sum(map(_files, places))
            for place in places:
                merged.merge_cell(place, notes.replaced if notes else None)
            after += sum(map(_files, places))
    return f"{len(runs)} runs have ended: of {before} Parquet files of records, {after} were made"


def verify(study_dir: Path) -> list[str]:
    """What is wrong with a study's records and those of its replays, a sentence each; prints how
    many files are of versions that did not sign them."""
    signature.forget()
    problems = dict.fromkeys(text.rstrip(".") for text in read_study(study_dir).problems)
    problems.pop(signature.UNSIGNED, None)  # they are counted below
    folders = study_cells(study_dir)
    unsigned = 0
    replays = sorted((study_dir / "replays").glob("*/*/"))
    for cell in (*folders, *map(CellFolder, replays)):
        left = {problem.partition(" is left out")[0] for problem in problems}
        more = [text.rstrip(".") for text in unsound(cell)]
        problems |= dict.fromkeys(text for text in more if text.partition(" is dam")[0] not in left)
        if why := checkpoints.foreign(cell, cell / "policy"):
            problems[f"{cell.name}/policy {why}"] = None
        signed: list[bool] = []
        for folder in merged.kinds(cell):
            damages: list[Damaged] = []
            for _ in read_all(folder, lost=damages):
                pass
            problems |= dict.fromkeys(map(left_out, damages))
            hurt = {damage.path for damage in damages}
            files = {part.path: part for part in parts(folder) if part.path not in hurt}
            signed += map(is_signed, files.values())
        unsigned += signed.count(False)
        if True in signed and False in signed:
            problems[
                f"{cell.name} has {signed.count(False)} unsigned files with signed ones: another"
                " version or program wrote them"
            ] = None
    print(f"{len(folders)} runs, {len(problems)} problems, {unsigned} unsigned files")
    return list(problems)


def _files(cell: CellFolder) -> int:
    return sum(1 for folder in merged.kinds(cell) for _ in folder.glob("*.parquet"))


@dataclass(frozen=True)
class Options(StudyOptions):
    """Options of `experiments.records`: the study, and whether to verify or merge."""

    what: str = word("verify all records, or merge the parts of each kind", "verify", "merge")


@command("experiments.records verify study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0, 1 where something is wrong, 2 for a user's error."""
    if options.what == "merge":
        print(merge(options.folder))
        return 0
    problems = verify(options.folder)
    for problem in problems:
        print(visible(f"{problem}."))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
