"""How far a judge can be followed: over-optimisation over the square root of the KL."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.printed import show, with_problems
from analysis.printed.run import overopt_text, without_infinities
from analysis.records.runs import read_runs
from analysis.run.overopt import rows
from study.cli import StudyOptions, command, output


@dataclass(frozen=True)
class Options(StudyOptions):
    out: Path | None = output("JSON file for the numbers")


@command("analysis.overopt study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    runs, problems = read_runs(options.folder)
    table = [row for run in runs for row in rows(run)]
    numbers = without_infinities(table)
    return show(options, numbers, lambda: with_problems(overopt_text(table), problems))


if __name__ == "__main__":
    sys.exit(main())
