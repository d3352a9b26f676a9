"""Rows of the official files as items, where the data folder has them."""

import functools
import gzip
import itertools
import json
import re
from typing import Any

import pytest

from study.tasks.datasets.item import Item
from study.tasks.where import data_folder
from study.truth.extract import last_box

NUMBERS = itertools.count()


def item(dataset: str, domain: str, **fields: Any) -> Item:
    """An item with what a rule reads, and an id of its own."""
    return Item(f"{dataset}:test:{next(NUMBERS)}", dataset, domain, "test", "", "", "", **fields)


def records(path: str) -> list[dict[str, Any]]:
    """The rows of a file; the test is skipped where it is not there."""
    file = data_folder() / path
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@functools.cache
def humaneval() -> list[Item]:
    return [
        item(
            "humaneval",
            "code",
            entry_point=row["entry_point"],
            code_prompt=row["prompt"],
            tests=row["test"],
            reference=row["canonical_solution"],
        )
        for row in records("humaneval/HumanEval.jsonl.gz")
    ]


def called(test: str) -> str:
    """The function that an assertion of MBPP calls."""
    match = re.search(r"(\w+)\s*\(", test.removeprefix("assert"))
    assert match is not None
    return match[1]


@functools.cache
def mbpp() -> list[Item]:
    return [
        item(
            "mbpp",
            "code",
            entry_point=called(row["test_list"][0]),
            tests="\n".join(row["test_list"]),
            setup=row["test_setup_code"],
            reference=row["code"],
        )
        for row in records("mbpp/mbpp.jsonl.gz")
    ]


@functools.cache
def mathematics() -> list[Item]:
    """The MATH test set; ``reference`` is the solution."""
    return [
        item(
            "math",
            "math",
            answers=(last_box(row["solution"]) or "",),
            reference=row["solution"],
        )
        for row in records("math/test.jsonl.gz")
    ]
