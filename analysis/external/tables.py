"""Tables that a user brings: CSV, JSON lines, a JSON array or Parquet, checked cell by cell.

A blank cell is missing. Every other cell is what its column asks for, or a `UserError` that names
the file, the row (the first one under the header is row 1) and the column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.cli import option, word, writes
from study.errors import UserError
from study.system.files import write_json

Columns = Mapping[str, Callable[[pd.DataFrame, str], pd.Series]]
KINDS = ".csv, .jsonl, .json (an array of objects) or .parquet"


@dataclass(frozen=True)
class TableOptions:
    """Options of every command that reads one table."""

    file: Path = word(f"the table: {KINDS}")
    out: Path = option("JSON file for the numbers", required=True)

    def write(self, numbers: dict[str, Any]) -> None:
        """Put the numbers into ``out``."""
        with writes("out", self.out):
            write_json(self.out, numbers)


def read_table(path: Path) -> pd.DataFrame:
    """The table in a file, index 0..rows-1; CSV cells stay text, so that an item ``01`` stays it.

    ``frame.attrs["path"]`` names the file for later errors. Raises UserError: no such file, an
    unknown kind of file, or a damaged one.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file. Name a table: {KINDS}.")
    if path.suffix not in _READERS:
        raise UserError(f"{path} is of an unknown kind. Legal are {KINDS}.")
    try:
        frame = _READERS[path.suffix](path)
    # pandas and pyarrow raise subclasses of these three for whatever is wrong with a file
    except (ValueError, OSError, KeyError) as error:
        raise UserError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
    if path.suffix == ".csv" and not isinstance(frame.index, pd.RangeIndex):
        raise UserError(f"{path}: its rows have more cells than its header has columns.")
    frame = frame.reset_index(drop=True)
    frame.columns = [str(name).strip() for name in frame.columns]
    if frame.columns.has_duplicates:
        doubled = sorted(set(frame.columns[frame.columns.duplicated()]))
        raise UserError(f"{path} has two columns named {', '.join(doubled)}. Keep one of them.")
    frame.attrs["path"] = str(path)
    return frame


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file or of a JSON array; blank lines are skipped. Raises
    UserError: no such file, or a line or record that is not a JSON object."""
    if not path.is_file():
        raise UserError(f"{path} is not a file. Name one of JSON lines or a JSON array.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        whole = json.loads(text) if text.lstrip().startswith("[") else None
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    records = {f"record {place}": record for place, record in enumerate(whole or [], start=1)}
    lines = enumerate(text.split("\n") if whole is None else [], start=1)
    for number, line in ((number, line) for number, line in lines if line.strip()):
        try:
            records[f"line {number}"] = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON: {error}") from error
    for place, record in records.items():
        if not isinstance(record, dict):
            raise UserError(f"{path}, {place} is not a JSON object. Write one object a line.")
    return list(records.values())


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": partial(pd.read_csv, dtype=str, keep_default_na=False),
    ".jsonl": lambda path: pd.DataFrame(read_records(path)),
    ".json": lambda path: pd.DataFrame(read_records(path)),
    ".parquet": pd.read_parquet,
}


def require(frame: pd.DataFrame, columns: Sequence[str], meaning: str) -> None:
    """Raise UserError where a column is missing or there is no row.

    ``meaning``: What the table is for, with its legal columns, as a sentence for the user.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        present = ", ".join(map(str, frame.columns)) or "none"
        raise UserError(
            f"{named(frame)} has no column {', '.join(missing)}; its columns are {present}."
            f" {meaning}"
        )
    if frame.empty:
        raise UserError(f"{named(frame)} has no rows. {meaning}")


def checked(frame: pd.DataFrame, columns: Columns, meaning: str) -> pd.DataFrame:
    """The columns of a table, each read by its reader: `texts`, `choices`, `numbers` or the like.
    Raises UserError: as `require`, or a cell that is not legal."""
    require(frame, list(columns), meaning)
    return pd.DataFrame({name: read(frame, name) for name, read in columns.items()})


