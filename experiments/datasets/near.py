"""Questions that are nearly the same, by MinHash (Broder 1997) over their words and word pairs.

A signature of `PERMUTATIONS` minima is cut into `BANDS` bands. Two questions that agree in a band
are compared, word by word: their Jaccard similarity is exact, and only which pairs are compared is
left to the signatures. A pair at the threshold of 0.8 is compared with probability 0.998.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from study.tasks.datasets.fields import address

PERMUTATIONS, BANDS = 80, 16
THRESHOLD = 0.8
"""Jaccard similarity from which two questions are nearly the same."""
BUCKET = 8
"""Questions of one band that are kept to compare with: equal templates would else take time in
proportion to the square of their number."""
_WORD = re.compile(r"\w+")


class Question(NamedTuple):
    """What two rows are compared by: the address of the context is empty where there is none."""

    text: str
    answers: frozenset[str]
    context: str


def question(text: str, answers: Sequence[str], context: str | None) -> Question:
    """The question of a row; answers are compared without regard to case."""
    lowered = frozenset(answer.strip().lower() for answer in answers)
    return Question(text, lowered, address(context) if context else "")


def leaks(one: Question, other: Question) -> bool:
    """Whether one of two questions that are nearly the same gives the other away.

    About passages: they share an answer or the passage. Others: they share an answer, have none,
    as code has, or are the same text. What is left are templates with other numbers.
    """
    shared = not one.answers.isdisjoint(other.answers)
    if one.context or other.context:
        return shared or one.context == other.context
    return shared or not (one.answers or other.answers) or address(one.text) == address(other.text)


def shingles(text: str) -> frozenset[str]:
    """The words and the pairs of neighbouring words of a text; of one without words, the text."""
    words = _WORD.findall(text.lower()) or [text]
    return frozenset(words).union(map(" ".join, itertools.pairwise(words)))


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard similarity: what two sets share, of what they have together."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def signatures(rows: Sequence[Question]) -> np.ndarray:
    """MinHash signatures, shape [len(rows), BANDS]: each band as one whole number."""
    from datasketch import MinHash

    sets = ([word.encode("utf-8", "surrogatepass") for word in shingles(row.text)] for row in rows)
    made = MinHash.generator(sets, num_perm=PERMUTATIONS, seed=1, hashfunc=zlib.crc32)
    width = PERMUTATIONS // BANDS
    bands = np.empty((len(rows), BANDS), dtype=np.uint64)
    mix = np.random.default_rng(1).integers(1, 2**63, width, dtype=np.uint64) | np.uint64(1)
    for place, signature in enumerate(made):
        bands[place] = (signature.hashvalues.reshape(BANDS, width) * mix).sum(axis=1)
    return bands


def pairs(
    rows: Sequence[Question], others: Sequence[Question] | None = None
) -> Iterator[tuple[int, int]]:
    """(place in ``rows``, place in ``others``) of questions that are nearly the same and give each
    other away. Without ``others`` each row is compared with those before it."""
    buckets: list[dict[int, list[int]]] = [{} for _ in range(BANDS)]
    if others is not None:
        for place, bands in enumerate(signatures(others)):
            _keep(buckets, bands.tolist(), place)
    kept = rows if others is None else others
    for place, marks in enumerate(signatures(rows)):
        bands = marks.tolist()
        near: set[int] = set()
        for bucket, band in zip(buckets, bands, strict=True):
            near.update(bucket.get(band, ()))
        words = shingles(rows[place].text) if near else frozenset()
        for other in sorted(near):
            alike = similarity(words, shingles(kept[other].text)) >= THRESHOLD
            if alike and leaks(rows[place], kept[other]):
                yield place, other
        if others is None:
            _keep(buckets, bands, place)


def _keep(buckets: list[dict[int, list[int]]], bands: list[int], place: int) -> None:
    for bucket, band in zip(buckets, bands, strict=True):
        members = bucket.setdefault(band, [])
        if len(members) < BUCKET:
            members.append(place)
