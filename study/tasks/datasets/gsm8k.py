"""GSM8K: ``{question, answer}``, the answer behind the last ``####``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from study.tasks.datasets.fields import address, field
from study.tasks.datasets.prompt import render
from study.tasks.files import records, refuse
from study.truth.item import Item
from study.truth.numbers import final_number


def read(name: str, split: str, paths: dict[str, Path]) -> Iterator[tuple[str, Item]]:
    """(file and row, item) of each row of a split.
    Raises UserError: a row that is not of the form, or has no gold answer."""
    path = paths[split]
    for row, (line, record) in enumerate(records(path)):
        where = f"{path}, {line}"
        question = field(record, "question", str, name, where)
        solution = field(record, "answer", str, name, where)
        gold = solution.rpartition("####")[2].strip() if "####" in solution else ""
        if final_number(gold) is None:
            refuse(where, "a gold without an answer", "the answer is a number behind ####")
        yield (
            where,
            Item(
                id=f"{name}:{split}:{row}",
                dataset=name,
                domain="math",
                split=split,
                group_key=f"{name}:{address(question)}",
                prompt=render(name, question=question),
                question=question,
                answers=(gold,),
                reference=solution,
            ),
        )
