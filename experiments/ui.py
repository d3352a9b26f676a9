"""Opens MLflow's pages on the store of the studies: on this machine alone, until Ctrl-C.

    python -m experiments.ui
    python -m experiments.ui study=NAME

With a study its own store is taken and the link to its charts is printed.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.studies.list import studies
from experiments.tracking.store import tracking_uri, ui_command, ui_link
from study.cell.places import shown
from study.cell.study_file import read_study
from study.cli import AnyStudyOptions, command, option
from study.config.schema import Tracking
from study.errors import UserError


@dataclass(frozen=True)
class Options(AnyStudyOptions):
    """Options of `experiments.ui`: the study, and whether only to print the link."""

    print_only: bool = option("print the command and the link", False)


@command("experiments.ui study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: those of MLflow; 0 where there is nothing to start, 2 for a user's error."""
    ids = tracked(options.runs_dir, options.study)
    served = ui_command(ids["uri"])
    if "experiment_id" in ids:
        print(f"The charts of {options.study}: {ui_link(ids, 'judge.name')}", flush=True)
    if options.print_only or ids["uri"].startswith("http"):
        print(served)
        return 0
    words = shlex.split(served)
    variables = dict(word.split("=", 1) for word in words if _is_variable(word))
    typed = [word for word in words if not _is_variable(word)]
    os.execvpe(typed[0], typed, {**os.environ, **variables})


def tracked(runs_dir: Path, study: str | None) -> dict[str, str]:
    """The store of a study, with the ids of its runs, or that of the folder.
    Raises UserError: nothing was tracked there."""
    if study is not None:
        ids = read_study(runs_dir / study).get("mlflow", {})
        if ids:
            return ids
        raise UserError(
            f"The study {study} in {shown(runs_dir)} was not sent to MLflow. Type"
            f" judgedrift tracking rebuild study={study} runs_dir={runs_dir}"
        )
    uri = tracking_uri(Tracking(), runs_dir)
    database = uri.partition("sqlite:///")[2].partition("?")[0]
    if database and not Path(database).exists():
        names = ", ".join(folder.name for folder in studies(runs_dir)) or "none"
        raise UserError(
            f"{shown(runs_dir)} has no MLflow store ({database} is missing); its studies:"
            f" {names}. Type runs_dir=FOLDER, or study=NAME for a study with another store."
        )
    return {"uri": uri}


def _is_variable(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isupper() and not name.startswith("-")


if __name__ == "__main__":
    sys.exit(main())
