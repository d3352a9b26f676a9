"""MATH and MATH-500: ``{problem, solution}``, the answer in the last ``\\boxed{}``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from study.tasks.datasets.fields import address, field
from study.tasks.datasets.item import Item
from study.tasks.datasets.prompt import render
from study.tasks.files import records, refuse

BOXES = ("\\boxed", "\\fbox")


def read(name: str, split: str, paths: dict[str, Path]) -> Iterator[tuple[str, Item]]:
    """(file and row, item) of each row of a split.
    Raises UserError: a row that is not of the form, or has no gold answer."""
    path = paths[split]
    for row, (line, record) in enumerate(records(path)):
        where = f"{path}, {line}"
        problem = field(record, "problem", str, name, where)
        solution = field(record, "solution", str, name, where)
        given = field(record, "answer", str, name, where, empty=True, default="")
        gold = given.strip() or boxed(solution)
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


def boxed(text: str) -> str:
    """What stands in the last box of a solution, with all of its inner braces; empty where there
    is no box, or it is not closed. ``\\boxed 5`` is a box too; it ends at the next dollar sign."""
    start = max(text.rfind(box) for box in BOXES)
    if start < 0:
        return ""
    place = start + len("\\boxed" if text.startswith("\\boxed", start) else "\\fbox")
    rest = text[place:]
    if not rest.startswith("{"):
        return rest.partition("$")[0].strip() if rest.startswith(" ") else ""
    depth = 0
    for end, character in enumerate(rest):
        escaped = end > 0 and rest[end - 1] == "\\"
        if character in "{}" and not escaped:
            depth += 1 if character == "{" else -1
        if not depth:
            return rest[1:end].strip()
    return ""
