"""The ledger of a study: `analysis.step.transmission` applied to every run and step on record."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.printed import with_problems
from analysis.printed.step import ledger_text
from analysis.records.runs import read_runs
from analysis.step.ledger import judge_table, ledger
from study.cli import StudyOptions, command, output


@dataclass(frozen=True)
class Options(StudyOptions):
    out: Path | None = output("Parquet file for the steps")


@command("analysis.ledger study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    runs, problems = read_runs(options.folder)
    steps = ledger(runs)
    if options.out:
        steps.to_parquet(options.out)
    text = ledger_text(runs, judge_table(runs, steps))
    print(with_problems(text, [*problems, *steps.attrs["problems"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
