"""Reads files of rows, and says file and row of what is wrong with them."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from study.errors import UserError
from study.system.files import LARGEST, first_line

BATCH = 512
"""Parquet rows held in memory at once."""
CHUNK = 4 << 20
"""Bytes of a long JSON file that are read at once."""
POINTER = b"version https://git-lfs"
_SPACE = " \t\r\n"


def records(
    path: Path, columns: Callable[[list[str]], list[str]] = list, key: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(line or row, fields) of each row of a .jsonl, .jsonl.gz or .parquet file.

    ``columns`` chooses among the columns of a Parquet file; ``key`` is the option that named the
    file, for messages.
    Raises UserError: the file cannot be read, or a line is not an object.
    """
    read = _parquet(path, columns) if path.suffix == ".parquet" else _jsonl(path)
    yield from _readable(path, key, "Parquet" if path.suffix == ".parquet" else "UTF-8 JSONL", read)


def elements(path: Path) -> Iterator[tuple[str, Any]]:
    """(row, value) of each element of a file that is one JSON list, a few MB at a time.
    Raises UserError: the file cannot be read, is no list, or ends in the middle of one."""
    yield from _readable(path, "", "UTF-8 JSON", _elements(path))


def document(path: Path) -> Any:
    """The value of a JSON file. Raises UserError: it cannot be read, or is not JSON."""

    def read() -> Iterator[tuple[str, Any]]:
        with opened(path) as file:
            text = file.read().decode("utf-8-sig")
        try:
            yield "", json.loads(text)
        except (ValueError, RecursionError) as error:
            refuse(str(path), f"no whole JSON: {first_line(error)}", "get the file again")

    ((_, value),) = _readable(path, "", "UTF-8 JSON", read())
    return value


def opened(path: Path) -> IO[bytes]:
    """A file open for its bytes, unpacked where its name ends in .gz.
    Raises UserError: it holds a Git LFS pointer in place of the data."""
    with path.open("rb") as file:
        start = file.read(len(POINTER))
    if start == POINTER:
        refuse(
            f"{path}, line 1",
            "a Git LFS pointer in place of the data",
            f"fetch the data: git lfs pull --include={path.name}",
        )
    return gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb")  # type: ignore


def refuse(where: str, problem: str, legal: str) -> NoReturn:
    """Raise the UserError of a row: where it is, what was found there, what is legal."""
    raise UserError(f"{where}: found {problem}. {legal[0].upper()}{legal[1:]}.")


def short(value: Any) -> str:
    """A value as a message repeats it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _readable(
    path: Path, key: str, kind: str, rows: Iterator[tuple[str, Any]]
) -> Iterator[tuple[str, Any]]:
    count = 0
    try:
        for count, row in enumerate(rows, start=1):  # noqa: B007 - said where it breaks
            yield row
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        place = f"{key}={path}" if key else str(path)
        after = f" after row {count}" if count else ""
        raise UserError(f"{place} cannot be read as {kind}{after}: {error}.") from error


def _jsonl(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                remedy = "save the file as UTF-8"
                refuse(where, f"a line that cannot be read as UTF-8 JSONL: {error}", remedy)
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                refuse(where, f"no JSON: {first_line(error)}", "one object per line")
            if not isinstance(record, dict):
                refuse(where, short(record), "one JSON object per line")
            yield f"line {number}", record


def _parquet(
    path: Path, columns: Callable[[list[str]], list[str]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    opened(path).close()
    try:
        with pq.ParquetFile(path) as file:
            selected_columns = columns(file.schema_arrow.names)
            batches = file.iter_batches(batch_size=BATCH, columns=selected_columns)
            rows = (record for batch in batches for record in batch.to_pylist())
            for number, record in enumerate(rows, start=1):
                yield f"row {number}", record
    except pa.ArrowException as error:
        raise OSError(error) from error


def _elements(path: Path) -> Iterator[tuple[str, Any]]:
    decode = json.JSONDecoder().raw_decode
    with opened(path) as file:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        text, place, number, ended, closed = "", 0, 0, False, False
        while True:
            while place < len(text) and text[place] in _SPACE:
                place += 1
            mark = text[place : place + 1]
            problem = ""
            if mark and closed:
                problem = f"{short(text[place : place + 20])} after the end of the list"
            elif mark == "]" and number:
                closed, place = True, place + 1
                continue
            elif mark and mark != ("," if number else "["):
                problem = f"{short(text[place : place + 20])} after {number} rows"
            elif mark:
                start = place + 1
                while start < len(text) and text[start] in _SPACE:
                    start += 1
                if not number and text[start : start + 1] == "]":
                    closed, place = True, start + 1
                    continue
                try:
                    value, end = decode(text, start)
                    # a number may go on behind the end of what has been read
                    whole = end < len(text) or ended
                except (ValueError, RecursionError) as error:
                    whole = False
                    problem = first_line(error) if ended or len(text) - place > LARGEST else ""
                if whole:
                    number += 1
                    yield f"row {number}", value
                    place = end
                    continue
            if ended and closed and not mark:
                return
            if ended and not problem:
                problem = "the end of the file"
            if problem:
                legal = "the file is one JSON list of objects; get it again"
                refuse(f"{path}, row {number + 1}", f"no JSON: {problem}", legal)
            data = file.read(CHUNK)
            ended = not data
            text = text[place:] + decoder.decode(data, final=ended)
            place = 0
