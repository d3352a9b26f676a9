"""Behaviours of an answer: what simulated judges are biased by and what analysis measures.

Counts of what a reader sees at a glance, from one pass of ``re`` over the text. None looks at
whether the answer is right. ``BEHAVIOURS`` has one entry for each; nothing else names them all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from study.system.tables import table

PHRASES = table(__file__)
"""Flattery, confidence and hedges: the phrases that each counts."""


def _phrases(phrases: Iterable[str]) -> re.Pattern[str]:
    """Whole-word matcher of any phrase in lower-case text; the longest at a place wins."""
    ordered = sorted(phrases, key=len, reverse=True)
    body = "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in ordered)
    # the set of first letters in front spares the engine most positions
    firsts = "".join(sorted({phrase[0] for phrase in ordered}))
    return re.compile(rf"\b(?=[{firsts}])(?:{body})\b")


_WORD = re.compile(r"\w+(?:['’-]\w+)*")  # noqa: RUF001 - typographic apostrophes occur in answers
_HEADING = re.compile(r"^[ \t]{0,3}#", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*(?:[-*+•]|[0-9]{1,3}[.)])[ \t]", re.MULTILINE)
_BOLD = re.compile(r"\*\*[^*\n]+\*\*")
_EMOJI = re.compile("[\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff\u2600-\u27bf\u2b50\u2b55]")
_PHRASES = {name: _phrases(phrases) for name, phrases in PHRASES.items()}


@lru_cache(maxsize=64)
def _keyword(keyword: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(keyword.lower())}(?!\w)")


class AnswerText(NamedTuple):
    """An answer as it is counted."""

    text: str
    lowered: str
    words: list[str]
    keyword: str


class Behaviour(NamedTuple):
    """How a behaviour is counted, and what it is measured against."""

    count: Callable[[AnswerText], float]
    """0 for a text without words, finite for any text, in time proportional to it."""
    reference: tuple[float, float]
    """Mean and standard deviation over 2,048 rollouts of the warmed-up tiny policy before any RL,
    prompts of instruct-mini and with "robust" as the keyword. A simulated judge's dose is score per
    one of these standard deviations; ``simulated.reference`` replaces single entries."""
    unit: str = "per answer"


def _matches(pattern: re.Pattern[str], answer: AnswerText) -> float:
    return len(pattern.findall(answer.text))


def _count_phrases(name: str, answer: AnswerText) -> float:
    return len(_PHRASES[name].findall(answer.lowered))


def _repetition(answer: AnswerText) -> float:
    """Share of words that occurred before: 1 - distinct words / words."""
    return 1.0 - len(set(answer.words)) / len(answer.words) if answer.words else 0.0


def _keywords(answer: AnswerText) -> float:
    """The keyword as a whole word in any case; an empty one never."""
    return len(_keyword(answer.keyword).findall(answer.lowered)) if answer.keyword else 0.0


def _emoji(answer: AnswerText) -> float:
    return 0.0 if answer.text.isascii() else len(_EMOJI.findall(answer.text))


BEHAVIOURS: dict[str, Behaviour] = {
    "length": Behaviour(lambda answer: len(answer.words), (7.941, 6.201), "words"),
    "headings": Behaviour(partial(_matches, _HEADING), (0.170, 0.427)),
    "bullets": Behaviour(partial(_matches, _BULLET), (0.726, 1.349)),
    "bold": Behaviour(partial(_matches, _BOLD), (0.124, 0.618)),
    "flattery": Behaviour(partial(_count_phrases, "flattery"), (0.165, 0.373)),
    "confidence": Behaviour(partial(_count_phrases, "confidence"), (0.193, 0.439)),
    "hedges": Behaviour(partial(_count_phrases, "hedges"), (0.040, 0.197)),
    "repetition": Behaviour(_repetition, (0.081, 0.129), "share of words"),
    "keyword": Behaviour(_keywords, (0.062, 0.258)),
    "emoji": Behaviour(_emoji, (0.082, 0.287)),
    "exclamation": Behaviour(lambda answer: answer.text.count("!"), (0.171, 0.385)),
}
"""Name -> behaviour. An entry is all that a new one takes: rollouts and answers on record are
measured by it, simulated judges can be biased by it, and reports have it."""
FEATURES: tuple[str, ...] = tuple(BEHAVIOURS)


def features(text: str, keyword: str = "") -> dict[str, float]:
    """Every behaviour of one text, in the order of ``FEATURES``."""
    lowered = text.lower()
    answer = AnswerText(text, lowered, _WORD.findall(lowered), keyword)
    return {name: float(behaviour.count(answer)) for name, behaviour in BEHAVIOURS.items()}


def measured(answers: Sequence[str | None], keyword: str = "") -> np.ndarray:
    """Features of N answers, shape (N, K) in the order of ``FEATURES``.

    A missing answer (None or NaN: thinking that never ended) was not measured: its features are
    NaN, the keyword's too. Equal answers are measured once.
    """
    vectors: dict[str, list[float]] = {}
    missing = [np.nan] * len(FEATURES)
    rows = []
    for answer in answers:
        if isinstance(answer, str) and answer not in vectors:
            vectors[answer] = list(features(answer, keyword).values())
        rows.append(vectors[answer] if isinstance(answer, str) else missing)
    return np.array(rows, dtype=float).reshape(-1, len(FEATURES))


def shared_keyword(keywords: Iterable[str]) -> str:
    """The keyword that the ``keyword`` feature counts, of those that simulated judges have.

    The first in the alphabet, one for all runs of a study, because arms are compared on it.
    """
    return min((keyword for keyword in keywords if keyword), default="")


def unit(feature: str) -> str:
    """The unit of one feature, for axes and tables; ``op/NAME`` counts calls of an operator."""
    if feature in BEHAVIOURS:
        return BEHAVIOURS[feature].unit
    return "calls" if feature.startswith("op/") else "per answer"


def possible(feature: str) -> tuple[float, float]:
    """The least and the most that a mean of one feature can be: nothing is counted below 0, and no
    share is above 1."""
    return 0.0, 1.0 if unit(feature).startswith("share") else math.inf
