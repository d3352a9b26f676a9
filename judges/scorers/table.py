"""Real scorers as functions of an answer and, where they compare, of a reference.

Each gives a score in [0, 1], or None where it is undefined: a missing verdict, never a number. No
more than the first `MOST` characters of either text are read, so that no answer takes long.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from study.config import bounds
from study.config.schema import Scorer
from study.errors import UserError
from study.system.installed import install

RULE = "1"
"""Version; raised when the same settings would give other scores."""
MOST = 16_384
"""Characters of a text that are read."""
MOST_WORDS = 512
HIGHEST_EASE = 206.835 - 1.015 - 84.6
"""The reading ease of sentences of one word of one syllable; no text has more."""

_ASCII_WORD = re.compile(r"[a-z0-9]+")
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_TOKEN = re.compile(r"\w+")
_END = re.compile(r"[.!?](?=\s|$)|[\r\n]")


def rouge_l(answer: str, reference: str) -> float | None:
    """F1 of the longest common subsequence of words (Lin, 2004), without stemming; None where one
    of the texts has no ASCII letter or digit, of which alone its words are made."""
    words, wanted = (_ASCII_WORD.findall(text.lower()) for text in (answer, reference))
    if not words or not wanted:
        return None
    return 2 * _common(words, wanted) / (len(words) + len(wanted))


def _common(words: Sequence[str], wanted: Sequence[str]) -> int:
    """Length of the longest common subsequence, by bits (Hyyro, 2004): what the table of the
    library rouge-score says, which takes len(words) x len(wanted) steps of Python."""
    places: dict[str, int] = {}
    for place, word in enumerate(wanted):
        places[word] = places.get(word, 0) | 1 << place
    every = (1 << len(wanted)) - 1
    unmatched = every
    for word in words:
        here = unmatched & places.get(word, 0)
        unmatched = ((unmatched + here) | (unmatched - here)) & every
    return len(wanted) - unmatched.bit_count()


def chrf(answer: str, reference: str) -> float | None:
    """chrF (Popovic, 2015), F2 of character n-grams of up to 6, / 100; None of a blank text."""
    if not answer.strip() or not reference.strip():
        return None
    return _chrf().sentence_score(answer, [reference]).score / 100


@functools.cache
def _chrf() -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


def vader(answer: str, _: str = "") -> float | None:
    """Compound sentiment of VADER (Hutto and Gilbert, 2014) from -1 to 1, as (compound + 1) / 2; a
    text without any word of its lexicon has .5, a blank one None. No more than the first
    `MOST_WORDS` words and emoji are read: the library's time grows with their square."""
    text = " ".join(answer.split())
    if not text:
        return None
    analyzer = _vader()
    ends = (n for n, char in enumerate(text) if char == " " or char in analyzer.emojis)
    end = next(itertools.islice(ends, MOST_WORDS - 1, None), None)
    return (analyzer.polarity_scores(text[:end])["compound"] + 1) / 2


@functools.cache
def _vader() -> Any:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    return SentimentIntensityAnalyzer()


def flesch(answer: str, _: str = "") -> float | None:
    """Reading ease (Flesch, 1948), 206.835 - 1.015 words / sentences - 84.6 syllables / words, at
    least 0, / `HIGHEST_EASE`; None without a word. Marks and line breaks end sentences."""
    import syllapy

    words = _WORD.findall(answer)
    if not words:
        return None
    sentences = sum(bool(_WORD.search(part)) for part in _END.split(answer))
    syllables = sum(map(syllapy.count, words))
    ease = 206.835 - 1.015 * len(words) / sentences - 84.6 * syllables / len(words)
    return max(0.0, ease) / HIGHEST_EASE


def type_token(answer: str, _: str = "") -> float | None:
    """Share of different words among all (Templin, 1957), in lower case; None without a word."""
    words = _TOKEN.findall(answer.lower())
    return len(set(words)) / len(words) if words else None


def compression(answer: str, _: str = "") -> float | None:
    """1 / (1 + r) of the compression ratio r, UTF-8 bytes before / after zlib (Shaib et al., 2024):
    the more a text repeats itself, the less, about .5 where nothing does; None of a blank text."""
    if not answer.strip():
        return None
    text = answer.encode("utf-8", "surrogatepass")
    packed = len(zlib.compress(text))
    return packed / (packed + len(text))


Function = Callable[[str, str], float | None]
"""(answer, reference) -> score in [0, 1], or None. One that does not compare ignores the latter."""


@dataclass(frozen=True)
class Entry:
    """A scorer as a judge may name it."""

    function: Function
    distribution: str = ""
    """That it takes; empty for none."""
    compares: bool = False


SCORERS = {
    "rouge-l": Entry(rouge_l, compares=True),
    "chrf": Entry(chrf, "sacrebleu", compares=True),
    "vader": Entry(vader, "vaderSentiment"),
    "flesch": Entry(flesch, "syllapy"),
    "type-token": Entry(type_token),
    "compression": Entry(compression),
}
"""``judge.scorer.name`` -> scorer."""


def score(settings: Scorer, answer: str, reference: str) -> float | None:
    """The score in [0, 1] of an answer; None where it is undefined."""
    value = SCORERS[settings.name].function(answer[:MOST], reference[:MOST])
    return None if value is None else min(1.0, max(0.0, value))


def check_scorer(settings: Scorer) -> None:
    """Raises UserError: there is no such scorer, its library is not installed, or a reference that
    it needs is not named, or that it does not read is."""
    entry = bounds.pick("judge.scorer.name", settings.name, SCORERS, "vader")
    if entry.compares != bool(settings.reference):
        raise UserError(
            f"judge.scorer.name={settings.name} compares an answer with a reference, but none is"
            " named. Type judge.scorer.reference=teacher, or =row for that of the task's rows."
            if entry.compares
            else f"judge.scorer.reference={settings.reference} is not read: the scorer"
            f" {settings.name} compares nothing. Type judge.scorer.reference=''"
        )
    if entry.distribution and not _installed(entry.distribution):
        raise UserError(
            f"judge.scorer.name={settings.name} needs {entry.distribution}, which is not installed"
            f" here. Type {install('scorers')}"
        )


def scorer_identity(settings: Scorer) -> dict[str, object]:
    """All that decides a scorer's verdict, its library's version too. Raises UserError: there is no
    such scorer."""
    entry = bounds.pick("judge.scorer.name", settings.name, SCORERS, "vader")
    by = f"{entry.distribution} {_installed(entry.distribution)}" if entry.distribution else ""
    return {
        "scorer": settings.name,
        "reference": settings.reference,
        "rule": RULE,
        "library": f"zlib {zlib.ZLIB_RUNTIME_VERSION}" if settings.name == "compression" else by,
    }


def _installed(library: str) -> str:
    """The version of a distribution that is installed; empty where it is not."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""
