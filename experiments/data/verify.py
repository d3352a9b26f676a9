"""Compares a prepared folder with its manifest, and its rows with what a split promises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from experiments.data import near
from study.errors import UserError
from study.system.files import sha256
from study.tasks.datasets import prompt
from study.tasks.datasets.table import MANIFEST, ROWS, Manifest, Table, again, open_table

SIDES = ("test", "validation", "train")
"""Each may repeat nothing of those before it."""
COMPARED = {
    "text": "question",
    "answers": "answers",
    "context": "context",
    "function": "entry_point",
}
"""What `near.question` is given -> its column."""
SHOWN = 3
"""Ids and groups that a message names."""


def verify(folder: Path, root: Path | None = None, datasets: Sequence[str] = ()) -> Manifest:
    """The manifest of a prepared folder, once all that it says has been computed again.

    Hashes of rows, test files, prompts and, where ``root`` is the data folder, of the sources;
    counts by set and split; ids that stand twice; groups and near-duplicates that stand in two
    splits; and whether it has all of ``datasets``.
    Raises UserError: something differs; all that differs is named.
    """
    table = open_table(folder)
    try:
        wrong = list(_differences(table, root))
    except (KeyError, TypeError, AttributeError) as error:
        wrong = [f"{MANIFEST} is not whole ({error!r} is missing or of another kind)"]
    wrong += [f"it has no {name}" for name in datasets if name not in table.domains]
    wrong += [*_crossing(table.columns), *_near(table)]
    if wrong:
        raise UserError(
            f"{folder} does not match its manifest: {'; '.join(wrong)}. {again(folder, root)}"
        )
    return table.manifest


def _differences(table: Table, root: Path | None) -> list[str]:
    """What differs from the manifest."""
    return [
        *_files(table),
        *_prompts(table.manifest),
        *changed_sources(table.manifest, root),
        *_counts(table),
    ]


def _files(table: Table) -> Iterator[str]:
    tests = {entry["file"]: entry["sha256"] for entry in table.manifest["test"].values()}
    for name, digest in {ROWS: table.manifest["rows"]["sha256"], **tests}.items():
        path = table.folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif sha256(path) != digest:
            yield f"{name} has another sha256"


def _prompts(manifest: Manifest) -> Iterator[str]:
    for entry in manifest["datasets"].values():
        for name, digest in entry["prompts"].items():
            path = prompt.FOLDER / name
            if not path.is_file() or sha256(path) != digest:
                yield f"the prompt {name} has changed"


def changed_sources(manifest: Manifest, root: Path | None) -> Iterator[str]:
    """What differs in ``root``, a data folder, from the files that a folder was prepared from."""
    if root is None:
        return
    for file in (
        file for entry in manifest["datasets"].values() for file in entry["files"].values()
    ):
        path = root / file["name"]
        if not path.is_file():
            yield f"{path} is missing"
        elif sha256(path) != file["sha256"]:
            yield f"{path} has another sha256 than when it was read"


def _counts(table: Table) -> Iterator[str]:
    keys = ["dataset", "split"]
    tally = table.columns.group_by(keys).aggregate([("id", "count")]).to_pylist()
    counts = {(entry["dataset"], entry["split"]): entry["id_count"] for entry in tally}
    for name, splits in table.manifest["counts"].items():
        for split, number in splits.items():
            if (there := counts.pop((name, split), 0)) != number:
                yield f"{name} has {there} {split} rows and not {number}"
    yield from (f"{name} has {there} {split} rows" for (name, split), there in counts.items())


def _crossing(columns: pa.Table) -> Iterator[str]:
    for key, counted, message in (
        ("id", ("split", "count"), "the id {} appears more than once"),
        ("group_key", ("split", "count_distinct"), "the group {} is in two splits"),
    ):
        tally = columns.group_by(key).aggregate([counted])
        counts = tally["_".join(counted)].to_numpy()
        many = tally[key].filter(pa.array(counts > 1)).to_pylist()
        yield from (message.format(name) for name in many[:SHOWN])


def _near(table: Table) -> Iterator[str]:
    """Near-duplicates that stand in two splits, domain by domain."""
    columns = table.columns.select(["id", "domain", "split", *COMPARED.values()])
    sides: dict[tuple[str, str], tuple[list[str], list[near.Question]]] = {}
    for rows in columns.to_batches():
        for record in rows.to_pylist():
            ids, questions = sides.setdefault((record["domain"], record["split"]), ([], []))
            ids.append(record["id"])
            compared = {name: record[key] for name, key in COMPARED.items()}
            questions.append(near.question(**compared))
    for domain in sorted(set(table.domains.values())):
        here = {split: sides.get((domain, split), ([], [])) for split in SIDES}
        matches = near.crossing({split: questions for split, (_, questions) in here.items()})
        for (split, place), (other_split, other) in itertools.islice(matches, SHOWN):
            names = here[split][0][place], here[other_split][0][other]
            yield f"{names[0]} ({split}) nearly repeats {names[1]} ({other_split})"
