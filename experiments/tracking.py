"""MLflow as a projection of the records, rebuilt at will.

``python -m experiments.tracking rebuild study=NAME`` sends the records of a study again. Points
carry the time at which they were recorded, so that sending them again changes nothing.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.track.rebuild import first_config, rebuild
from study import cells
from study.bounds import Name
from study.cli import command, option, word
from study.schema import Tracking


@dataclass(frozen=True)
class Options:
    what: str = word("project the records of a study to MLflow again", "rebuild")
    study: str = option("name of the study", required=True, legal=Name())
    runs_dir: Path = option("folder that holds the studies", Path("runs"))
    uri: str | None = option("tracking URI; the study's own where it is left out")


@command("experiments.tracking rebuild study=NAME", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 rebuilt, 1 if a cell failed, 2 for a user's error."""
    folder = options.runs_dir / options.study
    found = cells.study_cells(folder)
    tracking = first_config(found).tracking if found else Tracking()
    if options.uri is not None:
        tracking = dataclasses.replace(tracking, uri=options.uri)
    return 0 if rebuild(folder, tracking, options.runs_dir) else 1


if __name__ == "__main__":
    sys.exit(main())
