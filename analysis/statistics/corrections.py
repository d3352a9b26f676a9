"""Holm's correction, as statsmodels' ``multipletests`` makes it.

That one collects garbage each time, of all that an analysis has imported: .17 s, once an arm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def holm(p_N: ArrayLike) -> np.ndarray:
    """Holm's step-down p of each, none of which is NaN: below .05 in a family of null hypotheses
    with a chance of .05 at most."""
    p = np.asarray(p_N, dtype=float)
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(corrected, 1.0)
