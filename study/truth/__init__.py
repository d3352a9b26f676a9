"""What a rule says of an answer to a row of a verifiable set: `score`, in batches, with a `Grader`.
What it reads of an answer: `extracted`.

Numbers, spans and choices are compared here, in linear time. Expressions and code go to children
that can be killed. `study.truth.score.Ending` lists the words for how an answer was graded.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Self

from study.errors import UserError
from study.sandbox import tiers
from study.sandbox.calls import Limits, Outcome, Result
from study.sandbox.grader import CANDIDATE, Pair
from study.sandbox.pool import Crew
from study.truth import choice, code, mathematics, numbers, qa
from study.truth.item import Item
from study.truth.mathematics import Comparison
from study.truth.score import LONGEST, Ending, Rule, Score

__all__ = ["Ending", "Grader", "Score", "extracted", "score"]

HERE: dict[str, Rule] = {
    "gsm8k": numbers.score,
    "sums": numbers.score,
    "squad2": qa.squad,
    "facts": qa.squad,
    "hotpotqa": qa.hotpot,
    "mmlu": choice.score,
    "commonsenseqa": choice.score,
    **dict.fromkeys(("sums-easy", "sums-hard"), numbers.score),
    **dict.fromkeys(("facts-easy", "facts-hard"), qa.squad),
}
"""Data set -> the rule that is computed in this process. Others go by their domain."""
MOST_REMEMBERED = 20_000


class Grader:
    """Owns the children that code and expressions are checked in, and remembers what they said.
    Use it as a context, or `close` it. Children start when they are first needed.

    Attributes:
        workers: how many answers are checked at once; code takes two processes for each.
        unsafe: go on without isolation where this machine has none.
        limits: what one program may use.
        faults: why answers are missing, and how many for each reason.
        lost: item id -> why the last answer to it that is missing could not be scored.
    """

    def __init__(self, workers: int = 2, unsafe: bool = False, limits: Limits = CANDIDATE) -> None:
        self.workers = workers
        self.unsafe = unsafe
        self.limits = limits
        self.faults: Counter[str] = Counter()
        self.lost: dict[str, str] = {}
        self._crews: dict[str, Crew] = {}
        self._memo: dict[tuple[str, bytes], Score] = {}
        self._lock = threading.Lock()

    @property
    def tier(self) -> tiers.Tier:
        """How code is isolated. Raises SandboxUnavailable: it cannot be, nor is it ``unsafe``."""
        return tiers.find(self.unsafe)

    def crew(self, name: str, start: Callable[[], Any]) -> Crew:
        """The crew of that name, whose workers ``start`` starts."""
        with self._lock:
            if name not in self._crews:
                self._crews[name] = Crew(self.workers, start)
            return self._crews[name]

    def recall(self, key: tuple[str, bytes]) -> Score | None:
        """What was said of this item and answer before."""
        return self._memo.get(key)

    def remember(self, key: tuple[str, bytes], verdict: Score) -> None:
        """Keep a score, and forget the oldest beyond ``MOST_REMEMBERED``."""
        with self._lock:
            self._memo[key] = verdict
            if len(self._memo) > MOST_REMEMBERED:
                del self._memo[next(iter(self._memo))]

    def close(self) -> None:
        """Finish what is queued and end every child."""
        with self._lock:
            crews = [self._crews.pop(name) for name in list(self._crews)]
        for crew in crews:
            crew.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def score(
    items: Sequence[Item], answers: Sequence[str | None], runner: Grader
) -> list[Score | None]:
    """What the rules say of N ``answers`` to N ``items``, the thinking already stripped: N scores,
    None where a child failed twice and not the answer, or a row of code has no tests. An answer of
    None is one that was cut off while it was thinking: it is wrong, also where "" is right.

    The same answer to the same item, or to one with the same tests, is checked once for the life of
    ``runner``.
    Raises UserError: an item of a domain that has no rule.
    Raises SandboxUnavailable: code cannot be isolated here, and the grader is not ``unsafe``.
    """
    keys = [
        (_address(item), b"" if answer is None else _hash(answer))
        for item, answer in zip(items, answers, strict=True)
    ]
    waiting: dict[tuple[str, bytes], Callable[[], Score | None]] = {}
    for key, item, answer in zip(keys, items, answers, strict=True):
        if key not in waiting:
            earlier = runner.recall(key)
            waiting[key] = (
                (lambda earlier=earlier: earlier) if earlier else _begin(item, answer, runner)
            )
    scores = {key: result() for key, result in waiting.items()}
    for key, verdict in scores.items():
        if verdict is not None:
            runner.remember(key, verdict)
    return [scores[key] for key in keys]


def extracted(item: Item, answer: str) -> str | None:
    """What the rule reads of ``answer``, its thinking already stripped, and nothing around it: the
    number, expression, label, span or program. None where it reads none, or the text is too long.
    Raises UserError: an item of a domain that has no rule."""
    if len(answer) > LONGEST:
        return None
    if item.domain == "code":
        return code.answer_code(item, answer).strip("\n")
    if HERE.get(item.dataset) is numbers.score:
        number = numbers.final_number(answer)
        return number and number.text + "%" * number.percent
    if item.domain == "math":
        return mathematics.final_expression(answer)
    if item.domain == "qa":
        return choice.chosen(item.choices, answer) if item.choices else qa.span(answer)
    raise _without_rule(item)


def _without_rule(item: Item) -> UserError:
    return UserError(
        f"{item.id} is of the domain {item.domain!r}, which has no rule. Legal types are math, qa,"
        " code. Correct the row's type."
    )


def _address(item: Item) -> str:
    """What an answer's score depends on: the item, or of code what its program is tested by."""
    if item.domain != "code":
        return item.id
    parts = (item.code_prompt, item.setup, item.tests, item.entry_point)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _hash(answer: str) -> bytes:
    return hashlib.sha256(answer.encode("utf-8", "surrogatepass")).digest()


