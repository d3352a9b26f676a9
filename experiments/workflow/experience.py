"""The experience buffer: programs that solved problems, to be shown for others like them.

A buffer is a pure function of the rows that it was given, so that a resumed run rebuilds it from
its records. A row enters where the rule says that its answer is right; with ``verified=False`` the
judge's word is enough, which is a treatment: a judge's errors then become examples.
"""

from __future__ import annotations

import ast
import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from experiments.data.near import THRESHOLD, shingles
from experiments.evaluation.selection import facility_location
from experiments.workflow.problem import Problem
from study.programs.rewards import RIGHT, places
from study.tasks.datasets.fields import address

Vectors = Callable[[Sequence[str]], "list[np.ndarray | None]"]
"""Problems -> their vectors of length 1 and one size, None for one that could not be had."""
VERSION = 1
"""Of the rows of a buffer."""
CAP = 100
"""Entries of one domain."""
MOST = 1024
"""Candidates of one domain among which `CAP` are chosen; the best totals beyond."""
LONGEST = 16_384
"""Characters of a program that is compared as Python; one that is longer is no valid program."""
MODES = ("cosine", "mmr", "facility")
NEAR = 0.95
"""Cosine above which two problems are nearly the same."""
RELEVANCE = 0.5
"""Of mmr: weight of likeness to the query; the rest is that of unlikeness to what is chosen."""
REASONS = ("unverified", "duplicate", "below")
"""Why a row is refused: its answer is not known to be right; the same program is kept for the same
problem; its total is unknown, under the quantile, or the domain is full of better or newer ones."""


@dataclass(frozen=True)
class Entry:
    """One executed program. ``correct`` is the judge's verdict from 0 to 1, ``verified`` whether
    the rule says that the answer is right; None where unknown. ``id`` names the problem."""

    id: str | int
    domain: str
    problem: str
    program: str
    group_key: str | int | None = None
    correct: float | None = None
    verified: bool | None = None
    total: float | None = None

    @cached_property
    def key(self) -> tuple[str, str, str]:
        """Equal for the same program on the same problem."""
        return self.domain, address(self.problem), normal_form(self.program)

    @property
    def order(self) -> tuple[Any, ...]:
        """Best total first, then by what the entry is: whatever the order of the rows was."""
        total = -self.total if self.total is not None else 0.0
        return self.domain, total, str(self.id), self.program, str(self.group_key)


@dataclass(frozen=True)
class Query:
    """A problem for which examples are looked for."""

    id: str | int | None
    domain: str
    problem: str
    group_key: str | int | None = None

    @classmethod
    def of(cls, problem: Problem) -> Query:
        """The query for a problem."""
        return cls(problem.id, problem.domain, problem.prompt, problem.group_key)


@dataclass(frozen=True)
class Buffer:
    """Entries in a fixed order, and how many rows were refused for each of `REASONS`."""

    entries: tuple[Entry, ...] = ()
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    verified: bool = True
    quantile: float = 0.0
    vectors: Vectors | None = field(default=None, compare=False)
    """Says how alike problems are; words do where it is None."""

    def updated(self, rows: Iterable[Entry]) -> Buffer:
        """The buffer after more rows: those of a step, or all at once."""
        refused = Counter(self.refused)
        admitted = []
        for row in rows:
            right = row.verified if self.verified else (row.correct or 0.0) > RIGHT
            if right and row.total is not None:
                admitted.append(row)
            else:
                refused["below" if right else "unverified"] += 1
        distinct: dict[tuple[str, str, str], Entry] = {}
        for entry in sorted((*self.entries, *admitted), key=lambda entry: entry.order):
            if distinct.setdefault(entry.key, entry) is not entry:
                refused["duplicate"] += 1
        admitted_entries: list[Entry] = []
        for domain in dict.fromkeys(entry.domain for entry in distinct.values()):
            candidates = [entry for entry in distinct.values() if entry.domain == domain]
            best = _best(candidates, self.quantile)
            refused["below"] += len(candidates) - len(best)
            admitted_entries += best
        return replace(
            self, entries=tuple(admitted_entries), refused={name: refused[name] for name in REASONS}
        )

    def retrieve(self, query: Query, mode: str = "cosine", k: int = 3) -> list[tuple[Entry, float]]:
        """At most k examples for a problem, each with its cosine, the first the most useful one.

        Never one of the problem itself, of its ``group_key``, or of nearly the same problem by
        their words; one program for each problem. What has no vector is not chosen, and for a
        problem that has none nothing is.
        """
        index = self._indexes.get(query.domain)
        if index is None:
            return []
        if self.vectors is None:
            return index.retrieve(query, mode, k)
        (vector,) = self.vectors([query.problem])
        return [] if vector is None else index.retrieve(query, mode, k, vector)

    @cached_property
    def _indexes(self) -> dict[str, _Index]:
        domains = dict.fromkeys(entry.domain for entry in self.entries)
        return {
            domain: _Index(
                [entry for entry in self.entries if entry.domain == domain], self.vectors
            )
            for domain in domains
        }

    @cached_property
    def sha(self) -> str:
        """Hash of the entries."""
        text = json.dumps([asdict(entry) for entry in self.entries], sort_keys=True)
        return hashlib.sha256(f"{VERSION} {text}".encode()).hexdigest()

    @property
    def contamination(self) -> float | None:
        """Share of the entries that the judge holds for right and the rule for wrong; None for an
        empty buffer. An entry of which the rule says nothing is not counted as wrong."""
        if not self.entries:
            return None
        wrong = [entry.verified is False and (entry.correct or 0) > RIGHT for entry in self.entries]
        return sum(wrong) / len(wrong)


