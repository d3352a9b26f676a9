"""Reads the Parquet records of a cell, whatever their layout: a part per step, or one merged file.

A run writes a part per step (`study.cell.records`); when it has ended, `study.cell.merged` makes
one file of all parts of a kind. A merged file is named ``steps-FIRST-LAST.parquet``. Each of its
row groups holds one or a few whole steps, and its footer says which (`INDEX`). Where a step has a
part and stands in a merged file too, the part is read: it is what was written last, or else the
same.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from study.cell.impossible import impossible, lacking
from study.cell.records import (
    CALL,
    COMPONENT,
    FEATURE,
    OPTIONAL,
    ROLLOUT,
    VERDICT,
    part_name,
    schema_of,
    step_of,
    where,
)
from study.cell.signature import Contents, contradiction, read_signature
from study.system.files import Damaged, first_line

INDEX = b"judgedrift.steps"
"""Key of a merged file's footer: ``{"columns": [[name]], "groups": [{"columns": place among the
columns, "steps": [[step, rows]]}]}``."""
BATCH = 256 << 20
"""Bytes of records, uncompressed, that `read_all` reads at once from a merged file."""


@dataclass(frozen=True)
class Group:
    """A row group of a merged file."""

    number: int
    steps: dict[int, int]
    """Step -> how many rows it has, in the order of the rows."""
    columns: tuple[str, ...]
    """What the parts of these steps had; the file has the columns of all parts."""
    size: int
    """Bytes, uncompressed."""


@dataclass(frozen=True, eq=False)
class Merged:
    """A merged file whose footer was read; no groups where it is ``damage``."""

    path: Path
    footer: Any = None
    groups: tuple[Group, ...] = ()
    damage: Damaged | None = None
    last: dict[tuple[str, ...] | None, tuple[Group, pa.Table]] = field(default_factory=dict)
    """Columns -> the row group that was read last of them, for the next of its steps."""


@dataclass(frozen=True)
class Part:
    """The rows of one step of a kind: a file of their own, or some of a merged file."""

    path: Path
    step: int
    merged: Merged | None = field(default=None, compare=False)
    group: Group | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return str(self.path) + (f", step {self.step}" if self.merged else "")


def span_of(path: Path) -> tuple[int, int] | None:
    """First and last step in the name of a merged file; None for any other name."""
    match = re.fullmatch(r"steps-(\d{6,12})-(\d{6,12})\.parquet", path.name)
    span = (int(match[1]), int(match[2])) if match else None
    return span if span is not None and path.name == merged_name(*span) else None


def merged_name(first: int, last: int) -> str:
    """File name of the merged records of some steps."""
    return f"steps-{first:06d}-{last:06d}.parquet"


def merged_files(folder: Path) -> list[Path]:
    """The merged files in ``folder``, the one of most steps last."""
    spans = {path: span for path in folder.glob("steps-*") if (span := span_of(path)) is not None}
    return sorted(spans, key=lambda path: (spans[path][1] - spans[path][0], path.name))


def parts(folder: Path) -> list[Part]:
    """The steps of a kind that are on record in ``folder``, in order. Files of other names, such as
    copies, are left out. A merged file that cannot be read at all stands as one step that it should
    hold; reading that raises Damaged."""
    paths = ((step_of(path), path) for path in folder.glob("step-*"))
    alone = {step: Part(path, step) for step, path in paths if step is not None}
    # looked for after the parts: those that are taken away from now on are in a merged file
    together: dict[int, Part] = {}
    damaged = []
    for path in merged_files(folder):
        if (merged := opened(path)).damage is not None:
            damaged.append(merged)
        for group in merged.groups:
            together |= {step: Part(path, step, merged, group) for step in group.steps}
    there = together | alone
    for merged in damaged:
        first, last = span_of(merged.path) or (0, 0)
        step = next((step for step in range(first, last + 1) if step not in there), None)
        if step is not None:
            there[step] = Part(merged.path, step, merged)
    return [there[step] for step in sorted(there)]


def opened(path: Path) -> Merged:
    """A merged file and what its footer says of its steps."""
    try:
        if not path.is_file():
            raise Damaged(path, "is not a regular file", _REMEDY)
        footer = pq.read_metadata(path)
        index = json.loads((footer.metadata or {})[INDEX])
        columns = [tuple(map(str, names)) for names in index["columns"]]
        groups = []
        for number, entry in enumerate(index["groups"]):
            steps = {int(step): int(rows) for step, rows in entry["steps"]}
            size = footer.row_group(number).total_byte_size
            groups.append(Group(number, steps, columns[entry["columns"]], size))
        rows = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        if rows != [sum(group.steps.values()) for group in groups]:
            raise Damaged(path, "does not hold the rows that its footer names", _REMEDY)
        signature = read_signature(footer.metadata)
        if span := span_of(path):
            why = contradiction(path, signature, span, footer.num_rows) if signature else ""
            if why := why or Contents.of(path).altered(footer, ()):
                raise Damaged(path, why, _REMEDY)
    except Damaged as error:
        return Merged(path, damage=error)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = f"cannot be read ({first_line(error)})"
        return Merged(path, damage=Damaged(path, why, _REMEDY))
    return Merged(path, footer, tuple(groups))


def at_step(folder: Path, step: int) -> Part:
    """A step on record in ``folder``; one that is not there can be asked for and not read."""
    there = (part for part in parts(folder) if part.step == step)
    return next(there, Part(folder / part_name(step), step))


def left_out(damage: Damaged) -> str:
    """The message to a reader who continues without rows that cannot be read."""
    return f"{where(damage.path)} is left out{damage.at}: it {damage.why}"


def read_part(part: Part | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a step, or the named columns that they have, in their types; a name that ends
    with a slash stands for all columns that begin with it. A path is that of a part.
    Raises Damaged: no Parquet, pages that are not as they were written, columns of another kind
    (numbers for texts, truth values for numbers), or another step's rows."""
    if isinstance(part, Path):
        part = Part(part, step_of(part) or 0)
    if part.merged is not None:
        if part.group is None:
            assert part.merged.damage is not None
            raise part.merged.damage
        names = None if columns is None else tuple(columns)
        group, table = part.merged.last.get(names, (None, None))
        if group is not part.group:
            table = _read_groups(part.merged, [part.group], columns)
            part.merged.last[names] = part.group, table
        return _rows_of(table, [part.group], {part.step})
    path = part.path
    try:
        if not path.is_file():
            instead = () if path.exists() or path.is_symlink() else parts(path.parent)
            for other in instead:
                if other.step == part.step and other.merged is not None:
                    return read_part(other, columns)
            raise Damaged(path, "is not a regular file", _part_remedy(path))
        contents = Contents.of(path)
        data = contents.unread()
        source = path if data is None else pa.BufferReader(data)
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            if why := unlike(path, file.metadata) or _not_as_signed(contents, file.metadata, data):
                raise Damaged(path, why, _part_remedy(path))
            table = file.read(_chosen(file.schema_arrow.names, columns))
        return _checked(path, file.metadata, table, _part_remedy(path))
    except (OSError, ValueError, LookupError, pa.ArrowException) as error:
        raise Damaged(path, f"cannot be read ({first_line(error)})", _part_remedy(path)) from error


