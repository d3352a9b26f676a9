"""What several judges' scores are worth as one, from the records of a study."""

from __future__ import annotations

import sys

from analysis.display.printed import show
from analysis.panel.display import bias_shares, panels_text
from analysis.panel.estimate import worth
from analysis.records.replays import with_replays
from analysis.records.runs import read_study
from analysis.statistics.estimate import columns
from study.cli import FigureOptions, command
from study.errors import UserError


@command("analysis.panel study=interventions", __doc__, FigureOptions)
def main(options: FigureOptions) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    records = read_study(options.folder)
    runs, unread = with_replays([run for run in records.runs if run.done], options.folder)
    panels = worth(runs)
    if not panels:
        raise UserError(
            f"No finished run of {options.folder} has a truth and was scored by a second judge."
            f" Type for example: judgedrift replay study={options.study} judge=sim-fair"
        )
    problems = records.problems + unread
    rows = [columns(row) for row in panels]
    written = {"study": options.study, "panels": rows, "problems": problems}
    return show(
        options, written, lambda: panels_text(panels, problems), lambda: bias_shares(panels)
    )


if __name__ == "__main__":
    sys.exit(main())
