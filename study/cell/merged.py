"""Makes one Parquet file of the parts of a kind when a run has ended, and parts of it again.

The file is written under a temporary name, read back and compared with the parts, renamed, and only
then are the parts taken away. Whenever that is cut, `study.cell.parts` reads the same rows: a step
that has a part and stands in a merged file too is read once. What cannot be merged stays in parts.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from study.cell.folder import CellFolder
from study.cell.parts import (
    INDEX,
    Part,
    is_signed,
    merged_files,
    merged_name,
    opened,
    parts,
    read_part,
    span_of,
)
from study.cell.records import (
    CALLS,
    EVALUATIONS,
    KINDS,
    part_name,
    step_of,
    where,
    write_rows,
)
from study.cell.signature import Hashed
from study.system.files import Damaged, first_line, say, sync_files, writing

STEPS, ROWS, BYTES = 16, 8192, 64 << 20
"""A row group takes no more steps once it has so many of them, so many rows, or so many bytes that
are not compressed: whoever wants a step reads its group."""
UNIQUE = ("rollout_id", "completion", "answer", "text", "reasoning", "keys")
"""Columns in which hardly a value comes twice: a dictionary of them only costs time."""
HELD = 16 << 20
"""Bytes of parts up to which they are read once and held in memory."""


class MergeMismatch(Exception):
    """Merged rows differ from the parts."""


def merge_cell(cell: CellFolder, noted: Callable[[list[Path], Path], None] | None = None) -> int:
    """Merge all kinds of a run that has ended; returns how many files were made. See `merge`."""
    return sum(merge(folder, noted) is not None for folder in kinds(cell))


def kinds(cell: CellFolder) -> list[Path]:
    """The folders of a cell whose parts are merged: those of its steps and of its evaluations."""
    places = [base / kind for base in (cell.path, cell / EVALUATIONS) for kind in (*KINDS, CALLS)]
    return [place for place in places if place.is_dir()]


def merge(folder: Path, noted: Callable[[list[Path], Path], None] | None = None) -> Path | None:
    """Make one file of all steps on record in ``folder``; parts that are damaged stay as they are.

    Args:
        noted: gets the files that go away, and the one that replaces them, while all of
            them are there.

    Returns:
        The merged file; None where nothing was to be merged or could be.
    """
    old = merged_files(folder)
    for path in folder.glob(".steps-*"):  # what a kill left half-written
        path.unlink()
    files = [*old, *(path for path in folder.glob("step-*") if step_of(path) is not None)]
    if len(files) < 2 or any(opened(path).damage for path in old):
        return None
    small = sum(path.lstat().st_size for path in files) < HELD
    read = functools.cache(read_part) if small else read_part
    steps, schemas = [], []
    for part in parts(folder):
        try:
            schemas.append(read(part).schema)
            steps.append(part)
        except Damaged:  # who reads it says so
            if part.merged is not None:
                return None
    replaced = {part.path for part in steps} | set(old)
    if len(replaced) < 2:
        return None
    target = folder / merged_name(steps[0].step, steps[-1].step)
    newest = max(path.stat().st_mtime_ns for path in replaced)

    def check(path: Path) -> None:
        _compare(path, steps, read)
        os.utime(path, ns=(newest, newest))

    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive").remove_metadata()
        with writing(target, check=check) as file:
            _write(Hashed(file), target, schema, steps, read)
    except (pa.ArrowException, Damaged, MergeMismatch) as error:
        say(f"{where(folder)} stays in parts: {first_line(error)}.")
        return None
    obsolete = sorted(replaced - {target})
    if noted is not None:
        noted(obsolete, target)
    for path in obsolete:
        path.unlink()
    sync_files([folder])
    return target


class RowGroup(TypedDict):
    """A row group in the index of a merged file."""

    columns: int
    """Place among the lists of columns."""
    steps: list[list[int]]
    """Step and number of rows of each."""


def _write(
    file: Hashed,
    target: Path,
    schema: pa.Schema,
    steps: Sequence[Part],
    read: Callable[[Part], pa.Table],
) -> None:
    """Write the steps in row groups, the index of both, and whose they are."""
    columns: list[list[str]] = []
    groups: list[RowGroup] = []
    repeated = [name for name in schema.names if name not in UNIQUE]
    options = {"compression": "zstd", "write_page_checksum": True, "write_statistics": ["step"]}
    with pq.ParquetWriter(file, schema, use_dictionary=repeated, **options) as writer:
        for group in _groups(steps, read):
            names = group[0][1].column_names
            if names not in columns:
                columns.append(names)
            rows = pa.concat_tables([_widened(table, schema) for _, table in group])
            writer.write_table(rows, row_group_size=max(1, rows.num_rows))
            file.ends_group()
            counts = [[part.step, table.num_rows] for part, table in group]
            groups.append({"columns": columns.index(names), "steps": counts})
        index = json.dumps({"columns": columns, "groups": groups}, separators=(",", ":"))
        rows = sum(count for group in groups for _, count in group["steps"])
        span, whole = (steps[0].step, steps[-1].step), all(map(is_signed, steps))
        signature = file.signed(target, span, rows, whole)
        writer.add_key_value_metadata({INDEX.decode(): index} | signature)
    file.finish()


def _groups(
    steps: Sequence[Part], read: Callable[[Part], pa.Table]
) -> Iterator[list[tuple[Part, pa.Table]]]:
    """The steps of each row group: whole ones, of the same columns."""
    group: list[tuple[Part, pa.Table]] = []
    for part in steps:
        table = read(part)
        rows = sum(each.num_rows for _, each in group)
        size = sum(each.nbytes for _, each in group)
        full = len(group) == STEPS or rows >= ROWS or size >= BYTES
        if group and (full or group[0][1].column_names != table.column_names):
            yield group
            group = []
        group.append((part, table))
    yield group


def _widened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with all columns of ``schema``, those that it lacks without values."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _compare(path: Path, steps: Sequence[Part], read: Callable[[Part], pa.Table]) -> None:
    """Raises MergeMismatch: what stands in the merged file are not the rows of these steps.
    Raises Damaged: it cannot be read."""
    merged = opened(path)
    if merged.damage is not None:
        raise merged.damage
    there = {step: group for group in merged.groups for step in group.steps}
    if list(there) != [part.step for part in steps]:
        raise MergeMismatch("the merged file has other steps")
    for part in steps:
        if not _same(read_part(Part(path, part.step, merged, there[part.step])), read(part)):
            raise MergeMismatch(f"step {part.step} does not read back as it was written")


def _same(merged: pa.Table, part: pa.Table) -> bool:
    """Whether two tables hold the same; a NaN equals itself, unlike for Arrow."""
    if merged.schema.remove_metadata() != part.schema.remove_metadata():
        return False
    pairs = zip(merged.columns, part.columns, strict=True)
    return merged.num_rows == part.num_rows and all(_bits(a).equals(_bits(b)) for a, b in pairs)


def _bits(column: pa.ChunkedArray) -> pa.Array:
    whole = pa.concat_arrays(column.chunks) if column.chunks else pa.array([], column.type)
    return whole.view(pa.int64()) if column.type == pa.float64() else whole


def reopen(cell: CellFolder, after_step: int) -> None:
    """Make a run that has ended one whose last step is ``after_step``: what is merged of later
    steps becomes parts again, as far as it is kept."""
    for folder in kinds(cell):
        for path in merged_files(folder):
            _, last = span_of(path) or (0, 0)
            if last > after_step:
                split(path, after_step)


def split(path: Path, last: int | None = None) -> None:
    """Make parts of a merged file, of the steps up to ``last``; all where that is left out. A file
    that is damaged is kept beside them, and its sound steps become parts."""
    merged = opened(path)
    damage = merged.damage
    for group in merged.groups:
        for step in group.steps:
            part = path.with_name(part_name(step))
            if part.exists() or (last is not None and step > last):
                continue
            try:
                before = Part(path, step, merged, group)
                write_rows(part, read_part(before), whole=is_signed(before))
            except Damaged as error:
                damage = error
    if damage is None:
        path.unlink()
    else:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        say(f"{where(path)} is damaged: it {damage.why}; it is kept as {aside.name}.")
    sync_files([path.parent])
