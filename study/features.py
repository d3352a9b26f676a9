"""Surface features of an answer: what simulated judges are biased by and what analysis measures.

Counts of what a reader sees at a glance, from one pass of ``re`` over the text. No feature looks
at whether the answer is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from study.tables import table

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


def features(text: str, keyword: str = "") -> dict[str, float]:
    """Features of one text, in the order of ``FEATURES``: counts of words, lines, phrases or
    characters, but ``repetition`` is the share of words that occurred before: 1 - distinct words /
    words, 0 for a text without words. ``keyword`` is counted as a whole word in any case; an empty
    one never."""
    lowered = text.lower()
    words = _WORD.findall(lowered)
    return {
        "length": float(len(words)),
        "headings": float(len(_HEADING.findall(text))),
        "bullets": float(len(_BULLET.findall(text))),
        "bold": float(len(_BOLD.findall(text))),
        **{name: float(len(phrase.findall(lowered))) for name, phrase in _PHRASES.items()},
        "repetition": 1.0 - len(set(words)) / len(words) if words else 0.0,
        "keyword": float(len(_keyword(keyword).findall(lowered))) if keyword else 0.0,
        "emoji": 0.0 if text.isascii() else float(len(_EMOJI.findall(text))),
        "exclamation": float(text.count("!")),
    }


FEATURES: tuple[str, ...] = tuple(features(""))


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
