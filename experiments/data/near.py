"""Questions that are nearly the same, by MinHash (Broder 1997) over their words and word pairs.

A signature of `PERMUTATIONS` minima is cut into `BANDS` bands. Two questions that agree in a band
and share what gives one away (`marks`) are compared, word by word: their Jaccard similarity is
exact, and only which pairs are compared is left to the signatures. A pair at the threshold of 0.8
is compared with probability 0.998, unless more than `BUCKET` questions agree in those bands and
share the same answer, passage or text.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from study.tasks.datasets.fields import address

PERMUTATIONS, BANDS = 80, 16
THRESHOLD = 0.8
"""Jaccard similarity from which two questions are nearly the same."""
BUCKET = 32
"""Questions of one band and one answer, passage or text that are kept to compare with: equal
templates of one answer would else take time in proportion to the square of their number."""
_WORD = re.compile(r"\w+")


class Question(NamedTuple):
    """What two rows are compared by. The answers of code are the functions that are asked for; the
    address of the context is empty where there is none."""

    text: str
    answers: frozenset[str]
    context: str


def question(
    text: str, answers: Sequence[str], context: str | None, function: str = ""
) -> Question:
    """The question of a row; answers are compared without regard to case."""
    lowered = frozenset(answer.strip().lower() for answer in (*answers, function) if answer)
    return Question(text, lowered, address(context) if context else "")


def leaks(one: Question, other: Question) -> bool:
    """Whether one of two questions that are nearly the same gives the other away.

    They share an answer, or the passage that they are about; without a passage, they are the same
    text, or have no answers. What is left are templates with other numbers or names.
    """
    shared = not one.answers.isdisjoint(other.answers)
    if one.context or other.context:
        return shared or one.context == other.context
    return shared or not (one.answers or other.answers) or address(one.text) == address(other.text)


def marks(row: Question) -> set[tuple[str, str]]:
    """What gives a question away: each two that `leaks` says of have one of these in common."""
    shared = {("answer", answer) for answer in row.answers}
    shared.add(("context", row.context) if row.context else ("text", address(row.text)))
    return shared if row.answers or row.context else shared | {("unanswered", "")}


def shingles(text: str) -> frozenset[str]:
    """The words and the pairs of neighbouring words of a text; of one without words, the text."""
    words = _WORD.findall(text.lower()) or [text]
    return frozenset(words).union(map(" ".join, itertools.pairwise(words)))


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard similarity: what two sets share, of what they have together."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def signatures(rows: Iterable[Question]) -> Iterator[list[int]]:
    """The MinHash signature of each row, as `BANDS` whole numbers."""
    from datasketch import MinHash

    minhash = MinHash(PERMUTATIONS, seed=1, hashfunc=zlib.crc32)
    width = PERMUTATIONS // BANDS
    mix = np.random.default_rng(1).integers(1, 2**63, width, dtype=np.uint64) | np.uint64(1)
    for row in rows:
        minhash.clear()
        minhash.update_batch([word.encode("utf-8", "surrogatepass") for word in shingles(row.text)])
        yield (minhash.hashvalues.reshape(BANDS, width) * mix).sum(axis=1).tolist()


class NearIndex:
    """Questions that others are compared with."""

    def __init__(self) -> None:
        self._rows: list[Question] = []
        self._buckets: dict[int, tuple[int, ...]] = {}

    def add(self, row: Question, bands: list[int]) -> None:
        """Compare what comes later with this row, too; its place is the number of those before."""
        place = (len(self._rows),)
        for key in _keys(row, bands):
            members = self._buckets.get(key, ())
            if len(members) < BUCKET:
                self._buckets[key] = members + place
        self._rows.append(row)

    def like(self, row: Question, bands: list[int]) -> Iterator[int]:
        """Places of the rows that are nearly the same and that give each other away."""
        near: set[int] = set()
        for key in _keys(row, bands):
            near.update(self._buckets.get(key, ()))
        words = shingles(row.text) if near else frozenset()
        for place in sorted(near):
            other = self._rows[place]
            if similarity(words, shingles(other.text)) >= THRESHOLD and leaks(row, other):
                yield place


def _keys(row: Question, bands: list[int]) -> Iterator[int]:
    """The buckets of a row. Two that should differ may be one: that costs a comparison."""
    return (hash((*pair, mark)) for mark in marks(row) for pair in enumerate(bands))


def pairs(rows: Sequence[Question]) -> Iterator[tuple[int, int]]:
    """(place, place of an earlier one) of rows that nearly repeat each other."""
    index = NearIndex()
    for place, bands in enumerate(signatures(rows)):
        yield from ((place, other) for other in index.like(rows[place], bands))
        index.add(rows[place], bands)


def crossing(
    sides: Mapping[str, Sequence[Question]],
) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """((side, place), (side, place)) of each row that nearly repeats one of an earlier side, and of
    that one. A row that does is not compared with later sides."""
    sides = {name: rows for name, rows in sides.items() if rows}
    index, places = NearIndex(), []
    for number, (name, rows) in enumerate(sides.items(), start=1):
        fresh = []
        for place, bands in enumerate(signatures(rows)) if len(sides) > 1 else ():
            match = next(index.like(rows[place], bands), None)
            if match is not None:
                yield (name, place), places[match]
            elif number < len(sides):
                fresh.append((place, bands))
        for place, bands in fresh:
            index.add(rows[place], bands)
            places.append((name, place))
