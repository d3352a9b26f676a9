"""Texts and numbers that are what they were: a test gives lines, a file of ``recorded/`` has them.

This is no oracle: nothing here shows that a number is right, and the tests beside it do that. It
tells that one has changed, wherever it stands. Numbers may differ in their last digits, as
processors do. Where a change was meant, ``JUDGEDRIFT_RECORD=1`` before the command writes the files
again; such a run fails wherever something is written, so that its difference is read.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pytest

from tests.conftest import Page

RECORDED = Path(__file__).with_name("recorded")
"""A file for each name."""
NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?(?![\w])")
SHOWN, LONG = 6, 500
"""Texts of a column that are kept, and letters of one whose beginning alone is; a checksum stands
for the rest."""
PATHS = re.compile(r"/[\w./-]+")
CELL = re.compile(r"(-s\d)-[0-9a-f]{10}\b")
CLOSE = 1e-4
"""Largest share by which two numbers differ that are the same: fits stop at a tolerance."""


def compare(name: str, lines: Sequence[str], runs: Path | None = None, near: float = 1e-9) -> None:
    """Fail where the lines are not those on record. ``runs`` is a folder whose name is no part of
    them, ``near`` how far two numbers may be apart that are the same."""
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    text = text if runs is None else text.replace(str(runs), "RUNS")
    text = CELL.sub(r"\1-CELL", text)
    path = RECORDED / f"{name}.txt"
    recorded = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    shown = text.splitlines()
    changed = [
        f"{path.name}:{place + 1}\n  was {old}\n  is  {new}"
        for place, (old, new) in enumerate(zip(recorded, shown, strict=False))
        if not alike(old, new, near)
    ]
    if len(shown) != len(recorded):
        changed.append(f"{path.name} has {len(shown)} lines, and {len(recorded)} on record")
    if changed and os.environ.get("JUDGEDRIFT_RECORD"):
        path.write_text(text, encoding="utf-8")
        changed.append(f"{path.name} is written again.")
    if changed:
        pytest.fail("\n".join(changed), pytrace=False)


def alike(old: str, new: str, near: float = 1e-9) -> bool:
    """Whether two lines have the same words and, to some digits, the same numbers."""
    if NUMBER.sub("#", old) != NUMBER.sub("#", new):
        return False
    pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    return all(np.isclose(float(a), float(b), rtol=CLOSE, atol=near) for a, b in pairs)


def summary(name: str, values: Sequence[Any]) -> str:
    """A column in one line: how many, how many missing, and what says that a number or the order
    of two is another: the means of their sizes and of each times its place."""
    numbers = [v for v in values if isinstance(v, int | float) and np.isfinite(v)]
    texts = [v for v in values if isinstance(v, str)]
    line = f"{name}: {len(values)}, {len(values) - len(numbers) - len(texts)} missing"
    if numbers:
        # what is below 0 counts a third: a sign is seen, and there is no jump at 0
        sizes = (np.array(numbers, dtype=float) + 2 * np.abs(numbers)) / 3
        places = np.sqrt(np.arange(1, 1 + len(sizes)))
        line += f", {np.mean(sizes):.6g}, {np.mean(sizes * places):.6g}"
    distinct = list(dict.fromkeys(texts))
    shown = [text if len(text) < LONG else text[:60] for text in distinct[:SHOWN]]
    if len(distinct) > SHOWN or any(len(text) >= LONG for text in distinct):
        shown.append(f"... {crc32(PATHS.sub('', repr(texts)).encode()):08x}")
    return " ".join([f"{line},", *shown] if texts else [line]).replace("\n", " ")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and texts of a document, a record, a table or an array, each with its path, in
    which places in a list are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    elif isinstance(value, pd.DataFrame):
        value = {column: value[column].to_numpy(object) for column in value}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path, value


def of_document(document: Any) -> list[str]:
    """A line for each path of `leaves`."""
    columns: dict[str, list[Any]] = {}
    for path, value in leaves(document):
        columns.setdefault(path, []).append(value)
    return [summary(path, values) for path, values in columns.items()]


def words(page: Path) -> list[str]:
    """The sentences of a page without its pictures, each on a line."""
    text = Page(re.sub(r"(?s)<style>.*?</style>|<svg.*?</svg>", "", page.read_text())).text
    return re.split(r"\s*\n\s*|(?<=[.:?]) +", text.strip())
