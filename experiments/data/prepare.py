"""Writes a prepared folder: ``manifest.json``, ``rows.arrow``, ``test/``.

Rows are read file by file into a table beside the folder, of which only the questions stay in
memory; then each gets its split, what leaks is left out, and the rows are written in order. The
folder appears by one rename, so that a run that was killed leaves nothing half-written.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.data import near, split
from experiments.data.parts import Part
from experiments.data.split import TEST, TRAIN, VALIDATION
from experiments.evaluation.selection import MOST, choose
from study.cli import writes
from study.errors import UserError
from study.system import locks
from study.system.files import sha256, sync_files, write_json
from study.tasks.datasets.preset import Data
from study.tasks.datasets.table import (
    FORMAT,
    MANIFEST,
    ROWS,
    SCHEMA,
    SPLITS,
    Entry,
    Manifest,
    Source,
    Tests,
    batch,
)
from study.truth.item import Item, short_answer

BATCH = 1024
"""Rows that are held as items at once."""
TOGETHER = 16 << 20
"""Bytes of a record batch of the finished table."""
CROSSING = ("group_in_test", "context_in_test", "repeated")
"""Why a row is left out before near-duplicates are looked for."""


@dataclass
class Scan:
    """What stays in memory of one set, one entry a row in the order of its files.

    ``split`` is the prepared split, or the reason why a row is left out. ``joined`` is by how many
    there are fewer groups since rows that nearly repeat each other are one, ``untested`` the
    places of programs that no test can check.
    """

    part: Part
    path: Path
    described: Source
    ids: list[str] = field(default_factory=list)
    official: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    questions: list[near.Question] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    split: list[str] = field(default_factory=list)
    joined: int = 0
    untested: set[int] = field(default_factory=set)
    lengths: list[int] = field(default_factory=list)
    """Characters of the prompts."""

    def at(self, *splits: str) -> list[int]:
        """Places of the rows of some splits."""
        return [place for place, split in enumerate(self.split) if split in splits]


def prepare(
    parts: Sequence[Part],
    data: Data,
    out: Path,
    command: str = "",
) -> Manifest:
    """Write the folder ``out`` and return its manifest. What was there is replaced. ``command`` is
    what makes such a folder but for ``out=``, for whoever has to make it again; it may be empty.
    Raises UserError: a row that is not of its form, no test row at all, or ``out`` holds something
        that is no prepared folder, or cannot be written."""
    refuse_others(out)
    with writes("out", out):
        return _prepare(parts, data, out, command)


def _prepare(parts: Sequence[Part], data: Data, out: Path, command: str) -> Manifest:
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = out.parent / f".{out.name}.lock"
    holder = locks.take(lock)
    busy = UserError(f"out={out} is being prepared by another process. Wait for it to end.")
    if holder is None:
        raise busy
    work = out.parent / f".{out.name}.partial"
    with holder:
        # a file that its holder has just removed locks nobody out
        if not _is(lock, os.fstat(holder.fileno())):
            raise busy
        shutil.rmtree(work, ignore_errors=True)
        try:
            (work / "test").mkdir(parents=True)
            manifest = _write(parts, data, work, command)
            replace_folder(work, out)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            with contextlib.suppress(OSError):
                lock.unlink()
    return manifest


def _is(path: Path, opened: os.stat_result) -> bool:
    return path.exists() and os.path.samestat(path.stat(), opened)


def refuse_others(out: Path) -> None:
    """Raises UserError: ``out`` is there and holds something else than a prepared folder."""
    if not out.exists() or (out / MANIFEST).is_file():
        return
    if not out.is_dir() or any(out.iterdir()):
        raise UserError(
            f"out={out} exists and is not a prepared folder; nothing was overwritten. Give another"
            " folder."
        )


def replace_folder(work: Path, out: Path) -> None:
    """Put ``work`` in the place of ``out``; a kill in between leaves one of the two under a name
    that the next run removes."""
    old = out.parent / f".{out.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.rename(out, old)
    os.rename(work, out)
    sync_files([out.parent])
    shutil.rmtree(old, ignore_errors=True)


def _write(parts: Sequence[Part], data: Data, work: Path, command: str) -> Manifest:
    scans = [_scan(part, work) for part in sorted(parts, key=lambda part: part.name)]
    for scan in scans:
        _assign(scan, data)
    examples = _clean(scans)
    for scan in scans:
        _choose(scan, data)
    if not any(scan.at(TEST) for scan in scans):
        names = ", ".join(scan.part.name for scan in scans)
        least = math.ceil(sum(data.cut) / (2 * data.cut[1]))
        raise UserError(
            f"{names} leave no test row. Rows are split {data.cut[0]} to {data.cut[1]} into"
            f" training and test, so a set needs at least {least} different ones to have a test"
            " row. Give more rows, or other datasets=."
        )
    _write_rows(scans, work)
    tests = _write_tests(scans, work)
    manifest: Manifest = {
        "format": FORMAT,
        "preset": data.name,
        "command": command,
        "cut": data.cut,
        "validation_share": data.validation_share,
        "seed": data.seed,
        "domains": data.domains,
        "counts": {scan.part.name: _counts(scan) for scan in scans},
        "datasets": {scan.part.name: _entry(scan) for scan in scans},
        "near_duplicates": {
            "similarity": near.THRESHOLD,
            "left_out": sum(len(scan.at("near_duplicates")) for scan in scans),
            "joined": sum(scan.joined for scan in scans),
            "examples": examples,
        },
        "rows": {
            "file": ROWS,
            "n": sum(len(scan.at(*SPLITS)) for scan in scans),
            "sha256": sha256(work / ROWS),
        },
        "test": tests,
    }
    for scan in scans:
        scan.path.unlink()
    write_json(work / MANIFEST, manifest)
    sync_files([*(work / "test").iterdir(), work / ROWS, work / "test", work])
    return manifest


def _scan(part: Part, work: Path) -> Scan:
    """Read every row of a set into a table of its own, in the order of its files."""
    scan = Scan(part, work / f"{part.name}.read", part.described())
    rows = part.items()
    with pa.OSFile(str(scan.path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        while chunk := list(itertools.islice(rows, BATCH)):
            items = [item for _, item in chunk]
            try:
                columns = batch(items)
            except UnicodeEncodeError:
                raise _unwritable(chunk) from None
            writer.write_batch(columns)
            scan.prompts += columns["prompt_id"].to_pylist()
            for item in items:
                _remember(scan, item)
    return scan


def _remember(scan: Scan, item: Item) -> None:
    scan.ids.append(item.id)
    scan.official.append(item.split)
    scan.groups.append(item.group_key)
    scan.lengths.append(len(item.prompt))
    scan.questions.append(
        near.question(item.question, item.answers, item.context, item.entry_point)
    )
    scan.split.append(scan.part.fate(item))
    if item.domain == "code" and not item.tests:
        scan.untested.add(len(scan.ids) - 1)


def _unwritable(chunk: Sequence[tuple[str, Item]]) -> UserError:
    for where, item in chunk:
        try:
            batch([item])
        except UnicodeEncodeError as error:
            return UserError(
                f"{where}: found a text that is not Unicode ({error.reason}). Save the file as"
                " UTF-8 without lone surrogates."
            )
    raise AssertionError("each row can be written, and all of them cannot")


def _assign(scan: Scan, data: Data) -> None:
    """The split of every row, before what leaks is looked for."""
    places = [place for place, split_name in enumerate(scan.split) if not split_name]
    groups = [scan.groups[place] for place in places]
    tests: set[str] = set()
    if scan.part.cut_from:
        apart = len(set(groups))
        groups = split.joined(groups, [scan.questions[place] for place in places])
        scan.joined = apart - len(set(groups))
        tests = split.cut(groups, data.cut, data.seed)
    aside = split.validation(groups, data.validation_share, data.seed)
    for place, group in zip(places, groups, strict=True):
        official = not scan.part.cut_from and scan.official[place] in scan.part.test
        name = TEST if official or group in tests else VALIDATION if group in aside else TRAIN
        scan.split[place] = name
        scan.groups[place] = group


def _clean(scans: Sequence[Scan]) -> list[dict[str, str]]:
    """Leave out what would leak from one split into another; some pairs that nearly repeat each
    other."""
    for scan in scans:
        tests = scan.at(TEST)
        groups = {scan.groups[place] for place in tests}
        contexts = {scan.questions[place].context for place in tests} - {""}
        trained = scan.at(TRAIN, VALIDATION)
        again = split.repeated([(scan.split[place], scan.prompts[place]) for place in trained])
        for number, place in enumerate(trained):
            if scan.groups[place] in groups:
                scan.split[place] = "group_in_test"
            elif scan.questions[place].context in contexts:
                scan.split[place] = "context_in_test"
            elif number in again:
                scan.split[place] = "repeated"
    examples = []
    for domain in sorted({scan.part.domain for scan in scans}):
        examples += _near([scan for scan in scans if scan.part.domain == domain])
    return examples[:10]


def _choose(scan: Scan, data: Data) -> None:
    """Leave out train rows that are too long, and those that facility location does not choose. Of
    more than `MOST` it looks at those whose ids come first by their hash."""
    for place in scan.at(TRAIN):
        if data.max_prompt_chars is not None and scan.lengths[place] > data.max_prompt_chars:
            scan.split[place] = "too_long"
    places = scan.at(TRAIN)
    if data.choose is None or data.choose >= len(places):
        return
    places.sort(key=lambda place: split.rank(scan.ids[place], data.seed))
    looked_at = places[:MOST]
    texts = [scan.questions[place].text for place in looked_at]
    places_chosen = {looked_at[number] for number in choose(texts, data.choose)}
    for place in places:
        if place not in places_chosen:
            scan.split[place] = "not_chosen"


def _near(scans: Sequence[Scan]) -> Iterator[dict[str, str]]:
    """Leave out the rows of one domain that nearly repeat a held-out one, each with that one.

    Rows that are left out already are counted here where they nearly repeat a test row. No other
    row is compared with them: `verify` does not see them either.
    """
    rows = {
        name: [(scan, place) for scan in scans for place in scan.at(*splits)]
        for name, splits in {**{name: (name,) for name in SPLITS}, "out": CROSSING}.items()
    }
    questions = {
        name: [scan.questions[place] for scan, place in members] for name, members in rows.items()
    }
    for sides in ((TEST, "out"), (TEST, VALIDATION, TRAIN)):
        for (name, number), (side, other) in near.crossing({key: questions[key] for key in sides}):
            scan, place = rows[name][number]
            like, like_place = rows[side][other]
            scan.split[place] = "near_duplicates"
            yield {"left_out": scan.ids[place], "like": like.ids[like_place]}


def _counts(scan: Scan) -> dict[str, int]:
    tally = Counter(scan.split)
    return {name: tally[name] for name in SPLITS}


def _entry(scan: Scan) -> Entry:
    tally = Counter(scan.split)
    rows = {"read": len(scan.ids), **_counts(scan)}
    left_out = {reason: tally[reason] for reason in sorted(set(tally) - set(SPLITS))}
    in_splits = scan.at(*SPLITS)
    entry: Entry = {
        **scan.described,
        "rows": rows,
        "left_out": left_out,
        "groups": len({scan.groups[place] for place in in_splits}),
    }
    if scan.untested:
        entry["without_tests"] = len(scan.untested.intersection(in_splits))
    if any(question.context for question in scan.questions):
        entry["without_context"] = sum(not scan.questions[place].context for place in in_splits)
    return entry


def _batches_of(scan: Scan, name: str) -> Iterator[pa.RecordBatch]:
    """The rows of a set in one split, with split and group as they are prepared."""
    start = 0
    with pa.OSFile(str(scan.path)) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            rows = reader.get_batch(number)
            stop = start + len(rows)
            mask = np.array([split == name for split in scan.split[start:stop]])
            groups = pa.array(scan.groups[start:stop], pa.string())
            names = pa.array([name] * len(rows), pa.string())
            start = stop
            if mask.any():
                rows = rows.set_column(SCHEMA.get_field_index("group_key"), "group_key", groups)
                rows = rows.set_column(SCHEMA.get_field_index("split"), "split", names)
                yield rows.filter(pa.array(mask))


def _write_rows(scans: Sequence[Scan], work: Path) -> None:
    with pa.OSFile(str(work / ROWS), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        batches = (rows for name in SPLITS for scan in scans for rows in _batches_of(scan, name))
        waiting: list[pa.RecordBatch] = []
        for rows in batches:
            waiting.append(rows)
            if sum(some.nbytes for some in waiting) >= TOGETHER:
                writer.write_batch(pa.concat_batches(waiting))
                waiting = []
        if waiting:
            writer.write_batch(pa.concat_batches(waiting))


def _write_tests(scans: Sequence[Scan], work: Path) -> dict[str, Tests]:
    """``test/<dataset>_test.jsonl`` and ``test/test_index.json``, for readers of the short form."""
    entries: dict[str, Tests] = {}
    for scan in scans:
        if not scan.at(TEST):
            continue
        path = work / "test" / f"{scan.part.name}_test.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for rows in _batches_of(scan, TEST):
                for record in rows.to_pylist():
                    file.write(json.dumps(_short(record), ensure_ascii=False) + "\n")
        entries[scan.part.name] = {
            "file": f"test/{path.name}",
            "domain": scan.part.domain,
            "rows": len(scan.at(TEST)),
            "sha256": sha256(path),
        }
    write_json(work / "test" / "test_index.json", {"datasets": entries})
    return entries


def _short(record: Mapping[str, Any]) -> dict[str, object]:
    """A row in the short form ``{problem, answer, type}`` with its id and, of several answers,
    all."""
    return {
        "id": record["id"],
        "dataset": record["dataset"],
        "domain": record["domain"],
        "problem": record["prompt"],
        "answer": short_answer(record["domain"], record["reference"], record["answers"]),
        "type": record["domain"],
        "answers": record["answers"],
    }
