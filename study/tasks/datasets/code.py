"""HumanEval and MBPP: a function to write, a right one, and the tests that say so."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from study.tasks.datasets.fields import field
from study.tasks.datasets.prompt import render
from study.tasks.files import records, refuse
from study.truth.item import Item

MBPP_SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}
"""Official split -> first and last task_id."""


def read(name: str, split: str, paths: dict[str, Path]) -> Iterator[tuple[str, Item]]:
    """(file and row, item) of each row; MBPP's one file says the split of each row itself.
    Raises UserError: a row that is not of the form, without a right program or without a test."""
    path = paths[split]
    rows = ((f"{path}, {line}", record) for line, record in records(path))
    for row, (where, record) in enumerate(rows):
        item = _mbpp(record, row, where) if name == "mbpp" else _humaneval(record, row, where)
        yield where, item


def _humaneval(record: object, row: int, where: str) -> Item:
    name = "humaneval"
    task = field(record, "task_id", str, name, where)
    prompt = field(record, "prompt", str, name, where)
    function = field(record, "entry_point", str, name, where)
    return Item(
        id=f"{name}:test:{row}",
        dataset=name,
        domain="code",
        split="test",
        group_key=f"{name}:{function}",
        prompt=render(name, question=prompt.rstrip()),
        question=prompt,
        entry_point=function,
        code_prompt=prompt,
        tests=field(record, "test", str, name, where),
        reference=field(record, "canonical_solution", str, name, where),
        alias=task,
    )


def _mbpp(record: object, row: int, where: str) -> Item:
    name = "mbpp"
    task = field(record, "task_id", int, name, where)
    split = next((key for key, (low, high) in MBPP_SPLITS.items() if low <= task <= high), "")
    if not split:
        refuse(where, f"task_id {task}", "tasks have the numbers 1 to 974")
    question = field(record, "text", str, name, where)
    program = field(record, "code", str, name, where)
    tests = field(record, "test_list", list, name, where)
    challenges = field(record, "challenge_test_list", list, name, where, empty=True, default=[])
    if not all(isinstance(test, str) and test.strip() for test in [*tests, *challenges]):
        refuse(where, "a test that is no text", "test_list holds assert statements")
    function = called(program, tests, where)
    return Item(
        id=f"{name}:{split}:{row}",
        dataset=name,
        domain="code",
        split=split,
        group_key=f"{name}:{function}",
        prompt=render(name, question=question, tests="\n".join(tests)),
        question=question,
        entry_point=function,
        tests="\n".join(tests),
        setup=field(record, "test_setup_code", str, name, where, empty=True, default=""),
        reference=program,
        meta={"task_id": task} | ({"challenges": challenges} if challenges else {}),
    )


def called(program: str, tests: list[str], where: str) -> str:
    """The function of a program that its tests call first.
    Raises UserError: program or tests are not Python, or no test calls any of its functions."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # strange escapes in strings, which Python takes
            body = ast.parse(program).body
            nodes = list(ast.walk(ast.parse("\n".join(tests))))
    except (SyntaxError, ValueError, RecursionError) as error:
        refuse(where, f"a program or test that is no Python ({error})", "both are Python")
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    names = [node.func for node in nodes if isinstance(node, ast.Call)]
    functions = [name for name in names if isinstance(name, ast.Name) and name.id in defined]
    if not functions:
        refuse(where, "tests that call no function of the program", "test_list calls it by name")
    return min(functions, key=lambda name: (name.lineno, name.col_offset)).id
