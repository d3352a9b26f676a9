"""One row of a verifiable set, whatever its official file looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Item:
    """A problem as a policy is given it, and what its rule needs to check an answer.

    Attributes:
        id: ``<dataset>:<split>:<row index in the official file, from 0>``.
        dataset: name of the set, such as ``gsm8k``.
        domain: math, qa or code.
        split: the official split, the second part of the id.
        group_key: rows with the same key never stand on two sides of a split.
        prompt: the problem as given to a policy: the set's prompt file filled in, context included.
        question: the bare problem.
        context: what a question is asked about; None where a set has none.
        answers: right answers. Any one of them counts; none where ``answerable`` is False, or
            where tests decide.
        answerable: False where "no answer" is the right answer.
        entry_point: the function that the tests call.
        code_prompt: HumanEval's prompt: imports, helpers and the head of the function.
        tests: test code, which no program and no model sees.
        public_tests: weaker tests, each a code of its own, that a workflow program may run.
        setup: code before the tests: MBPP's ``test_setup_code``.
        reference: a right program, or a worked solution where the source has one.
        alias: the set's own id, where that is no number.
        choices: (label, text) of each choice.
        meta: what the source says of the row besides: level and type, or a task's number.
    """

    id: str
    dataset: str
    domain: str
    split: str
    group_key: str
    prompt: str
    question: str
    context: str | None = None
    answers: tuple[str, ...] = ()
    answerable: bool = True
    entry_point: str = ""
    code_prompt: str = ""
    tests: str = ""
    public_tests: tuple[str, ...] = ()
    setup: str = ""
    reference: str = ""
    alias: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    meta: dict[str, Any] = field(default_factory=dict, hash=False)


def short_answer(domain: str, reference: str, answers: Sequence[str]) -> str:
    """The answer of a row's short form ``{problem, answer, type}``: the program where tests decide,
    else the first right answer; empty where "no answer" is right."""
    return reference if domain == "code" else next(iter(answers), "")
