"""What may be looked at after every step: a confidence sequence, e-values, and e-BH.

All of it is for step means that are about normal, as those of many answers are, with a variance
that the steps tell: `analysis.onset.overopt` rests on the same. Bounds that need no more than that
a step's gap lies between -1 and 1 exist (Waudby-Smith and Ramdas, arXiv 2010.09686) and are of no
use here: docs/lab-book.md has how wide they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr

from analysis.statistics.estimate import LEVEL

TIGHTEST = 20
"""Steps at which the interval is as narrow as it can be, and the bets of an e-value are largest."""
FEWEST = 8
"""Steps from which one may look: fewer know their variance too badly."""


def running_mean(values_T: Sequence[float]) -> tuple[float, float, float]:
    """The mean of T steps and its 95 % interval, which holds the mean of what was to be expected of
    each step at *every* number of steps at once in 95 % of runs; NaN ends for fewer than `FEWEST`.

    Robbins' normal mixture with the variance that was seen (Waudby-Smith, Arbour, Sinha, Kennedy
    and Ramdas, arXiv 2103.06476, theorem 2.2).
    """
    values = np.asarray(values_T, dtype=float)
    steps = len(values)
    if steps < FEWEST:
        return float(values.mean()) if steps else math.nan, math.nan, math.nan
    scale = steps * _mixing() + 1
    spread = 2 * scale / (steps**2 * _mixing()) * math.log(scale**0.5 / (1 - LEVEL))
    half = float(_sd(values)) * spread**0.5
    mean = float(values.mean())
    return mean, mean - half, mean + half


def e_value(values_T: Sequence[float], most: float = 0.0) -> float:
    """How much the steps speak against a mean of ``most`` or less: above 20 at any step in 5 % of
    runs at most; 1 for fewer steps than `FEWEST`.

    The likelihood ratio of a half-normal mixture of larger means, in SDs of a step, one-sided
    (Howard, Ramdas, McAuliffe and Sekhon, arXiv 1810.08240, proposition 6).
    """
    values = np.asarray(values_T, dtype=float)
    steps = len(values)
    if steps < FEWEST:
        return 1.0
    sd = float(_sd(values))
    total = float((values - most).sum())
    if sd <= 0:
        return math.inf if total > 0 else 0.0
    scale = steps * _mixing() + 1
    total /= sd
    exponent = total**2 * _mixing() / (2 * scale)
    bend = log_ndtr(total * (_mixing() / scale) ** 0.5)
    return math.exp(min(exponent + bend + math.log(2) - math.log(scale) / 2, 700.0))


def e_bh(e_values_K: Sequence[float], rate: float = 1 - LEVEL) -> np.ndarray:
    """Which of K are called, so that of those called ``rate`` are wrong at most on average, however
    they go together: the k largest, of the most k with the k-th at K / (rate k) or more.

    Wang and Ramdas, arXiv 2009.02824.
    """
    values = np.asarray(e_values_K, dtype=float)
    order = np.argsort(-values, kind="stable")
    places = np.arange(1, len(values) + 1)
    enough = values[order] * places >= len(values) / rate
    called = np.zeros(len(values), dtype=bool)
    if enough.any():
        called[order[: places[enough].max()]] = True
    return called


def _mixing() -> float:
    """Variance of the mixture, in variances of a step, that is tightest at `TIGHTEST` steps
    (arXiv 2103.06476, appendix B.2)."""
    alpha = 1 - LEVEL
    return (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / TIGHTEST


def _sd(values_T: np.ndarray) -> float:
    """SD of a step. It is from the differences of neighbours, so that a mean that moves does not
    count as noise (von Neumann, 1941), and larger where they are few: by how much was tried."""
    differences = np.diff(values_T)
    count = len(differences)
    return float(np.sqrt((differences**2).sum() / (2 * count)) * (1 + 2 / count))