def read_all(
    folder: Path,
    columns: Sequence[str] | None = None,
    steps: Collection[int] | None = None,
    lost: list[Damaged] | None = None,
) -> Iterator[tuple[Part, pa.Table]]:
    """The rows of a kind in the order of steps, in tables of one or more steps, each with the first
    of them; see `read_part`. ``steps`` limits which are read.
    Raises Damaged: some cannot be read. They are added to ``lost`` instead where that is given, and
    all others are read."""
    wanted = [part for part in parts(folder) if steps is None or part.step in steps]
    for batch in _batches(wanted):
        if len(batch) > 1:
            with contextlib.suppress(Damaged):  # which of them are is found one by one
                yield batch[0], _read_batch(batch, columns)
                continue
        hurt: set[str] = set()
        for part in batch:
            try:
                yield part, read_part(part, columns)
            except Damaged as error:
                if lost is None:
                    raise
                if str(error) not in hurt:  # once for the steps of a row group
                    hurt.add(str(error))
                    lost.append(error)


def verdicts_by(folder: Path, judge: str) -> int:
    """How many verdicts of ``judge`` are on record in a folder of verdicts.
    Raises Damaged: a part that cannot be read."""
    tables = read_all(folder, ["judge"])
    return sum(table["judge"].to_pylist().count(judge) for _, table in tables)