def refuse(frame: pd.DataFrame, column: str, bad: Any, legal: str) -> None:
    """Raise UserError for the first cell of a column that is bad, a mask of shape (rows,)."""
    if np.any(bad):
        row = int(np.argmax(bad))
        cell = frame[column].tolist()[row]
        shown = repr(cell) if _text(cell) else "a blank cell"
        raise UserError(
            f"{named(frame)}, row {row + 1}, column {column} holds {shown}. Legal: {legal}."
        )


def texts(frame: pd.DataFrame, column: str, blank: bool = False) -> pd.Series:
    """A column as text without outer blanks, dtype str; a blank cell is "", if allowed."""
    values = pd.Series([_text(value) for value in frame[column]], frame.index, dtype="str")
    refuse(frame, column, values.eq("") & (not blank), "some text")
    return values


def choices(frame: pd.DataFrame, column: str, legal: Sequence[str]) -> pd.Series:
    """A column of words out of ``legal``, in small letters; list ``""`` in it if blanks are."""
    values = texts(frame, column, blank=True).str.lower()
    words = " | ".join(word or "(blank)" for word in legal)
    refuse(frame, column, ~values.isin(list(legal)), words)
    return values


def numbers(frame: pd.DataFrame, column: str) -> pd.Series:
    """A column of finite numbers, dtype float64; a blank cell, null or NaN is NaN.

    ``true`` and ``false`` of JSON and Parquet are 1 and 0.
    """
    values = pd.Series([_number(value) for value in frame[column]], frame.index, dtype=float)
    refuse(frame, column, np.isinf(values), "a finite number")
    return values


def whole_numbers(frame: pd.DataFrame, column: str) -> pd.Series:
    """A column of whole numbers without blanks, dtype int64."""
    values = numbers(frame, column)
    refuse(frame, column, values != values.round(), "a whole number")
    return values.astype("int64")


def no_duplicates(frame: pd.DataFrame, table: pd.DataFrame, keys: list[str]) -> None:
    """Raise UserError for the first row of ``table`` (read from ``frame``) whose keys came before.
    Raises UserError: naming both rows and the keys' values."""
    again = table.duplicated(keys)
    if not again.any():
        return
    row = int(again.to_numpy().argmax())
    same = (table[keys] == table[keys].iloc[row]).all(axis=1)
    first = int(same.to_numpy().argmax())
    values = ", ".join(f"{key} {table[key].iloc[row]!r}" for key in keys)
    raise UserError(
        f"{named(frame)}, row {row + 1} repeats {values} of row {first + 1}."
        " Each row must be unique: keep one of them, or make them differ in these columns."
    )


def one_each(
    frame: pd.DataFrame, table: pd.DataFrame, key: str, column: str, remedy: str = "Give it one."
) -> None:
    """Raise UserError where one ``key`` of ``table`` has several values of ``column``."""
    several = table.groupby(key)[column].nunique().loc[lambda count: count > 1]
    if len(several):
        name = several.index[0]
        values = sorted(set(table.loc[table[key] == name, column]))
        raise UserError(
            f"{named(frame)}: {key} {name!r} has more than one {column}: "
            f"{', '.join(value or '(blank)' for value in values)}. {remedy}"
        )


def named(frame: pd.DataFrame) -> str:
    """The file that a table was read from."""
    return str(frame.attrs.get("path", "The table"))


def _text(value: Any) -> str:
    """A cell as text; null and NaN are blank, 3.0 of a whole-number column with blanks is 3."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _number(value: Any) -> float:
    """A cell as a number, NaN where it is blank, infinite where it is not a number."""
    if _text(value) in ("", "nan", "NaN"):
        return np.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        return np.inf
    return number if np.isfinite(number) else np.inf