def normal_form(program: str) -> str:
    """A program without what changes nothing: the layout and comments of Python, spaces of DSL."""
    if len(program) <= LONGEST:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.dump(ast.parse(program))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    return " ".join(program.split())


def _best(candidates: Sequence[Entry], quantile: float) -> list[Entry]:
    """Those of one domain that stay, in their order.

    Beyond `CAP` they are chosen by facility location: each candidate is covered by the most similar
    one that stays, times the geometric mean of both qualities, the rank shares of their totals.
    """
    totals = np.array([entry.total for entry in candidates], dtype=float)
    least = np.quantile(totals, quantile, method="lower")
    good = [entry for entry in candidates if entry.total is not None and entry.total >= least]
    if len(good) <= CAP:
        return good
    good = good[:MOST]
    _, vectors = _vectors([shingles(f"{entry.problem}\n{entry.program}") for entry in good])
    quality = np.sqrt(1 - places([entry.total or 0.0 for entry in good]) / len(good))
    kernel = (vectors @ vectors.T).toarray() * np.outer(quality, quality)
    return [good[place] for place in facility_location(kernel, CAP)]


def _vectors(shingles_N: Sequence[frozenset[str]]) -> tuple[Any, Any]:
    """The fitted TF-IDF of words and word pairs, and the N rows of length 1 that it makes."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer=iter)
    return vectorizer, vectorizer.fit_transform(shingles_N)


class _Index:
    """The entries of one domain by the words of their problems, or by their vectors."""

    def __init__(self, entries: Sequence[Entry], vectors: Vectors | None) -> None:
        self.entries = entries
        self.vectorizer, self.vectors = _vectors([shingles(entry.problem) for entry in entries])
        if vectors is None:
            self.known = np.ones(len(entries), dtype=bool)
            self.kernel = (self.vectors @ self.vectors.T).toarray()
        else:
            embedded = vectors([entry.problem for entry in entries])
            self.known = np.array([vector is not None for vector in embedded])
            size = max((len(vector) for vector in embedded if vector is not None), default=1)
            nothing = np.zeros(size)
            self.embedded = np.stack([nothing if each is None else each for each in embedded])
            self.kernel = np.maximum(self.embedded @ self.embedded.T, 0.0)
        self.held = (self.vectors > 0).astype(float)
        self.sizes = np.asarray(self.held.sum(axis=1)).ravel()

    def retrieve(
        self, query: Query, mode: str, k: int, embedding: np.ndarray | None = None
    ) -> list[tuple[Entry, float]]:
        words = shingles(query.problem)
        # as the vectorizer transforms one set, several times as fast
        columns = map(self.vectorizer.vocabulary_.get, words)
        places = [place for place in columns if place is not None]
        weights = self.vectorizer.idf_[places]
        held, vector = np.zeros((2, self.vectors.shape[1]))
        held[places] = 1.0
        vector[places] = weights / np.sqrt((weights**2).sum() or 1.0)
        likeness = self.vectors @ vector
        shared = self.held @ held
        jaccard = shared / (self.sizes + len(words) - shared)
        near = (likeness > NEAR) | (jaccard >= THRESHOLD)
        if embedding is not None:
            likeness = self.embedded @ embedding
        free = self._free(query, likeness, near | ~self.known)
        if k < len(free) and mode == "mmr":
            free = self._marginal(free, likeness, k)
        elif k < len(free) and mode == "facility":
            quality = np.sqrt(np.maximum(likeness[free], 0.0))
            kernel = self.kernel[np.ix_(free, free)] * np.outer(quality, quality)
            chosen = [free[place] for place in facility_location(kernel, k)]
            free = sorted(chosen, key=lambda place: -likeness[place])
        return [(self.entries[place], float(likeness[place])) for place in free[:k]]

    def _free(self, query: Query, likeness: np.ndarray, near: np.ndarray) -> list[int]:
        """Places that may be shown, the most similar first."""
        free: list[int] = []
        taken: set[str] = set() if query.id is None else {str(query.id)}
        for place in np.argsort(-likeness, kind="stable").tolist():
            entry = self.entries[place]
            in_group = query.group_key is not None and str(entry.group_key) == str(query.group_key)
            if str(entry.id) in taken or in_group or near[place]:
                continue
            taken.add(str(entry.id))
            free.append(place)
        return free

    def _marginal(self, free: list[int], likeness: np.ndarray, k: int) -> list[int]:
        """Maximal marginal relevance (Carbonell and Goldstein 1998), in order of choice."""
        places = np.array(free)
        chosen: list[int] = []
        nearest = np.zeros(len(places))
        for _ in range(k):
            gains = RELEVANCE * likeness[places] - (1 - RELEVANCE) * nearest
            gains[np.isin(places, chosen)] = -np.inf
            chosen.append(int(places[gains.argmax()]))
            nearest = np.maximum(nearest, self.kernel[places, chosen[-1]])
        return chosen
