"""Which prompts a judge is probed on: spread over all there are and away from the training prompts.

Facility location with conditional gain (Iyer et al. 2021, ALT; privacy hardness 1), by submodlib:
what goes in is checked, and prompts that would add nothing are chosen by a rule of our own. Random
and stratified selection stand beside it.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from study.errors import UserError

METHODS = ("facility", "random", "stratified")
BUCKETS = 512
MOST = 4096
"""Prompts that facility location takes: beyond, the kernel of similarities is the cost."""
NO_GAIN = 1e-9
_WORD = re.compile(r"\w+")


def choose(
    texts: Sequence[str],
    k: int,
    method: str = "facility",
    *,
    away: Sequence[str] = (),
    strata: Sequence[str] | None = None,
    seed: int = 0,
) -> list[int]:
    """Places of the k texts that are chosen, in ascending order. Raises UserError: k is not legal,
    there are too many candidates, or facility location was asked for and its library is not
    installed.

    Args:
        texts: N candidates.
        k: 1 to N.
        method: one of ``METHODS``.
        away: texts whose neighbourhood counts as covered already (facility).
        strata: one label per candidate (stratified).
        seed: of random and stratified.
    """
    if method not in METHODS:
        raise UserError(f"select={method} is not one of {', '.join(METHODS)}.")
    if not 1 <= k <= len(texts):
        raise UserError(
            f"n={k} prompts cannot be chosen from {len(texts)}. Give n from 1 to {len(texts)}."
        )
    if method == "random":
        return sorted(random.Random(f"probe {seed}").sample(range(len(texts)), k))
    if method == "stratified":
        return stratified(strata or ["all"] * len(texts), k, seed)
    if max(len(texts), len(away)) > MOST:
        raise UserError(
            f"select=facility takes at most {MOST} candidates and as many training prompts, but"
            f" there are {len(texts)} and {len(away)}. Type select=stratified, or lower"
            " task.eval_rows and task.train_rows."
        )
    if k == len(texts):
        return list(range(k))
    vectors = embed([*texts, *away])
    candidates, covered = vectors[: len(texts)], vectors[len(texts) :]
    away_N_M = candidates @ covered.T if len(away) else None
    return facility_location(candidates @ candidates.T, k, away_N_M)


def stratified(strata: Sequence[str], k: int, seed: int = 0) -> list[int]:
    """k places, each stratum by its share (largest remainders), at random inside a stratum.

    ``strata``: a label per candidate, shape (N,).
    """
    draw = random.Random(f"probe {seed}")
    sizes = Counter(strata)
    shares = {label: k * sizes[label] / len(strata) for label in sorted(sizes)}
    counts = {label: math.floor(share) for label, share in shares.items()}
    by_remainder = sorted(shares, key=lambda label: (counts[label] - shares[label], label))
    for label in by_remainder[: k - sum(counts.values())]:
        counts[label] += 1
    places_chosen: list[int] = []
    for label, count in counts.items():
        places = [place for place, stratum in enumerate(strata) if stratum == label]
        places_chosen += draw.sample(places, count)
    return sorted(places_chosen)


def embed(texts: Sequence[str]) -> np.ndarray:
    """TF-IDF of hashed words: (1 + log count) x log((1 + N) / (1 + texts with the word)) + 1.

    Returns (N, BUCKETS) rows of length 1 (all 0 for a text without words), nowhere negative.
    """
    counts = np.zeros((len(texts), BUCKETS))
    for place, text in enumerate(texts):
        for word, times in Counter(_WORD.findall(text.lower())).items():
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            counts[place, int.from_bytes(digest, "big") % BUCKETS] += times
    texts_with_word = (counts > 0).sum(axis=0)
    weights = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0.0)
    weights *= np.log((1 + len(texts)) / (1 + texts_with_word)) + 1
    length = np.linalg.norm(weights, axis=1, keepdims=True)
    return weights / np.where(length > 0, length, 1.0)


def facility_location(
    kernel_N_N: np.ndarray, k: int, away_N_M: np.ndarray | None = None
) -> list[int]:
    """The greedy choice of k places by what they cover, at least 1 - 1/e of the best there is.

    A choice covers the sum over all candidates of max(0, nearest chosen - nearest away). Where
    nothing more can be gained the rest are those least like any chosen or away, first place first.
    Raises UserError: the library is not installed.

    Args:
        kernel_N_N: similarities of two candidates or more, symmetric, not negative.
        k: 1 to N.
        away_N_M: their similarities to what counts as covered.
    """
    kernel = np.ascontiguousarray(kernel_N_N, dtype=float)
    n = len(kernel)
    away = np.zeros((n, 0)) if away_N_M is None else away_N_M
    places = [place for place, gain in _maximised(kernel, k, away) if gain > NO_GAIN]
    near = np.concatenate([kernel[:, places], away, np.zeros((n, 1))], axis=1).max(axis=1)
    while len(places) < k:
        free = [place for place in range(n) if place not in places]
        nearest = min(free, key=lambda place: (round(near[place], 9), place))
        places.append(nearest)
        near = np.maximum(near, kernel[:, nearest])
    return sorted(places)


def _maximised(kernel: np.ndarray, k: int, away: np.ndarray) -> list[tuple[int, float]]:
    """Places with their gains, as the library found them."""
    try:
        import submodlib
    except ImportError as missing:
        raise UserError(
            f"select=facility needs the package submodlib-py, which cannot be loaded ({missing})."
            " Install it with `pip install submodlib-py`, or type select=stratified."
        ) from missing
    n = len(kernel)
    # of what counts as covered only the nearest matters; without any, nothing is covered
    covered = away.max(axis=1, initial=0.0)[:, None]
    function = submodlib.FacilityLocationConditionalGainFunction(
        n=n, num_privates=1, data_sijs=kernel, private_sijs=covered
    )
    # the library refuses to choose all; the last place is then what is left
    gains = function.maximize(budget=min(k, n - 1), show_progress=False)
    return [(int(place), float(gain)) for place, gain in gains]
