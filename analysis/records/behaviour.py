"""Behaviour of the policy as numbers: features of every answer, and how far a run moved."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from study.features import FEATURES, features

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

UNITS: dict[str, str] = {
    "length": "words",
    "repetition": "share of words",
}
"""Unit of a feature where it is not a count per answer."""

TAIL = 0.1
"""Share of the recorded steps at each end that a shift compares."""


def unit(feature: str) -> str:
    """The unit of one feature, for axes and tables."""
    return UNITS.get(feature, "per answer")


def study_keyword(runs: pd.DataFrame) -> str:
    """The keyword that the ``keyword`` feature counts: the first one any judge was dosed with.

    One keyword for all runs, because arms are compared on it.
    """
    chosen = sorted(set(runs["keyword"]) - {""})
    return chosen[0] if chosen else ""


def feature_array(answers: pd.Series, keyword: str = "") -> np.ndarray:
    """Features of every answer, shape (N, K) in the order of ``FEATURES``.

    An answer that is missing (thinking that never ended) has NaN features: it was not measured.
    Equal answers are measured once.
    """
    codes, texts = pd.factorize(answers)
    values = np.full((len(texts) + 1, len(FEATURES)), np.nan)
    for row, text in enumerate(texts):
        values[row] = list(features(text, keyword).values())
    # factorize gives missing answers the code -1, which is the last row: all NaN.
    return values[codes]


def ends(values_T: np.ndarray) -> tuple[float, float]:
    """Means of the first and the last tenth of the steps (rounded up); NaN where none is known."""
    window = math.ceil(len(values_T) * TAIL)
    parts = values_T[:window], values_T[len(values_T) - window :]
    first, last = (float(np.nanmean(p)) if np.isfinite(p).any() else math.nan for p in parts)
    return first, last


def shift(values_T: np.ndarray) -> float:
    """How far a run moved: the mean of its last tenth of the steps minus that of the first.

    NaN for a single step, and where the first or the last tenth holds no value at all.
    """
    first, last = ends(values_T)
    return last - first if len(values_T) > 1 else math.nan
