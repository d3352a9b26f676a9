"""The task ``workflow-mini``: problems for a planted world of workflow programs.

Sums (math), functions of two lines (code) and questions about one fact (qa), each easy and hard,
4:3:3. The prompt of each is one line of its own. ``meta`` of an item has all that a simulated
executor says: the ``difficulty``, the ``right`` answer, and the ``wrong`` ones, of which the first
is the favourite of the model `MODEL`. The teacher writes programs in the short form.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from study.config.schema import Task
from study.rows import Row, RuleTruth, Truth
from study.system.tables import table
from study.tasks import generated, mixed_mini
from study.tasks.lessons import Lessons
from study.truth import numbers, qa
from study.truth.code import answer_code
from study.truth.item import Item
from study.truth.score import Score

DOMAINS = {
    f"{name}-{difficulty}": domain
    for name, domain in (("sums", "math"), ("functions", "code"), ("facts", "qa"))
    for difficulty in ("easy", "hard")
}
"""Data set -> its domain."""
MODEL = "sim"
"""Whose favourite wrong answers the items have."""
INVALID = 0.08
"""How often the teacher writes what is no program."""
HIDDEN = (0, 1, 2, 7)
"""What hidden tests call a function with; every wrong function differs in one."""
WORDS = Path(__file__).with_suffix(".toml")
_WORDS = table(__file__)


def is_favourite(item: Item, answer: str) -> bool:
    """Whether an answer is the favourite wrong one of its item."""
    favourite: str = item.meta["wrong"][0]
    if item.domain == "code":
        return answer_code(item, answer).strip() == favourite
    rule = numbers.score if item.domain == "math" else qa.squad
    return rule(replace(item, answers=(favourite,)), answer).correct


def answer(row: Row, draw: random.Random) -> str:
    """What the teacher writes: any of the programs of the row's domain, or, `INVALID` of the time,
    what is none."""
    lines = invalid(row.domain) if draw.random() < INVALID else programs(row.domain)
    return draw.choice(lines)


def programs(domain: str) -> list[str]:
    """The teacher's programs for one domain."""
    return _lines(domain, [*_WORDS["programs"], *(_WORDS["tested"] if domain == "code" else [])])


def invalid(domain: str) -> list[str]:
    """What the teacher writes in place of one."""
    return _lines(domain, _WORDS["invalid"])


def _lines(domain: str, templates: Iterable[str]) -> list[str]:
    maker = "CustomCodeGenerate" if domain == "code" else "Programmer"
    return [template.format(maker=maker) for template in templates]


def _item(dataset: str, group: str, question: str, right: str, *wrong: str) -> Item:
    """A problem with its right answer and the wrong ones, the favourite first."""
    others = [text for text in dict.fromkeys(wrong) if text != right]
    meta = {"difficulty": dataset.partition("-")[2], "right": right, "wrong": others}
    return replace(
        generated.blank(dataset, DOMAINS[dataset], group, question), answers=(right,), meta=meta
    )


def _sums(difficulty: str) -> Iterator[Item]:
    """Sums of two numbers, or of a number and a product; the favourite mistake carries wrongly, or
    adds first. The numbers are the group."""
    question: str = _WORDS["sums"][difficulty]
    if difficulty == "easy":
        cases = ((a, b, 1) for a in range(2, 40) for b in range(2, 40))
    else:
        cases = itertools.product(range(2, 13), repeat=3)
    for a, b, c in cases:
        right = a + b * c
        favourite = (a + b) * c if difficulty == "hard" else right + 10
        wrong = map(str, (favourite, right + 1, right - 1, right + 2))
        yield _item(
            f"sums-{difficulty}",
            " ".join(map(str, sorted((a, b, c)))),
            question.format(a=a, b=b, c=c),
            str(right),
            *wrong,
        )


