"""Rows of the official files as items, where the data folder has them."""

import functools
import gzip
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from study.sandbox.calls import Call, Limits
from study.sandbox.grader import CANDIDATE
from study.sandbox.pool import Pool
from study.tasks.datasets.item import Item
from study.tasks.where import data_folder
from study.truth.code import programs
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


def called(program: str, test: str) -> str:
    """The function of an MBPP program that an assertion calls."""
    defined = re.findall(r"^def\s+(\w+)", program, re.MULTILINE)
    return next(name for name in re.findall(r"(\w+)\s*\(", test) if name in defined)


@functools.cache
def mbpp() -> list[Item]:
    return [
        item(
            "mbpp",
            "code",
            entry_point=called(row["code"], row["test_list"][0]),
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


def together(
    items: Sequence[Item], answers: Sequence[str], pool: Pool, limits: Limits = CANDIDATE
) -> list[bool]:
    """Whether the tests pass where they share a process with the candidate, as they always did:
    a second opinion on honest code, and no protection from any other."""
    calls = []
    for row, answer in zip(items, answers, strict=True):
        check = f"\ncheck({row.entry_point})" if row.dataset == "humaneval" else ""
        source = "\n".join([*programs(row, answer)[0], row.setup, row.tests + check])
        calls.append(Call(source + "\ndef passed(): return True", "passed", (), limits))
    return [result.value is True for result in pool.run(calls)]
