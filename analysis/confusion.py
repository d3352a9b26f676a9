"""A judge against the truth, by domain: ``study=NAME`` reads records, ``table=FILE`` a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from analysis.display.printed import with_problems
from analysis.external import tables
from analysis.external.tables import KINDS, read_table
from analysis.ledger.transmission import THRESHOLD
from analysis.mixture.confusion import recorded, report
from analysis.statistics.estimate import LEVEL
from study.cli import StudyOptions, command, option, output, writes
from study.config.bounds import Number
from study.errors import UserError
from study.system.files import write_json

_WORDS = {"true": 1.0, "false": 0.0}


def _numbers(frame: pd.DataFrame, column: str) -> pd.Series:
    """As `tables.numbers`, and true and false as texts too."""
    cells = [_WORDS.get(str(cell).strip().lower(), cell) for cell in frame[column]]
    with_numbers = frame.assign(**{column: pd.Series(cells, frame.index, dtype=object)})
    return tables.numbers(with_numbers, column)


def _judge(frame: pd.DataFrame, column: str) -> pd.Series:
    values = _numbers(frame, column)
    tables.refuse(frame, column, values > 1, "a number of at most 1, true, false, or a blank")
    return values


def _truth(frame: pd.DataFrame, column: str) -> pd.Series:
    values = _numbers(frame, column)
    outside = (values < 0) | (values > 1)
    tables.refuse(frame, column, outside, "a number from 0 to 1, true, false, or a blank")
    return values


COLUMNS = {
    "item": tables.texts,
    "domain": partial(tables.texts, blank=True),
    "judge": _judge,
    "truth": _truth,
}
MEANING = (
    f"A table of judged answers has the columns {', '.join(COLUMNS)}: one row per answer; judge is"
    " the judge's score of it (1 is best) and truth is 0 or 1; a blank is missing."
)


def check_judged(frame: pd.DataFrame) -> pd.DataFrame:
    """The checked table: item str, domain str ("" if none), judge and truth float64.

    An item belongs to its domain: 7 of math and 7 of code are two items. Raises UserError: a
    missing column, no row, or a cell that is not legal.
    """
    table = tables.checked(frame, COLUMNS, MEANING)
    table["item"] = table.groupby(["domain", "item"], sort=False).ngroup()
    return table


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
