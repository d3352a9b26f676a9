"""Several judges' scores as one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

PANEL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda scores: np.nanmean(scores, axis=0),
    "median": lambda scores: np.nanmedian(scores, axis=0),
    "worst": lambda scores: np.nanmin(scores, axis=0),
    "disagreement": lambda scores: np.nanmean(scores, axis=0) - np.nanstd(scores, axis=0),
}
"""Name -> one score of J judges' (J, M), NaN where one gave none. ``disagreement`` is the mean less
the standard deviation over the judges; Coste et al. (arXiv 2310.02743) take off the variance."""


def together(scores_J_P_G: np.ndarray, how: str) -> np.ndarray:
    """One score, (P, G), of the judges that gave one; NaN where none did."""
    has_score = np.isfinite(scores_J_P_G).any(axis=0)
    out = np.full(has_score.shape, np.nan)
    out[has_score] = PANEL[how](scores_J_P_G[:, has_score])
    return out
