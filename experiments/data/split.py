"""Which rows are train, validation and test rows: by official files, or by a cut of their groups.

A group is an article, the supporting titles of a question, a function: what makes one row easier
for whoever has seen another. The hash of a group decides, so that the order of rows does not.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from experiments.data import near
from experiments.data.near import Question

TEST, TRAIN, VALIDATION = "test", "train", "validation"


def rank(group: str, seed: int) -> int:
    """The place of a group in [0, 2**64), by its hash."""
    digest = hashlib.blake2b(f"{seed} {group}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest())


def validation(groups: Sequence[str], share: float, seed: int) -> set[str]:
    """The groups whose hash sets them aside."""
    return {group for group in set(groups) if rank(group, seed) < share * 2**64}


def cut(groups: Sequence[str], parts: Sequence[int], seed: int) -> set[str]:
    """The groups of the test part where rows are cut ``parts[0]`` to ``parts[1]``.

    ``groups`` has one entry a row. Groups are taken by their hash until the test part has its rows,
    ``n * parts[1] / sum(parts)`` to the nearest, halves up; a group that would pass it is left out.
    """
    total = sum(parts)
    n_test = (2 * len(groups) * parts[1] + total) // (2 * total)
    sizes = Counter(groups)
    test_groups, rows = set(), 0
    for group in sorted(sizes, key=lambda name: (rank(name, seed), name)):
        if rows + sizes[group] <= n_test:
            test_groups.add(group)
            rows += sizes[group]
    return test_groups


def joined(groups: Sequence[str], questions: Sequence[Question]) -> list[str]:
    """The groups, those of rows that nearly repeat each other made one where each was a row of its
    own."""
    sizes = Counter(groups)
    alone = [place for place, group in enumerate(groups) if sizes[group] == 1]
    parent = list(range(len(groups)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for one, other in near.pairs([questions[place] for place in alone]):
        parent[root(alone[one])] = root(alone[other])
    names: dict[int, str] = {}
    for place, group in enumerate(groups):
        names[root(place)] = min(names.get(root(place), group), group)
    return [names[root(place)] for place in range(len(groups))]


def repeated(keys: Iterable[Hashable]) -> set[int]:
    """Places of what had come before."""
    first: dict[Hashable, int] = {}
    return {place for place, key in enumerate(keys) if first.setdefault(key, place) != place}
