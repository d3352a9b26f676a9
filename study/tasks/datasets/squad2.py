"""SQuAD 2.0: the official nested file, or one row a question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from study.tasks.datasets.fields import field
from study.tasks.datasets.prompt import render
from study.tasks.files import document, records, refuse
from study.truth.item import Item


def read(name: str, split: str, paths: dict[str, Path]) -> Iterator[tuple[str, Item]]:
    """(file and row, item) of each question of a split, in the order of the file.
    Raises UserError: a row that is not of the form, or whose gold is missing or contradicts it."""
    path = paths[split]
    nested = path.name.removesuffix(".gz").endswith(".json")
    for row, (where, title, context, record) in enumerate(_nested(path) if nested else _flat(path)):
        question = field(record, "question", str, name, where)
        impossible = field(record, "is_impossible", bool, name, where, default=False)
        answers = _texts(field(record, "answers", list, name, where, empty=True), where)
        if bool(answers) == impossible:
            kind = "an unanswerable question with" if impossible else "a gold without"
            refuse(where, f"{kind} an answer", "is_impossible is true where answers are none")
        yield (
            where,
            Item(
                id=f"{name}:{split}:{row}",
                dataset=name,
                domain="qa",
                split=split,
                group_key=f"{name}:{title}",
                prompt=render(name, context=context, question=question),
                question=question,
                context=context,
                answers=answers,
                answerable=not impossible,
                alias=field(record, "id", str, name, where),
                meta={"title": title},
            ),
        )


def _nested(path: Path) -> Iterator[tuple[str, str, str, Any]]:
    whole = document(path)
    number = 0
    for article in field(whole, "data", list, "squad2", str(path), empty=True):
        title = field(article, "title", str, "squad2", f"{path}, row {number + 1}")
        paragraphs = field(article, "paragraphs", list, "squad2", f"{path}, article {title}", True)
        for paragraph in paragraphs:
            where = f"{path}, row {number + 1}"
            context = field(paragraph, "context", str, "squad2", where)
            for record in field(paragraph, "qas", list, "squad2", where, empty=True):
                number += 1
                yield f"{path}, row {number}", title, context, record


def _flat(path: Path) -> Iterator[tuple[str, str, str, Any]]:
    for line, record in records(path):
        where = f"{path}, {line}"
        title, context = (field(record, key, str, "squad2", where) for key in ("title", "context"))
        yield where, title, context, record


def _texts(answers: list[Any], where: str) -> tuple[str, ...]:
    """The distinct answers; each is a text, or an object with one."""
    texts = [answer.get("text") if isinstance(answer, Mapping) else answer for answer in answers]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        refuse(where, "a gold without an answer", "every item of answers has a text")
    return tuple(dict.fromkeys(texts))