def _batches(wanted: Sequence[Part]) -> Iterator[list[Part]]:
    """Steps that are read at once: those of one merged file, as many as `BATCH` allows."""
    batch: list[Part] = []
    size = 0
    for part in wanted:
        before = batch[-1] if batch else None
        follows = (
            before is not None
            and before.merged is part.merged
            and before.group is not None
            and part.group is not None
            and before.group.columns == part.group.columns
        )
        more = 0 if follows and before.group is part.group else part.group.size if part.group else 0
        if batch and (not follows or size + more > BATCH):
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += more
    if batch:
        yield batch


def _read_batch(batch: Sequence[Part], columns: Sequence[str] | None) -> pa.Table:
    """Several steps of one merged file."""
    merged = batch[0].merged
    groups = list({part.group.number: part.group for part in batch if part.group}.values())
    assert merged is not None
    table = _read_groups(merged, groups, columns)
    return _rows_of(table, groups, {part.step for part in batch})


def _read_groups(
    merged: Merged, groups: Sequence[Group], columns: Sequence[str] | None
) -> pa.Table:
    """Row groups of the same columns."""
    path, footer = merged.path, merged.footer
    steps = [step for group in groups for step in group.steps]
    at = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    try:
        group_steps = {group.number: {s for s, n in group.steps.items() if n} for group in groups}
        numbers = [group.number for group in groups]
        why = _other_steps(path.parent.name, footer, group_steps)
        contents = Contents.of(path)
        data = contents.unread() if len(numbers) == footer.num_row_groups else None
        if why := why or contents.altered(footer, numbers, data):
            raise Damaged(path, why, _REMEDY, at)
        source = path if data is None else pa.BufferReader(data)
        with pq.ParquetFile(source, metadata=footer, page_checksum_verification=True) as file:
            names = _chosen(groups[0].columns, columns)
            table = file.read_row_groups(numbers, names)
        return _checked(path, footer, table.select(names), _REMEDY, at)
    except (OSError, ValueError, LookupError, pa.ArrowException) as error:
        raise Damaged(path, f"cannot be read ({first_line(error)})", _REMEDY, at) from error


def _rows_of(table: pa.Table, groups: Sequence[Group], steps: Collection[int]) -> pa.Table:
    """The rows of ``steps`` in a table of these row groups."""
    slices, start = [], 0
    there = [item for group in groups for item in group.steps.items()]
    if all(step in steps for step, _ in there):
        return table
    for step, rows in there:
        if step in steps:
            slices.append(table.slice(start, rows))
        start += rows
    return pa.concat_tables(slices)


