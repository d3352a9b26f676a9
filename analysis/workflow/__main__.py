"""What a judge taught a policy of programs: rates, gap, over-rewards, exploits, treatments.

``log=FILE`` reads the log of such a run by others in place of a study; docs/workflow-analysis.md
says what is in one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.display.printed import show, with_problems
from analysis.drift.estimate import usable_cells
from analysis.records.runs import read_study
from analysis.workflow import log as workflow_log
from analysis.workflow.arm import numbers, of_study
from analysis.workflow.display import lines, of_log
from study.cli import ResultOptions, command, option
from study.errors import UserError


@dataclass(frozen=True)
class Options(ResultOptions):
    """Options of `analysis.workflow`: a study, or a log of another program."""

    study: str = option("name of the study", "")
    log: Path | None = option("log of another program, JSON lines, in place of a study")

    def check(self) -> None:
        """Refuse both or neither, and a study that is not there."""
        if bool(self.study) == (self.log is not None):
            raise UserError("analysis.workflow needs study= or log=, and takes only one of them.")
        if self.study:
            super().check()


@command("analysis.workflow study=workflow-quickstart out=workflow.json", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    if options.log is not None:
        runs = workflow_log.read(options.log)
        written = {"runs": {name: workflow_log.numbers(run) for name, run in runs.items()}}
        return show(options, written, lambda: "\n".join(of_log(runs)))
    records = read_study(options.folder)
    result = of_study(records, usable_cells(records.table))
    if result is None:
        raise UserError(
            f"{options.folder} has no recorded rollout of programs. Name a study of"
            " world=workflow, such as workflow-quickstart."
        )
    problems = [*records.problems, *result.problems]
    written = {**numbers(result), "problems": problems}
    return show(options, written, lambda: with_problems(lines(result), problems))


if __name__ == "__main__":
    sys.exit(main())
