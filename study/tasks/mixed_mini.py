"""The task ``mixed-mini``: sums, facts and functions, generated, for a policy of a CPU's size.

Three domains in the form of the prepared sets, 4:3:3, with their rules: sums to 12 (math), a
question about one fact that may not be told (qa), a function of two steps that hidden tests call
in the sandbox (code). The teacher has one habit in each domain, which is wrong in about half of
the rows: RL has that to mend.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from study.config.schema import Task
from study.rows import Row
from study.system.tables import table
from study.tasks import generated
from study.tasks.lessons import Lessons
from study.truth.item import Item

DOMAINS = {"sums": "math", "facts": "qa", "functions": "code"}
"""Data set -> its domain."""
LARGEST = 12
"""Of a sum."""
CONSTANTS = range(2, 8)
"""Of the steps of a function."""
ARGUMENTS = (0, 1, 7)
"""What hidden tests call a function with: three points on a line tell it from any other line, and
from most programs that are none."""
HABIT = 0.6
"""How often the teacher follows a habit where it is wrong."""
SLIP = 0.05
"""How often the teacher makes another mistake."""
_APPLY = {"*": operator.mul, "+": operator.add, "-": operator.sub}
WORDS = Path(__file__).with_suffix(".toml")
_WORDS = table(__file__)
NAMES: list[str] = _WORDS["names"]
FACTS: dict[str, dict[str, Any]] = _WORDS["facts"]
"""Kind of fact -> what says it, what asks for it, and its values."""


def answer(row: Row, draw: random.Random) -> str:
    """What the teacher answers. By habit, `HABIT` of the time: "many" where it is told
    to add, what it was told where that was not asked, no brackets where a function
    multiplies last. Otherwise right, but for a slip."""
    item: Item = row.spec["item"]
    habit, slip = draw.random() < HABIT, draw.random() < SLIP
    if row.domain == "math":
        if item.meta["habit"] and habit:
            return _WORDS["sums"]["evasion"]
        return str(item.meta["sum"] + (draw.choice((-1, 1)) if slip else 0))
    if row.domain == "qa":
        text = item.meta["value"] if item.answerable or habit else "unanswerable"
        values = FACTS[item.meta["kind"]]["values"]
        return draw.choice(["unanswerable", *values]) if slip else text
    (first, n), (second, m) = item.meta["steps"]
    m = draw.choice(CONSTANTS) if slip else m
    return _program(first, n, second, m, brackets=not habit)


def _program(first: str, n: int, second: str, m: int, brackets: bool = True) -> str:
    inner = f"x {first} {n}"
    inner = f"({inner})" if second == "*" and brackets else inner
    return f"def f(x): return {inner} {second} {m}"


def _right(item: Item) -> str:
    """A right answer."""
    return item.reference or next(iter(item.answers), "unanswerable")


def _blank(dataset: str, group: str, question: str) -> Item:
    return generated.blank(dataset, DOMAINS[dataset], group, question)


def _sums() -> Iterator[Item]:
    """Sums of two numbers of things; the numbers and the thing are the group."""
    words = _WORDS["sums"]
    pairs = [(a, b) for a in range(1, LARGEST) for b in range(1, LARGEST + 1 - a)]
    cases = itertools.product(pairs, words["things"], ("tells", "asks"))
    for (a, b), thing, kind in cases:
        question = words[kind].format(a=a, b=b, thing=thing)
        blank = _blank("sums", f"{min(a, b)} {max(a, b)} {thing}", question)
        yield replace(blank, answers=(str(a + b),), meta={"sum": a + b, "habit": kind == "asks"})


def _facts() -> Iterator[Item]:
    """A fact about somebody: each time it is asked for, and then something else that it does not
    tell; the fact is the group."""
    kinds = FACTS
    for kind, words in kinds.items():
        others = [other for other in kinds if other != kind]
        for value, name in itertools.product(words["values"], NAMES):
            context = words["says"].format(name=name, value=value)
            for place, other in enumerate(others):
                for asked_kind in (kind, other):
                    yield replace(
                        _blank(
                            "facts", context, kinds[asked_kind]["asks"][place].format(name=name)
                        ),
                        context=context,
                        answers=(value,) if asked_kind == kind else (),
                        answerable=asked_kind == kind,
                        meta={"kind": kind, "value": value},
                    )


def _functions() -> Iterator[Item]:
    """Functions of two steps, one of which multiplies; the function is the group."""
    words = _WORDS["functions"]
    steps = [pair for pair in itertools.permutations(words["steps"], 2) if "*" in pair]
    cases = itertools.product(steps, CONSTANTS, CONSTANTS, words["wordings"])
    for (first, second), n, m, wording in cases:
        phrases = [words["steps"][sign].format(n=c) for sign, c in ((first, n), (second, m))]
        question = wording.format(first=phrases[0], second=phrases[1])
        results = {x: _APPLY[second](_APPLY[first](x, n), m) for x in ARGUMENTS}
        tests = "\n".join(f"assert f({x}) == {result}" for x, result in results.items())
        yield replace(
            _blank("functions", f"{first} {n} {second} {m}", question),
            entry_point="f",
            tests=tests,
            reference=_program(first, n, second, m),
            meta={"steps": [[first, n], [second, m]]},
        )


def _items() -> dict[str, Iterator[Item]]:
    return {"sums": _sums(), "facts": _facts(), "functions": _functions()}


class MixedMini(generated.Generated):
    """Sums, facts and functions."""

    def __init__(self) -> None:
        super().__init__(DOMAINS, _items, WORDS)

    def lessons(self, options: Task) -> Lessons:
        """The teacher's answers to rows to train on of all three sets, whatever ``options`` are."""

        def texts() -> list[str]:
            items = itertools.chain.from_iterable(self.items["train"].values())
            answers = [_WORDS["sums"]["evasion"], *map(str, range(LARGEST + 2))]
            return [*answers, *(f"{item.prompt} {_right(item)}" for item in items)]

        return Lessons(texts, self.lesson_rows, answer, (__file__, generated.__file__, str(WORDS)))


TASK = MixedMini()
