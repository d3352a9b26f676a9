"""What training moved on held-out rows: shifts within prompts, and whether they transfer."""

from __future__ import annotations

import sys

from analysis.display.printed import show, with_problems
from analysis.drift.base import base_of
from analysis.drift.estimate import usable_cells
from analysis.frozen.display import frozen_text
from analysis.frozen.effects import effects_of
from analysis.frozen.estimate import all_frozen, held_out_table
from analysis.records.runs import read_study
from study.cli import ResultOptions, command


@command("analysis.frozen study=quickstart", __doc__, ResultOptions)
def main(options: ResultOptions) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    records = read_study(options.folder)
    cells = usable_cells(records.table)
    runs = [run for run in records.runs if run.cell in cells]
    settings = [(run.arm, run.seed, run.identity) for run in runs]
    base = base_of(records.table[records.table["cell"].isin(cells)], settings)
    variances = effects_of(runs, base).variances if all_frozen(runs) else None
    table = held_out_table(runs, base, variances)
    numbers = table.to_dict("records")
    lines = frozen_text(runs, table, base)
    return show(options, numbers, lambda: with_problems(lines, records.problems))


if __name__ == "__main__":
    sys.exit(main())
