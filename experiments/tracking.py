"""MLflow as a projection of the records, rebuilt at will.

``python -m experiments.tracking rebuild study=NAME`` sends the records of a study again. Points
carry the time at which they were recorded, so that sending them again changes nothing.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from experiments.track.rebuild import first_config, rebuild
from study import cells
from study.bounds import check_name
from study.errors import UserError
from study.schema import Tracking
from study.secrets import refuse_arguments


def main(arguments: list[str] | None = None) -> int:
    """Command line: ``rebuild study=NAME [runs_dir=runs] [uri=URI]``; exits 1 if a cell failed."""
    words = sys.argv[1:] if arguments is None else arguments
    given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    try:
        refuse_arguments(words)
        if words[:1] != ["rebuild"] or "study" not in given or set(given) - OPTIONS:
            raise UserError(
                f"experiments.tracking was given {' '.join(words) or 'nothing'}; it knows one "
                "command: python -m experiments.tracking rebuild study=NAME [runs_dir=runs] "
                "[uri=URI], which projects the records of that study to MLflow again."
            )
        check_name("study", given["study"])
        runs_dir = Path(given.get("runs_dir", "runs"))
        folder = runs_dir / given["study"]
        found = cells.study_cells(folder)
        tracking = first_config(found).tracking if found else Tracking()
        tracking = dataclasses.replace(tracking, uri=given.get("uri", tracking.uri))
        return 0 if rebuild(folder, tracking, runs_dir) else 1
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


OPTIONS = {"study", "runs_dir", "uri"}

if __name__ == "__main__":
    sys.exit(main())
