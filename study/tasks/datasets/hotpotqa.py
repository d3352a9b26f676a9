"""HotpotQA: the official list of questions with ten paragraphs each, or questions alone.

Where the paragraphs of some questions lie in a file of their own, they are found by the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from study.tasks.datasets.fields import address, field
from study.tasks.datasets.prompt import render
from study.tasks.files import elements, records, refuse, short
from study.truth.item import Item

FORM = "context and supporting_facts are lists of [title, ...], or {title: [...], ...}"


def read(name: str, split: str, paths: dict[str, Path]) -> Iterator[tuple[str, Item]]:
    """(file and row, item) of each row of a split.
    Raises UserError: a row that is not of the form, or has no gold answer."""
    path = paths[split]
    is_list = path.name.removesuffix(".gz").endswith(".json")
    beside = {}
    if not is_list and split == "dev" and "contexts" in paths:
        rows = records(paths["contexts"])
        beside = {str(record.get("question")): record for _, record in rows}
    for row, (line, record) in enumerate(elements(path) if is_list else records(path)):
        where = f"{path}, {line}"
        question = field(record, "question", str, name, where)
        gold = field(record, "answer", str, name, where, empty=True).strip()
        if not gold:
            refuse(where, "a gold without an answer", "answer is a text")
        full: Mapping[str, Any] = {**beside.get(question, {}), **record}
        if is_list:
            field(full, "context", object, name, where)
        context = _context(full.get("context"), where)
        titles = sorted({title for title, _ in _pairs(full.get("supporting_facts"), where)})
        values = {"question": question, **({"context": context} if context else {})}
        yield (
            where,
            Item(
                id=f"{name}:{split}:{row}",
                dataset=name,
                domain="qa",
                split=split,
                group_key=f"{name}:{' | '.join(titles) or address(question)}",
                prompt=render(name if context else f"{name}-without-context", **values),
                question=question,
                context=context or None,
                answers=(gold,),
                alias=field(full, "_id", str, name, where, empty=True, default=""),
                meta={
                    "type": str(full.get("type") or ""),
                    "level": str(full.get("level") or ""),
                    "titles": titles,
                },
            ),
        )


def _context(value: Any, where: str) -> str:
    """The paragraphs as one text, each behind its title."""
    paragraphs = []
    for title, sentences in _pairs(value, where):
        if not isinstance(sentences, list) or not all(isinstance(text, str) for text in sentences):
            refuse(where, f"a paragraph that is {short(sentences)}", FORM)
        paragraphs.append(f"{title}: {''.join(sentences).strip()}")
    return "\n\n".join(paragraphs)


def _pairs(value: Any, where: str) -> list[tuple[str, Any]]:
    """(title, what belongs to it) of a field in either of its forms; none where it is missing."""
    if isinstance(value, Mapping):
        columns = list(value.values())
        same = all(isinstance(column, list) for column in columns) and len(columns) == 2
        if not same or "title" not in value or len(columns[0]) != len(columns[1]):
            refuse(where, short(dict(value)), FORM)
        (other,) = (column for key, column in value.items() if key != "title")
        pairs: Any = list(zip(value["title"], other, strict=True))
    else:
        pairs = [] if value is None else value
    if not isinstance(pairs, list):
        refuse(where, short(pairs), FORM)
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            refuse(where, short(pair), FORM)
    return [(title, rest) for title, rest in pairs]
