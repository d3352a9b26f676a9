"""Tables of judged answers: what the judge said of each, beside the truth."""

from __future__ import annotations

from functools import partial

import pandas as pd

from analysis.external import tables

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