def _unread(item: Item, outcome: Ending, detail: str) -> Score:
    """The score of an answer that no rule looks at."""
    measured = ("exact", "f1") if item.domain == "qa" and not item.choices else ()
    return Score(False, dict.fromkeys(measured, 0.0), None, outcome, detail)


def _begin(item: Item, answer: str | None, runner: Grader) -> Callable[[], Score | None]:
    """What waits for the score of an answer."""
    if answer is None:
        return lambda: _unread(item, Ending.NO_ANSWER, "it was cut off while it was thinking")
    if len(answer) > LONGEST:
        return lambda: _unread(item, Ending.TOO_LONG, f"{len(answer)} characters")
    if item.domain == "math" and item.dataset not in HERE:
        comparison = mathematics.compare(item, answer)
        if not isinstance(comparison, Comparison):
            return lambda: comparison
        crew = runner.crew("math", mathematics.Comparer)
        return _later(mathematics.score, item, answer, runner, crew.submit(comparison))
    if item.domain == "code":
        if not item.tests.strip():  # any program would pass
            return lambda: None
        tier = runner.tier
        crew = runner.crew("code", lambda: Pair(tier))
        program = code.task(item, answer, runner.limits)
        return _later(code.score, item, answer, runner, crew.submit(program))
    if item.dataset not in HERE and item.domain != "qa":
        raise _without_rule(item)
    rule = HERE.get(item.dataset, choice.score if item.choices else qa.hotpot)
    return lambda: rule(item, answer)


def _later(
    read: Callable[[Item, str, Result], Score],
    item: Item,
    answer: str,
    runner: Grader,
    waiting: Future[Result],
) -> Callable[[], Score | None]:
    def result() -> Score | None:
        graded = waiting.result()
        if graded.outcome is Outcome.SANDBOX:
            runner.faults[graded.detail] += 1
            runner.lost[item.id] = graded.detail
            return None
        return read(item, answer, graded)

    return result


def __dir__() -> list[str]:
    return [*__all__]
