"""Whose turn it is, and which row comes where: neither needs a list or a random state."""

from __future__ import annotations

import functools
import hashlib
import math
from array import array
from collections.abc import Sequence
from fractions import Fraction

ROUNDS = 8
MASK = (1 << 64) - 1


class Turns:
    """A sequence of turns in which every prefix keeps to the weights.

    Of t turns, one of weight w has had t * w / sum(weights), give or take less than one. Once some
    have had all turns that they may have, the others share what follows by their weights, and t is
    counted from there. Source: R. Tijdeman, "The chairman assignment problem", Discrete Mathematics
    32 (1980), 323-330, in whole numbers, so that no prefix is long enough for a rounding error.

    Args:
        weights: positive.
        limits: how many turns each may have in all; None is any number.
    """

    def __init__(self, weights: Sequence[float], limits: Sequence[int | None]) -> None:
        self._weights = [Fraction(str(weight)) for weight in weights]
        self._limits = [math.inf if limit is None else limit for limit in limits]
        self._turn_counts = [0] * len(limits)
        self._chosen, self._before = array("H"), array("Q")
        self._share()

    def at(self, position: int) -> tuple[int, int]:
        """Whose turn comes after ``position`` others, and how many that one had before.
        Raises IndexError: nobody has a turn left. A position takes time when it is asked for first,
        in proportion to how far it is from those before; after that, none."""
        while len(self._chosen) <= position:
            self._extend()
        return self._chosen[position], self._before[position]

    def _share(self) -> None:
        """Begin to count, with those that have turns left."""
        limits = enumerate(self._limits)
        self._open = [n for n, limit in limits if self._turn_counts[n] < limit]
        self._turn = 0
        if not self._open:
            return
        scale = math.lcm(*(self._weights[n].denominator for n in self._open))
        parts = {n: int(self._weights[n] * scale) for n in self._open}
        self._parts, self._whole = parts, sum(parts.values())
        self._had = dict.fromkeys(parts, 0)
        self._slack = max(1, 2 * len(parts) - 2)
        common = math.lcm(*parts.values())
        self._urgency = {n: self._slack * (common // part) for n, part in parts.items()}
        self._deadline = {n: (self._slack - 1) * (common // part) for n, part in parts.items()}
        self._release = {n: self._ready_at(n) for n in parts}

    def _ready_at(self, n: int) -> int:
        """The first turn at which ``n`` is at least 1 / slack turns behind its share."""
        share = self._slack * self._parts[n]
        return -(-self._whole * (1 + self._slack * self._had[n]) // share)

    def _extend(self) -> None:
        if not self._open:
            raise IndexError("nobody has a turn left")
        self._turn += 1
        ready = [n for n in self._open if self._release[n] <= self._turn]
        member = min(ready, key=self._deadline.__getitem__)
        self._chosen.append(member)
        self._before.append(self._turn_counts[member])
        self._turn_counts[member] += 1
        self._had[member] += 1
        self._deadline[member] += self._urgency[member]
        self._release[member] = self._ready_at(member)
        if self._turn_counts[member] == self._limits[member]:
            self._share()


def permuted(index: int, size: int, key: str) -> int:
    """Which of ``size`` rows comes at ``index`` in the order that ``key`` picks, both from 0.

    Over all indexes it is a permutation: a Feistel network on the two digits of the index to bases
    of about sqrt(size), walked on where it leaves the range. Source: J. Black and P. Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002.
    """
    left_base = math.isqrt(size - 1) + 1
    right_base = -(-size // left_base)
    keys = _round_keys(key)
    while True:
        left, right = divmod(index, right_base)
        for n in range(0, ROUNDS, 2):
            left = (left + _mixed(right, keys[n])) % left_base
            right = (right + _mixed(left, keys[n + 1])) % right_base
        index = left * right_base + right
        if index < size:
            return index


def _mixed(value: int, key: int) -> int:
    """A number that looks like 35 random bits; the multipliers are splitmix64's."""
    value = (value ^ key) * 0xBF58476D1CE4E5B9 & MASK
    return ((value ^ value >> 31) * 0x94D049BB133111EB & MASK) >> 29


@functools.lru_cache(maxsize=256)
def _round_keys(key: str) -> list[int]:
    digest = hashlib.blake2b(key.encode(), digest_size=8 * ROUNDS).digest()
    return [int.from_bytes(digest[8 * n : 8 * n + 8], "little") for n in range(ROUNDS)]
