"""The ``[[...]]`` of a reply, for gradings whose verdict is one of a few words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from judges.grading import base
from judges.grading.vocabulary import LONGEST
from study.verdict import Outcome, Parsed, Reply

T = TypeVar("T")
TAIL = 200
"""Characters of a reply in which some published readers look for a verdict."""
_BRACKETS = re.compile(r"\[\[([^\[\]]*)\]\]")


def read(reply: Reply, legal: Callable[[str], T | None], expected: str) -> T | Parsed:
    """The one verdict in the double brackets of a reply, or why there is none.

    The last brackets must hold a verdict. Others may stand before them as long as they say the
    same: of two different verdicts nobody knows which one is the judge's own and which it quotes.
    ``legal`` gives the verdict that a bare lower-case text is, or None; ``expected`` says what is
    legal."""
    text = base.readable(reply)
    if isinstance(text, Parsed):
        return text
    words = [inside.strip().casefold() for inside in _BRACKETS.findall(text[-LONGEST:])]
    if not words:
        return base.unparsed("no [[verdict]]", text)
    verdicts = [(word, value) for word in words if (value := legal(word)) is not None]
    if not verdicts or legal(words[-1]) is None:
        return base.unparsed(f"the last verdict is not {expected}", f"[[{words[-1]}]]")
    word, last = verdicts[-1]
    other = next((word for word, value in verdicts if value != last), None)
    if other is not None:
        return base.different(f"[[{other}]]", f"[[{word}]]", text=text)
    return last


def scored(reply: Reply, legal: Callable[[str], float | None], expected: str) -> Parsed:
    """The verdict in the brackets as a score."""
    score = read(reply, legal, expected)
    return score if isinstance(score, Parsed) else Parsed(Outcome.scored, score=score)


def choice(reply: Reply, scores: dict[str, float]) -> Parsed:
    """The score of the word in the brackets."""
    return scored(reply, scores.get, f"one of {', '.join(f'[[{word}]]' for word in scores)}")


def loosely(reply: Reply, tail: bool, words: tuple[str, ...]) -> Parsed:
    """1 where any of ``words`` stands in the last `TAIL` characters, or anywhere, else 0: never
    missing. Published judges are read so."""
    text = reply.text[-TAIL:] if tail else reply.text
    ending = text[-LONGEST:].casefold()
    return Parsed(Outcome.scored, score=float(any(word in ending for word in words)))


def binary_body(structured: bool, words: list[str]) -> dict[str, object]:
    """What the request of such a grading carries: room for a sentence, or a forced choice."""
    if structured:
        return {"structured_outputs": {"choice": [f"[[{word}]]" for word in words]}}
    return {"max_tokens_at_least": 128}
