"""A judge against the truth, by domain: ``study=NAME`` reads records, ``table=FILE`` a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.display.printed import with_problems
from analysis.external.confusion import check_judged
from analysis.external.tables import KINDS, read_table
from analysis.ledger.transmission import THRESHOLD
from analysis.mixture.confusion import recorded, report
from analysis.statistics.estimate import LEVEL
from study.cli import StudyOptions, command, option, output, writes
from study.config.bounds import Number
from study.errors import UserError
from study.system.files import write_json


@dataclass(frozen=True)
class Options(StudyOptions):
    """Options of `analysis.confusion`: a study or a table, and when the judge says yes."""

    study: str = option("name of the study", "")
    table: Path | None = option(f"table, in place of a study: {KINDS}")
    threshold: float = option("score from which the judge says yes", THRESHOLD, Number(0, high=1))
    level: float = option("level of the intervals", LEVEL, Number(above=0, below=1))
    out: Path = output("JSON file for the numbers", required=True)

    def check(self) -> None:
        """Refuse a study and a table together, neither, or a study that is not there."""
        if bool(self.study) == (self.table is not None):
            arguments = "both study= and table=" if self.study else "neither study= nor table="
            raise UserError(
                f"{arguments} were given, but exactly one is needed. Type study=NAME or table=FILE."
            )
        if self.study:
            super().check()


@command("analysis.confusion study=quickstart out=confusion.json", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    if options.table is not None:
        answers, problems = check_judged(read_table(options.table)), []
    else:
        answers = recorded(options.folder)
        problems = answers.attrs["problems"]
    result, lines = report(answers, options.threshold, options.level)
    source = {"study": options.study} if options.study else {"table": str(options.table)}
    chosen = source | {"threshold": options.threshold, "level": options.level}
    with writes("out", options.out):
        write_json(options.out, {"options": chosen, **result, "problems": problems})
    print(with_problems(lines, problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
