"""MMLU and CommonsenseQA: a question and lettered choices, one of them right."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from study.tasks.datasets.fields import address, field
from study.tasks.datasets.prompt import render
from study.tasks.files import records, refuse, short
from study.truth.item import Item

LETTERS = string.ascii_uppercase
FORM = "choices are {letter: text}, {label: [...], text: [...]}, [{label, text}] or a list of text"


def read(name: str, split: str, paths: dict[str, Path]) -> Iterator[tuple[str, Item]]:
    """(file and row, item) of each row of a split; rows of another split in the file, such as
    MMLU's few-shot examples, are passed over and not counted.
    Raises UserError: a row that is not of the form, or whose gold is not one of its choices."""
    path = paths[split]
    row = 0
    for line, record in records(path):
        if record.get("split") not in (None, split):
            continue
        where = f"{path}, {line}"
        stem = record.get("question")
        inner = stem if isinstance(stem, Mapping) else record
        question = field(inner, "stem" if inner is stem else "question", str, name, where)
        choices = _choices(inner, record, name, where)
        gold = record.get("answer", record.get("answerKey"))
        if isinstance(gold, int) and not isinstance(gold, bool) and 0 <= gold < len(choices):
            gold = choices[gold][0]
        if not isinstance(gold, str) or gold not in dict(choices):
            problem = f"a gold without an answer: {short(gold)} is not one of its choices"
            refuse(where, problem, "answer is the letter of a choice")
        subject = field(record, "subject", str, name, where) if name == "mmlu" else ""
        number = record.get("index")
        alias = record.get("id") if isinstance(record.get("id"), str) else ""
        choice_lines = "\n".join(f"{label}. {text}" for label, text in choices)
        yield (
            where,
            Item(
                id=f"{name}:{split}:{row}",
                dataset=name,
                domain="qa",
                split=split,
                group_key=f"{name}:{address(f'{question} {choice_lines}')}",
                prompt=render(name, question=question.strip(), choices=choice_lines),
                question=question,
                answers=(gold,),
                alias=f"{subject}/{number}" if subject and number is not None else str(alias or ""),
                choices=choices,
                meta={"subject": subject} if subject else {},
            ),
        )
        row += 1


def _choices(
    inner: Mapping[str, Any], record: Mapping[str, Any], name: str, where: str
) -> tuple[tuple[str, str], ...]:
    value = inner.get("choices", record.get("choices"))
    if value is None and "A" in record:
        value = {letter: record[letter] for letter in LETTERS if letter in record}
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        labels = value.get("label")
        same = isinstance(labels, list) and len(labels) == len(value["text"])
        pairs = list(zip(labels, value["text"], strict=True)) if same else []
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list) and all(isinstance(choice, Mapping) for choice in value):
        pairs = [(choice.get("label"), choice.get("text")) for choice in value]
    elif isinstance(value, list):
        lettered = len(value) <= len(LETTERS)
        pairs = list(zip(LETTERS[: len(value)], value, strict=True)) if lettered else []
    else:
        field(record, "choices", list, name, where)
        pairs = []
    labels_differ = len({label for label, _ in pairs if isinstance(label, str)}) == len(pairs)
    texts = all(isinstance(text, str) for _, text in pairs)
    if len(pairs) < 2 or not labels_differ or not texts:
        refuse(where, f"the choices {short(value)}", FORM)
    return tuple((str(label), str(text)) for label, text in pairs)
