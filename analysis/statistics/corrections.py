"""p-values corrected for how many there are.

They are those of statsmodels' ``multipletests``, which collects garbage at each call: with all
that an analysis has imported, that takes longer than the rest of its tables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def holm(p_N: ArrayLike) -> np.ndarray:
    """Holm's step-down p of each, none of which is NaN: below .05 in a family of null hypotheses
    with a chance of .05 at most."""
    p = np.asarray(p_N, dtype=float)
    order = np.argsort(p)
    return _in_place(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), order)


def benjamini_hochberg(p_N: ArrayLike) -> np.ndarray:
    """The false discovery rate at which each would be a discovery; none is NaN."""
    p = np.asarray(p_N, dtype=float)
    order = np.argsort(p)
    share = np.arange(1, len(p) + 1) / float(len(p))
    return _in_place(np.minimum.accumulate((p[order] / share)[::-1])[::-1], order)


def _in_place(corrected_N: np.ndarray, order_N: np.ndarray) -> np.ndarray:
    """Those of sorted p-values where these stood, 1 at most."""
    out = np.empty_like(corrected_N)
    out[order_N] = np.minimum(corrected_N, 1.0)
    return out
