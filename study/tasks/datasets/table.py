"""A prepared folder as one memory-mapped table: rows are read when they are asked for.

The folder holds ``manifest.json``, ``rows.arrow`` (Arrow IPC, sorted by split, dataset and row) and
``test/``. `open_table` reads no row. A table pickles as its path, and a fork shares its pages.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast, overload

import numpy as np
import pyarrow as pa

from study.config.compose import preset_names
from study.errors import UserError
from study.rows import prompt_id
from study.system.files import read_json
from study.truth.item import Item

SPLITS = ("test", "train", "validation")
"""The splits of a prepared folder, in the order of its rows."""
ROWS, MANIFEST = "rows.arrow", "manifest.json"
FORMAT = 1
TOUCHED = 8
"""Rows after which a process lets go of the pages that it has read."""
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("dataset", pa.string()),
        ("domain", pa.string()),
        ("split", pa.string()),
        ("row", pa.int32()),
        ("group_key", pa.string()),
        ("prompt_id", pa.uint64()),
        ("prompt", pa.string()),
        ("question", pa.string()),
        ("context", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("answerable", pa.bool_()),
        ("entry_point", pa.string()),
        ("code_prompt", pa.string()),
        ("tests", pa.string()),
        ("setup", pa.string()),
        ("reference", pa.string()),
        ("alias", pa.string()),
        ("choices", pa.list_(pa.struct([("label", pa.string()), ("text", pa.string())]))),
        ("meta", pa.string()),
    ]
)
"""Columns of ``rows.arrow``. ``split`` is the prepared one, the official one stands in ``id``;
``row`` is the index in the official file; ``prompt_id`` is that of `study.rows` as a number;
``meta`` is a JSON object."""


class File(TypedDict):
    """An official file."""

    name: str
    sha256: str


class Source(TypedDict):
    """What a manifest says of a set before a row is read."""

    domain: str
    licence: str
    origin: str
    revision: str
    files: dict[str, File]
    """By official split."""
    cut_from: str | None
    prompts: dict[str, str]
    """Prompt file -> its SHA-256."""


class Entry(Source):
    """What a manifest says of a set."""

    rows: dict[str, int]
    """Of each split, and those ``read``."""
    left_out: dict[str, int]
    """By reason."""
    groups: int
    without_tests: NotRequired[int]
    without_context: NotRequired[int]


class Tests(TypedDict):
    """A file of test rows in the short form."""

    file: str
    domain: str
    rows: int
    sha256: str


class NearDuplicates(TypedDict):
    """Rows that nearly repeat others: those left out, and groups that were joined."""

    similarity: float
    left_out: int
    joined: int
    examples: list[dict[str, str]]


class RowsFile(TypedDict):
    """The file of all rows."""

    file: str
    n: int
    sha256: str


class Manifest(TypedDict):
    """The manifest of a prepared folder."""

    format: int
    preset: str
    command: str
    """What makes such a folder again; may be empty."""
    cut: list[int]
    validation_share: float
    seed: int
    domains: dict[str, float]
    counts: dict[str, dict[str, int]]
    """Set -> split -> rows."""
    datasets: dict[str, Entry]
    near_duplicates: NearDuplicates
    rows: RowsFile
    test: dict[str, Tests]


class Rows(Sequence[Item]):
    """Rows ``start`` to ``stop`` of a table, read when they are asked for."""

    def __init__(self, table: Table, start: int, stop: int) -> None:
        self.table, self.start, self.stop = table, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, place: int) -> Item: ...
    @overload
    def __getitem__(self, place: slice) -> list[Item]: ...
    def __getitem__(self, place: int | slice) -> Item | list[Item]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self.table.at(self.start + place % len(self))

    def __iter__(self) -> Iterator[Item]:
        return (self.table.at(place) for place in range(self.start, self.stop))


class Table:
    """All rows of a prepared folder; see `open_table`.

    Attributes:
        folder: the prepared folder.
        manifest: its manifest.
        columns: the rows as they are on disk, with the columns of `SCHEMA`.
        counts: split -> dataset -> rows.
        domains: dataset -> domain.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.counts: dict[str, dict[str, int]] = {split: {} for split in SPLITS}
        self.domains: dict[str, str] = {}
        self._starts: dict[tuple[str, str], int] = {}
        total = 0
        for split in SPLITS:
            for name, entry in sorted(self.manifest["datasets"].items()):
                self.domains[name] = entry["domain"]
                if entry["rows"][split]:
                    self.counts[split][name] = entry["rows"][split]
                    self._starts[split, name] = total
                    total += entry["rows"][split]
        self._read = 0
        try:
            with (folder / ROWS).open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.columns = pa.ipc.open_file(pa.py_buffer(self._map)).read_all()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise UserError(f"{folder / ROWS} is not whole: {error}. {again(folder)}") from error
        if self.columns.schema != SCHEMA or len(self.columns) != total:
            raise UserError(
                f"{folder / ROWS} holds {len(self.columns)} rows, and {MANIFEST} says {total}"
                f" rows, or its columns differ. {again(folder)}"
            )

    def __len__(self) -> int:
        return len(self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_table, (self.folder,)

    def rows(self, split: str, dataset: str) -> Rows:
        """The rows of one dataset in one split, in official order; none where it has none."""
        start = self._starts.get((split, dataset), 0)
        return Rows(self, start, start + self.counts[split].get(dataset, 0))

    def at(self, place: int) -> Item:
        """The row at a place of the whole table, from 0 to ``len(table) - 1``."""
        item = _item(self.columns.slice(place, 1).to_pylist()[0])
        self._read += 1
        if not self._read % TOUCHED:
            # pages stay in the system's cache, and are no longer counted as this process's
            self._map.madvise(mmap.MADV_DONTNEED)
        return item

    def split_of(self, place: int) -> str:
        """The split of the row at a place: test, train or validation."""
        return self.columns["split"][place].as_py()

    def place(self, name: str) -> int | None:
        """Place of the row with this id, or with this id of its set's own; None where there is
        none. An id of its own that a train row repeats is the test row's."""
        dataset, _, rest = name.partition(":")
        _, _, number = rest.partition(":")
        if dataset in self.domains and number.isascii() and number.isdecimal() and len(number) < 10:
            for split in SPLITS:
                rows = self.rows(split, dataset)
                block = self._row[rows.start : rows.stop]
                place = rows.start + int(np.searchsorted(block, int(number)))
                if place < rows.stop and self.columns["id"][place].as_py() == name:
                    return place
        return self._aliases.get(name)

    def by_id(self, name: str) -> Item | None:
        """The row with this id, or with this id of its set's own; None where there is none."""
        place = self.place(name)
        return None if place is None else self.at(place)

    def place_of_prompt(self, address: str) -> int | None:
        """Place of the first row whose prompt has this `study.rows.prompt_id`; None where none
        has."""
        sought = np.uint64(int(address, 16))
        order, addresses = self._prompts
        rank = int(np.searchsorted(addresses, sought))
        if rank == len(addresses) or addresses[rank] != sought:
            return None
        return int(order[rank])

    @functools.cached_property
    def _row(self) -> np.ndarray:
        return self.columns["row"].to_numpy()

    @functools.cached_property
    def _prompts(self) -> tuple[np.ndarray, np.ndarray]:
        addresses = self.columns["prompt_id"].to_numpy()
        order = np.argsort(addresses, kind="stable")
        return order.astype(np.int32), addresses[order]

    @functools.cached_property
    def _aliases(self) -> dict[str, int]:
        names = self.columns["alias"].to_pylist()
        places = range(len(names) - 1, -1, -1)  # test rows come first, and have the last word
        return {names[place]: place for place in places if names[place]}


def open_table(folder: str | Path) -> Table:
    """The table of a prepared folder.
    Raises UserError: no prepared folder, one of another format, or one that is not whole."""
    path = Path(folder).absolute()
    stat = (path / ROWS).stat() if (path / ROWS).is_file() else None
    return _opened(path, (stat.st_ino, stat.st_mtime_ns, stat.st_size) if stat else ())


@functools.lru_cache(maxsize=4)
def _opened(path: Path, _: tuple[int, ...]) -> Table:
    try:
        return Table(path)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path / MANIFEST} is not whole ({error!r} is missing or of another kind)."
            f" {again(path)}"
        ) from error


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder. Raises UserError: see `open_table`."""
    manifest = read_json(folder / MANIFEST)
    if not manifest or not (folder / ROWS).is_file():
        raise UserError(
            f"{folder} is not a prepared folder with {MANIFEST} and {ROWS}. {again(folder)}"
        )
    if manifest.get("format") != FORMAT:
        raise UserError(
            f"{folder} was prepared in format {manifest.get('format')}, but this version reads"
            f" format {FORMAT}. {again(folder)}"
        )
    return cast(Manifest, manifest)


def batch(items: Sequence[Item]) -> pa.RecordBatch:
    """Items as columns; ``split`` is still the official one."""
    columns = {
        name: [getattr(item, name) for item in items]
        for name in SCHEMA.names
        if name not in ("row", "prompt_id", "choices", "meta")
    }
    columns["row"] = [int(item.id.rpartition(":")[2]) for item in items]
    columns["prompt_id"] = [int(prompt_id(item.prompt), 16) for item in items]
    columns["choices"] = [
        [{"label": label, "text": text} for label, text in item.choices] for item in items
    ]
    columns["meta"] = [json.dumps(item.meta, ensure_ascii=False) for item in items]
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA
    )


def _item(record: Mapping[str, Any]) -> Item:
    fields = {key: value for key, value in record.items() if key not in ("row", "prompt_id")}
    fields["split"] = record["id"].split(":", 2)[1]
    fields["answers"] = tuple(record["answers"])
    fields["choices"] = tuple((choice["label"], choice["text"]) for choice in record["choices"])
    fields["meta"] = json.loads(record["meta"])
    return Item(**fields)


def again(folder: Path, root: Path | None = None) -> str:
    """The command that makes a prepared folder again: the one that its manifest has, else
    that of the preset whose name it bears. ``root`` is the data folder, where that is told."""
    command = None
    with contextlib.suppress(UserError):
        command = read_json(folder / MANIFEST).get("command")
    if not command or not isinstance(command, str):
        name = folder.name if folder.name in preset_names("data") else "PRESET"
        command = f"python -m experiments.data prepare data={name}"
    if root:
        command = command.replace("data.root=DIR", shlex.quote(f"data.root={root}"))
    presets = f" (PRESET: {', '.join(preset_names('data'))})" if "PRESET" in command else ""
    return f"Type: {command} {shlex.quote(f'out={folder}')}{presets}"
