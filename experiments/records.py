"""Makes one Parquet file of each kind of records of every run that has ended.

``python -m experiments.records merge study=NAME`` does for an older study what a run does today at
its end. Runs that are not done are left as they are. What is read stays the same, before, after and
while it works; a command that was killed is typed again.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.stages.notes import NOTES, Notes
from study import cells, merged
from study.cli import StudyOptions, command, word
from study.errors import UserError


def merge(study_dir: Path) -> str:
    """Merge the records of a study's ended runs and of their replays; says what became of them.
    Raises UserError: none has ended."""
    done = [folder for folder in cells.study_cells(study_dir) if cells.is_done(folder)]
    if not done:
        raise UserError(
            f"{study_dir} has no run that has ended, and only the records of those are merged. "
            "Name another study: python -m experiments.records merge study=NAME runs_dir=FOLDER."
        )
    notes = Notes(study_dir) if (study_dir / NOTES).exists() else None
    before = after = 0
    for cell in done:
        places = [cell, *(study_dir / "replays").glob(f"*/{cell.name}")]
        held = cells.lock(cell)
        if held is None:
            print(f"another process works in {cell.name}, which stays as it is", flush=True)
            continue
        with held:
            before += sum(map(_files, places))
            for place in places:
                merged.merge_cell(place, notes.replaced if notes else None)
            after += sum(map(_files, places))
    return f"{len(done)} runs have ended: of {before} Parquet files of records, {after} were made"


def _files(cell: Path) -> int:
    return sum(1 for folder in merged.kinds(cell) for _ in folder.glob("*.parquet"))


@dataclass(frozen=True)
class Options(StudyOptions):
    what: str = word("merge the parts of each kind into one file", "merge")


@command("experiments.records merge study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0, 2 for a user's error."""
    print(merge(options.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
