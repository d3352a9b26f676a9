"""How far a judge can be followed: over-optimisation over the square root of the KL."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.display.printed import show, with_problems, without_infinities
from analysis.onset.display import best_of_n_text, overopt_text
from analysis.onset.overopt import best_of_n, rows
from analysis.records.runs import read_runs
from analysis.statistics.estimate import columns
from study.cli import ResultOptions, command, output
from study.system.files import write_json


@dataclass(frozen=True)
class Options(ResultOptions):
    """Options of `analysis.overopt`: the study, and the file for best-of-n choices."""

    best_of_n: Path | None = output("JSON file for what choosing by each judge would give")


@command("analysis.overopt study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    runs, problems = read_runs(options.folder)
    table = [row for run in runs for row in rows(run)]
    numbers = without_infinities(table)
    chosen = best_of_n(runs)
    if options.best_of_n:
        write_json(options.best_of_n, [columns(line) for line in chosen])
    lines = [*overopt_text(table), *best_of_n_text(chosen)]
    return show(options, numbers, lambda: with_problems(lines, problems))


if __name__ == "__main__":
    sys.exit(main())
