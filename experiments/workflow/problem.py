"""A problem as programs and operators see it: never its answers, never its hidden tests."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.config.simulated import DOMAINS
from study.errors import UserError
from study.rows import Row
from study.system.files import Damaged, first_line, read_text
from study.truth.item import Item

Function = ast.FunctionDef | ast.AsyncFunctionDef
LEGAL = (
    'a JSON object {"id", "domain", "prompt"} with domain math, code or qa, and, for code,'
    ' "entry_point" and "public_tests"'
)


@dataclass(frozen=True)
class Problem:
    """What a program is given. Hidden tests and answers are left where the grader is."""

    id: str
    domain: str
    prompt: str
    entry_point: str = ""
    public_tests: tuple[str, ...] = ()
    group_key: str | int | None = None
    """What the problems of one source share."""


STAND_IN = Problem("problem", "math", "problem", "solve")
"""Where a program is validated and no row is given."""


def make_problem(record: Mapping[str, Any]) -> Problem:
    """The problem in a record. Raises UserError: a field is missing, or of another kind."""
    texts = {key: record.get(key) for key in ("id", "domain", "prompt")}
    texts["prompt"] = record.get("problem") if texts["prompt"] is None else texts["prompt"]
    texts["id"] = str(texts["id"]) if isinstance(texts["id"], int) else texts["id"]
    entry_point, tests = record.get("entry_point") or "", record.get("public_tests") or []
    tests = [tests] if isinstance(tests, str) else tests
    for key, value in {**texts, "entry_point": entry_point}.items():
        if not isinstance(value, str):
            raise UserError(f"The problem's {key} is {value!r} but should be a text: give {LEGAL}.")
    if not str(texts["prompt"]).strip():
        raise UserError(f"The problem's prompt is empty: give {LEGAL}.")
    if texts["domain"] not in DOMAINS:
        raise UserError(f"The problem's domain is {texts['domain']!r}: give {LEGAL}.")
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise UserError(
            "The problem's public_tests are not a list of texts. Give [] if there are none."
        )
    group_key = record.get("group_key")
    if isinstance(group_key, bool) or not isinstance(group_key, str | int | None):
        raise UserError("The problem's group_key is neither a text nor a whole number.")
    id, domain, prompt = map(str, texts.values())
    return Problem(id, domain, prompt, entry_point, tuple(tests), group_key)


def read_problem(source: str, key: str = "problem") -> Problem:
    """The problem that is given as JSON or as the path of a file with it; ``key`` is the option.
    Raises UserError: there is none."""
    text = source
    if not source.lstrip().startswith("{"):
        path = Path(source)
        try:
            text = read_text(path, f"Give {LEGAL}, or a file with one.")
        except FileNotFoundError as error:
            raise UserError(
                f"{key}={source} is not a file. Give {LEGAL}, or a file with one."
            ) from error
        except Damaged as error:
            raise UserError(f"{key}={error}") from error
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"The problem is not JSON ({first_line(error)}). Give {LEGAL}, or a file with one."
        ) from error
    if not isinstance(record, dict):
        raise UserError(f"The problem is a JSON {type(record).__name__}. Give {LEGAL}.")
    return make_problem(record)


def problem_of(row: Row, tests: str = "public") -> Problem:
    """A task's row as a problem. Of a row of code the public tests are those that its set has, or
    that the prompt shows; with ``tests=hidden`` they are the grader's, which is a treatment."""
    item = row.spec.get("item")
    domain = row.domain or "qa"
    if not isinstance(item, Item):
        return Problem(row.prompt_id, domain, row.prompt_text())
    public = (item.tests,) if tests == "hidden" and item.tests else _public_tests(item)
    return Problem(
        row.prompt_id, domain, row.prompt_text(), item.entry_point, public, item.group_key
    )


@functools.lru_cache(maxsize=4096)
def _tests_in(prompt: str) -> tuple[str, ...]:
    """The examples of the docstrings in a program, as assert statements."""
    import doctest

    try:
        functions = [node for node in ast.walk(ast.parse(prompt)) if isinstance(node, Function)]
        texts = [ast.get_docstring(function) or "" for function in functions]
        examples = [each for text in texts for each in doctest.DocTestParser().get_examples(text)]
    except (SyntaxError, ValueError):  # no Python, or examples that are laid out otherwise
        return ()
    return tuple(
        f"assert ({example.source.strip()}) == ({example.want.strip()})"
        for example in examples
        if example.want.strip() and "\n" not in example.source.strip()
    )


def _public_tests(item: Item) -> tuple[str, ...]:
    if item.public_tests:
        return item.public_tests
    if item.code_prompt:
        return _tests_in(item.code_prompt)
    lines = (line.strip() for line in item.tests.splitlines())
    return tuple(line for line in lines if line and line in item.prompt)
