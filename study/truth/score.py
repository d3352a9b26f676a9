"""What a rule says of one answer, and the words for how it came to that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from study.truth.item import Item

LONGEST = 50_000
"""Characters of an answer that is read at all."""


class Ending(StrEnum):
    """How an answer was graded. Only `passed` is correct; the words from `unparsable` on are those
    of code, as `study.sandbox.calls.Outcome` has them, and say how the program ended."""

    PASSED = "passed"
    FAILED = "failed"
    """It was compared, and is another answer; or an assertion of the tests failed."""
    NO_ANSWER = "no_answer"
    """Nothing in the text is an answer."""
    TOO_LONG = "too_long"
    """The text, or the expression in it, is longer than any answer that is read."""
    TIMEOUT = "timeout"
    """The code, or the comparison of two expressions, was not done in its time."""
    MEMORY = "memory"
    KILLED = "killed"
    """It died by a signal: a crash, or a call that the filter kills for."""
    UNPARSABLE = "unparsable"
    """The code does not compile, or defines no such function."""
    RAISED = "raised"
    NOT_LITERAL = "not_literal"
    """The tests would have had to conclude from an object that is no built-in value."""
    EXITED = "exited"
    FORGED = "forged"
    OVERFLOW = "overflow"


@dataclass(frozen=True)
class Score:
    """What a rule says of one answer. Where it could say nothing there is None in its place.

    Attributes:
        correct: the one check behind the truth.
        values: ``f1`` and ``exact`` in [0, 1], where the set has them.
        extracted: what was compared, or run; None where the text holds no answer.
        outcome: a word of `Ending`.
        detail: one line for people.
    """

    correct: bool
    values: dict[str, float] = field(default_factory=dict, hash=False)
    extracted: str | None = None
    outcome: str = Ending.FAILED
    detail: str = ""


Rule = Callable[[Item, str], Score]
"""Scores an answer in this process, in time proportional to its length."""


def verdict(correct: bool, extracted: str | None, detail: str = "", **values: float) -> Score:
    """The score of an answer that was compared."""
    return Score(correct, values, extracted, Ending.PASSED if correct else Ending.FAILED, detail)


def no_answer() -> Score:
    """The score of a text in which nothing is an answer."""
    return Score(False, {}, None, Ending.NO_ANSWER)


def columns(score: Score) -> dict[str, bool | float | str | None]:
    """The columns of an answer with a score; ``score`` is the F1 where the set has one."""
    return {
        "correct": score.correct,
        "score": score.values.get("f1", float(score.correct)),
        "extracted": score.extracted,
        "outcome": str(score.outcome),
        "detail": score.detail,
    }
