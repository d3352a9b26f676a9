"""MATH and MATH-500: ``{problem, solution}``, the answer in the last ``\\boxed{}``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from study.tasks.datasets.fields import address, field
from study.tasks.datasets.prompt import render
from study.tasks.files import records, refuse
from study.truth.extract import last_box
from study.truth.item import Item


def read(name: str, split: str, paths: dict[str, Path]) -> Iterator[tuple[str, Item]]:
    """(file and row, item) of each row of a split.
    Raises UserError: a row that is not of the form, or has no gold answer."""
    path = paths[split]
    for row, (line, record) in enumerate(records(path)):
        where = f"{path}, {line}"
        problem = field(record, "problem", str, name, where)
        solution = field(record, "solution", str, name, where)
        stated = field(record, "answer", str, name, where, empty=True, default="")
        gold = stated.strip() or last_box(solution)
        if not gold:
            refuse(where, "a gold without an answer", "the solution holds it in \\boxed{}")
        yield (
            where,
            Item(
                id=f"{name}:{split}:{row}",
                dataset=name,
                domain="math",
                split=split,
                group_key=f"{name}:{address(problem)}",
                prompt=render(name, question=problem),
                question=problem,
                answers=(gold,),
                reference=solution,
                alias=field(record, "unique_id", str, name, where, empty=True, default=""),
                meta={
                    "level": str(record.get("level", "")),
                    "type": str(record.get("type") or record.get("subject") or ""),
                },
            ),
        )
