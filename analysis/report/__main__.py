"""Writes a study's bias report again, where it would be another, and prints its first screen:
``python -m analysis.report study=NAME``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import analysis
from analysis.report import made_of
from study.cli import StudyOptions, command, option
from study.command_names import typed
from study.config.bounds import Number
from study.errors import UserError
from study.screen import visible
from study.system.files import read_json
from study.system.storage import explained


@dataclass(frozen=True)
class Options(StudyOptions):
    """Options of `analysis.report`: the study, and the prompts shown side by side."""

    sample_prompts: int = option(
        "prompts shown side by side at the first, middle and last step", 2, Number(low=0)
    )


@command("analysis.report study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    try:
        report_dir = _written(options.folder.absolute(), options.sample_prompts)
        screen = read_json(report_dir / made_of.SUMMARY)["screen"]
    except OSError as error:
        if (trouble := explained(error, options.runs_dir)) is None:
            raise
        raise UserError(trouble) from error
    print(*(visible(typed(line)) for line in screen), report_dir / made_of.PAGE, sep="\n")
    return 0


def _written(study_dir: Path, sample_prompts: int) -> Path:
    """The folder of the report, which is written where it would not come out as it is."""
    report_dir = study_dir / made_of.FOLDER
    if not made_of.is_current(report_dir, made_of.inputs(study_dir, sample_prompts)):
        analysis.write_report(study_dir, sample_prompts)
    return report_dir


if __name__ == "__main__":
    sys.exit(main())
