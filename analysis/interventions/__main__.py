"""What each intervention on a biased judge bought, beside the same judge without any."""

from __future__ import annotations

import sys

from analysis.display.printed import show
from analysis.interventions.display import interventions_text
from analysis.interventions.estimate import numbers, of_records
from analysis.study import read_study
from study.cli import ResultOptions, command
from study.errors import UserError


@command("analysis.interventions study=interventions", __doc__, ResultOptions)
def main(options: ResultOptions) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    records = read_study(options.folder)
    interventions = of_records(records, records.effects())
    if interventions is None:
        raise UserError(
            f"{options.folder} has no pair of arms of one judge with and without an intervention"
            " (correction, trainer.beta). Type for example: python -m experiments.sweep"
            " experiment=interventions"
        )
    written = {"study": options.study, **numbers(interventions), "problems": records.problems}
    return show(options, written, lambda: interventions_text(interventions, records.problems))


if __name__ == "__main__":
    sys.exit(main())