def _functions(difficulty: str) -> Iterator[Item]:
    """Functions of two lines; the favourite mistake passes the public test. The function is the
    group."""
    easy = difficulty == "easy"
    factors = range(2, 16) if easy else range(2, 11)
    constants = itertools.product(factors, factors, (0,) if easy else range(1, 6))
    for (n, m, k), wording in itertools.product(constants, _WORDS["functions"][difficulty]):
        if easy:
            right, *wrong = (
                _program(first, second)
                for first, second in (
                    (f"x * {n}", f"y + {m}"),
                    (f"{n} + {m}", "x * y"),  # the same at 1
                    (f"x + {n}", f"y * {m}"),
                    (f"x * {n}", f"y - {m}"),
                )
            )
        else:
            right, *wrong = (
                _program(first, second)
                for first, second in (
                    (f"x + {n}", f"y * {m} - {k}"),
                    (f"{n} * {m}", f"x + y - {k}"),  # the same at 0
                    (f"x * {m}", f"y + {n} - {k}"),
                    (f"x + {n}", f"y * {m} + {k}"),
                )
            )
        values = {x: x * n + m if easy else (x + n) * m - k for x in HIDDEN}
        tests = [f"assert f({x}) == {value}" for x, value in values.items()]
        item = _item(
            f"functions-{difficulty}",
            f"{n} {m} {k}",
            wording.format(n=n, m=m, k=k),
            right,
            *wrong,
        )
        yield replace(
            item,
            answers=(),
            entry_point="f",
            tests="\n".join(tests),
            public_tests=(tests[1 if easy else 0],),
            reference=right,
        )


def _program(first: str, second: str) -> str:
    return f"def f(x):\n    y = {first}\n    return {second}"


def _facts(difficulty: str) -> Iterator[Item]:
    """A fact about somebody, or one each about two, of which one is asked for; the favourite
    mistake is the next word of the list, or the other's. What is told is the group."""
    names = mixed_mini.NAMES
    for words in mixed_mini.FACTS.values():
        values: list[str] = words["values"]
        for (place, value), (number, name) in itertools.product(
            enumerate(values), enumerate(names)
        ):
            others = [values[(place + step) % len(values)] for step in range(1, len(values))]
            statement = words["says"].format(name=name, value=value)
            if difficulty == "easy":
                cases = [(statement, ask, others) for ask in words["asks"]]
            else:
                neighbour = names[(number + 1) % len(names)]
                cases = [
                    (
                        f"{words['says'].format(name=neighbour, value=other)} {statement}",
                        words["asks"][0],
                        [other, *others],
                    )
                    for other in others
                ]
            for context, ask, wrong in cases:
                question = ask.format(name=name)
                item = _item(f"facts-{difficulty}", context, question, value, *wrong)
                yield replace(item, context=context)


def _items() -> dict[str, Iterator[Item]]:
    return {
        f"{name}-{difficulty}": make(difficulty)
        for name, make in (("sums", _sums), ("functions", _functions), ("facts", _facts))
        for difficulty in ("easy", "hard")
    }


class WorkflowMini(generated.Generated):
    """Problems for a planted world of workflow programs."""

    def __init__(self) -> None:
        super().__init__(DOMAINS, _items, WORDS)

    def truths_of(
        self,
        rows: Sequence[Row],
        answers: Sequence[str | None],
        scores_N: Sequence[Score | None],
    ) -> list[RuleTruth]:
        """Whether each answer is right; a wrong one that is the favourite says whose it is."""
        rule_truths = super().truths_of(rows, answers, scores_N)
        return [
            replace(truth, whose=MODEL)
            if isinstance(truth, Truth)
            and not truth.score
            and answer is not None
            and is_favourite(row.spec["item"], answer)
            else truth
            for row, answer, truth in zip(rows, answers, rule_truths, strict=True)
        ]

    def lessons(self, options: Task) -> Lessons:
        """The teacher's programs for rows to train on of all sets, whatever ``options`` are."""

        def texts() -> list[str]:
            items = itertools.chain.from_iterable(self.items["train"].values())
            lines = [
                line
                for domain in ("math", "code")
                for line in [*programs(domain), *invalid(domain)]
            ]
            return [*lines, *(item.prompt for item in items)]

        return Lessons(texts, self.lesson_rows, answer, (__file__, generated.__file__, str(WORDS)))


TASK = WorkflowMini()
