"""Writes a study's bias report again, and prints its first screen:
``python -m analysis.report study=NAME``."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from analysis.report.sections import write_report
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
        path = write_report(options.folder, options.sample_prompts)
        screen = read_json(path.with_name("summary.json"))["screen"]
    except OSError as error:
        if (trouble := explained(error, options.runs_dir)) is None:
            raise
        raise UserError(trouble) from error
    print(*(visible(typed(line)) for line in screen), path, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