def _chosen(names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """Those of ``names`` that are asked for."""
    prefixes = tuple(name for name in columns or () if name.endswith("/"))
    wanted = names if columns is None else [*columns]
    return [name for name in names if name in wanted or name.startswith(prefixes)]


def _checked(path: Path, footer: Any, table: pa.Table, remedy: str, at: str = "") -> pa.Table:
    """A table whose columns have the types of their names, and whose rows can be.
    Raises Damaged: they are others. What is signed is as it was written, and not looked at."""
    schema = schema_of([(column.name, _type_of(column)) for column in table.schema])
    if wrong := [c.name for c, to in zip(table.schema, schema, strict=True) if _other(c, to)]:
        raise Damaged(path, f"has columns of another kind: {', '.join(wrong)}", remedy, at)
    table = table.cast(schema)
    table.validate(full=True)
    kind = path.parent.name
    if not _is_whole(footer) and (why := impossible(kind, table)):
        raise Damaged(path, why, remedy, at)
    return table


def _type_of(column: pa.Field) -> Any:
    """The type that a column of a part has by its name, or else the one that it came with."""
    if column.name.startswith((COMPONENT, FEATURE)):
        return "float64"
    return {**ROLLOUT, **VERDICT, **CALL, **OPTIONAL}.get(column.name, column.type)


def _other(column: pa.Field, wanted: pa.Field) -> bool:
    """Whether a column is of another kind than it should be; what is always missing fits any."""
    return not pa.types.is_null(column.type) and _kind(column.type) != _kind(wanted.type)


def _kind(arrow: pa.DataType) -> str:
    """What an Arrow type holds, whatever its width."""
    if pa.types.is_dictionary(arrow):
        return _kind(arrow.value_type)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return "list"
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow):
        return "number"
    return "text" if arrow in (pa.string(), pa.large_string(), pa.string_view()) else str(arrow)


def unlike(path: Path, footer: Any) -> str:
    """Why a part does not hold the rows of the step in its name; empty where it does. A Parquet
    ``footer`` without statistics is taken at its word."""
    wanted = step_of(path)
    if wanted is None:
        return ""
    groups = {group: {wanted} for group in range(footer.num_row_groups)}
    return _other_steps(path.parent.name, footer, groups)


def _not_as_signed(contents: Contents, footer: Any, data: bytes | None) -> str:
    """Why a part is not the one that its footer says it is; empty where it is, or says nothing."""
    path = contents.path
    signature, step = read_signature(footer.metadata), step_of(path)
    if step is None:
        return ""
    why = contradiction(path, signature, (step, step), footer.num_rows) if signature else ""
    return why or contents.altered(footer, range(footer.num_row_groups), data)


def is_signed(part: Part) -> bool:
    """Whether the file of a step, and all that it was merged of, says whose it is."""
    return _is_whole(part.merged.footer if part.merged else pq.read_metadata(part.path))


def _is_whole(footer: Any) -> bool:
    signature = read_signature(footer.metadata)
    return signature is not None and signature.whole


def _other_steps(kind: str, footer: Any, groups: Mapping[int, set[int]]) -> str:
    """Why row groups do not hold rows of their steps, by the footer; empty where they do."""
    paths = [footer.schema.column(number).path for number in range(len(footer.schema))]
    if "step" not in paths:
        return f"has no plain column step, only {', '.join(paths[:5]) or 'none'}"
    if not _is_whole(footer) and (why := lacking(kind, footer.schema.to_arrow_schema().names)):
        return why
    place = paths.index("step")
    for group, expected in groups.items():
        span = {min(expected), max(expected)} if expected else set()
        stats = footer.row_group(group).column(place).statistics
        if stats and stats.has_min_max and {stats.min, stats.max} != span:
            span_text = " to ".join(map(str, sorted(span)))
            return f"holds rows of step {stats.min} but should hold those of step {span_text}"
    return ""


_REMEDY = (
    "Reports leave these rows out; a run that has ended does not remake its steps. To make the"
    " whole cell again, move its folder away"
)


def _part_remedy(path: Path) -> str:
    aside = f"mv {path} {path}.damaged"
    return (
        "A rerun does not remake steps before the last checkpoint. To go on without these rows,"
        f" move the file away: {aside}. To make the whole cell again, move its folder away"
    )
