"""What a mixture of domains taught: judge against rule, effective mix, prediction, transfer."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from analysis.display.printed import show, with_problems
from analysis.drift.estimate import usable_cells
from analysis.ledger.transmission import THRESHOLD
from analysis.mixture.display import lines
from analysis.mixture.estimate import numbers, of_runs
from analysis.records.runs import read_study
from analysis.statistics.estimate import LEVEL
from study.cli import ResultOptions, command, option
from study.config.bounds import Number
from study.errors import UserError


@dataclass(frozen=True)
class Options(ResultOptions):
    """Options of `analysis.mixture`: the study, the window, and when the judge says yes."""

    window: int = option("steps of a window; 0 takes as many as the counts allow", 0, Number(low=0))
    threshold: float = option("score from which the judge says yes", THRESHOLD, Number(0, high=1))
    level: float = option("level of the intervals", LEVEL, Number(above=0, below=1))


@command("analysis.mixture study=mixed-quickstart out=mixture.json", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    records = read_study(options.folder)
    cells = usable_cells(records.table)
    runs = [run for run in records.runs if run.cell in cells]
    result = of_runs(runs, options.window, options.threshold, options.level)
    if result is None:
        raise UserError(
            f"{options.folder} has no recorded rollout that names its domain. Name a study of a"
            " mixture, such as one of task=mixed."
        )
    problems = [*records.problems, *result.problems]
    names = ("study", "window", "threshold", "level")
    chosen = {name: getattr(options, name) for name in names}
    written = {"options": chosen, **numbers(result), "problems": problems}
    text = lines(result, options.level)
    return show(options, written, lambda: with_problems(text, problems))


if __name__ == "__main__":
    sys.exit(main())
