"""What became of a behaviour once its part of the judge's error was taken out of the scores."""

from __future__ import annotations

import sys

from analysis.display.printed import show
from analysis.knockout.display import knockout_text
from analysis.knockout.estimate import numbers, of_study
from analysis.study import read_study
from study.cli import ResultOptions, command
from study.errors import UserError


@command("analysis.knockout study=knockout", __doc__, ResultOptions)
def main(options: ResultOptions) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    study = read_study(options.folder)
    knockouts = of_study(study.runs, study.effects(), study.effects("rollouts"))
    if not knockouts:
        raise UserError(
            f"{options.folder} has no pair of arms that differ only in correction.without. Type"
            " for example: python -m experiments.sweep experiment=knockout"
        )
    written = {"study": options.study, "knockouts": numbers(knockouts), "problems": study.problems}
    return show(options, written, lambda: knockout_text(knockouts, study.problems))


if __name__ == "__main__":
    sys.exit(main())
