"""Plain tables that a user brings: CSV, JSON lines, a JSON array or Parquet, checked cell by cell.

Nothing is guessed: a blank cell is missing, every other cell is what the column asks for or an
error that names the file, the row (the first one under the header is row 1) and the column.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.cli import option, word
from study.errors import UserError

KINDS = ".csv, .jsonl, .json (an array of objects) or .parquet"


@dataclass(frozen=True)
class TableOptions:
    """Options of every command that reads one table."""

    file: Path = word(f"the table: {KINDS}")
    out: Path = option("JSON file for the numbers", required=True)


def read_table(path: Path) -> pd.DataFrame:
    """The table in a file, index 0..rows-1; CSV cells stay text, so that an item ``01`` stays it.

    ``frame.attrs["path"]`` names the file, for the errors of `column_of` and its like.

    Raises:
        UserError: no such file, a kind that is not read, or a file that is damaged.
    """
    if not path.is_file():
        raise UserError(f"{path} is no file. Name a table: {KINDS}.")
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix == ".csv":
            frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        elif path.suffix in (".jsonl", ".json"):
            frame = pd.DataFrame(read_records(path))
        else:
            raise UserError(f"{path} is of a kind that is not read. Legal are {KINDS}.")
    # pandas and pyarrow raise subclasses of these three for whatever is wrong with a file
    except (ValueError, OSError, KeyError) as error:
        raise UserError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
    if path.suffix == ".csv" and not isinstance(frame.index, pd.RangeIndex):
        raise UserError(f"{path}: its rows have more cells than its header has columns.")
    frame = frame.reset_index(drop=True)
    frame.columns = [str(name).strip() for name in frame.columns]
    doubled = sorted({name for name in frame.columns if list(frame.columns).count(name) > 1})
    if doubled:
        raise UserError(f"{path} has two columns named {', '.join(doubled)}. Keep one of them.")
    frame.attrs["path"] = str(path)
    return frame


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file or of a JSON array; blank lines are skipped.

    Raises:
        UserError: no such file, or something in it that is no JSON object, with its line.
    """
    if not path.is_file():
        raise UserError(f"{path} is no file. Name one of JSON lines or a JSON array.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        whole = json.loads(text) if text.lstrip().startswith("[") else None
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    if whole is not None:
        places = [(f"record {place}", record) for place, record in enumerate(whole, start=1)]
    else:
        places = []
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    places.append((f"line {number}", json.loads(line)))
                except ValueError as error:
                    raise UserError(f"{path}, line {number} is no JSON: {error}") from error
    for place, record in places:
        if not isinstance(record, dict):
            raise UserError(f"{path}, {place} is no JSON object. Write one object a line.")
    return [record for _, record in places]


def require(frame: pd.DataFrame, columns: Sequence[str], meaning: str) -> None:
    """Raise UserError, naming the file and the columns, where one is missing or no row is there.

    Args:
        meaning: What the table is for, with its legal columns, as a sentence for the user.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        there = ", ".join(map(str, frame.columns)) or "none"
        raise UserError(
            f"{_path(frame)} has no column {', '.join(missing)}; its columns are {there}. {meaning}"
        )
    if frame.empty:
        raise UserError(f"{_path(frame)} has no rows. {meaning}")


def texts(frame: pd.DataFrame, column: str, default: str | None = None) -> pd.Series:
    """A column as text without outer blanks, dtype str.

    Args:
        default: What a blank cell becomes; None makes it an error.
    """
    values = [_text(value) for value in frame[column].tolist()]
    blank = [place for place, value in enumerate(values) if value == ""]
    if blank and default is None:
        raise _wrong(frame, blank[0], column, "a blank cell", "some text")
    return pd.Series([value or str(default or "") for value in values], frame.index, dtype="str")


def choices(frame: pd.DataFrame, column: str, legal: Sequence[str]) -> pd.Series:
    """A column of words out of ``legal``, in small letters; list ``""`` in it if blanks are."""
    found = texts(frame, column, default="").str.lower()
    bad = ~found.isin(list(legal))
    if bad.any():
        place = int(bad.to_numpy().argmax())
        words = " | ".join(word or "(blank)" for word in legal)
        raise _wrong(frame, place, column, repr(frame[column].iloc[place]), words)
    return found


def numbers(frame: pd.DataFrame, column: str, blank: bool = True) -> pd.Series:
    """A column of finite numbers, dtype float64; a blank cell, null or NaN is NaN if allowed.

    ``true`` and ``false`` of JSON and Parquet are 1 and 0.
    """
    values = np.full(len(frame), np.nan)
    for place, value in enumerate(frame[column].tolist()):
        text = _text(value)
        if text in ("", "nan", "NaN"):
            if not blank:
                raise _wrong(frame, place, column, "a blank cell", "a number")
            continue
        try:
            values[place] = float(value)
        except (TypeError, ValueError):
            raise _wrong(frame, place, column, repr(value), "a finite number") from None
        if not np.isfinite(values[place]):
            raise _wrong(frame, place, column, repr(value), "a finite number")
    return pd.Series(values, frame.index)


def whole_numbers(frame: pd.DataFrame, column: str) -> pd.Series:
    """A column of whole numbers without blanks, dtype int64."""
    found = numbers(frame, column, blank=False)
    bad = found != found.round()
    if bad.any():
        place = int(bad.to_numpy().argmax())
        raise _wrong(frame, place, column, repr(frame[column].iloc[place]), "a whole number")
    return found.astype("int64")


def no_duplicates(frame: pd.DataFrame, table: pd.DataFrame, keys: Sequence[str]) -> None:
    """Raise UserError for the first row of ``table`` (read from ``frame``) whose keys came before.

    Raises:
        UserError: naming both rows and the keys' values.
    """
    again = table.duplicated(list(keys))
    if not again.any():
        return
    place = int(again.to_numpy().argmax())
    same = (table[list(keys)] == table[list(keys)].iloc[place]).all(axis=1)
    first = int(same.to_numpy().argmax())
    named = ", ".join(f"{key} {table[key].iloc[place]!r}" for key in keys)
    raise UserError(
        f"{_path(frame)}, row {place + 1} repeats {named} of row {first + 1}. Each may stand once: "
        "keep one of the rows, or tell them apart in the columns named."
    )


def _wrong(frame: pd.DataFrame, place: int, column: str, given: str, legal: str) -> UserError:
    return UserError(
        f"{_path(frame)}, row {place + 1}, column {column} holds {given}. Legal: {legal}."
    )


def _path(frame: pd.DataFrame) -> str:
    return str(frame.attrs.get("path", "The table"))


def _text(value: Any) -> str:
    """A cell as text; null and NaN are blank, 3.0 of a whole-number column with blanks is 3."""
    if value is None or value != value or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
