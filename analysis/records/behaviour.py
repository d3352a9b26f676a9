"""Units of the behaviours that every report measures, and how far a run moved on one of them."""

from __future__ import annotations

import math

import numpy as np

from study.features import BEHAVIOURS

TAIL = 0.1
"""Share of the recorded steps at each end that a shift compares."""


def unit(feature: str) -> str:
    """The unit of one feature, for axes and tables; ``op/NAME`` counts calls of an operator."""
    if feature in BEHAVIOURS:
        return BEHAVIOURS[feature].unit
    return "calls" if feature.startswith("op/") else "per answer"


def possible(feature: str) -> tuple[float, float]:
    """The least and the most that a mean of one feature can be: nothing is counted below 0, and no
    share is above 1."""
    return 0.0, 1.0 if unit(feature).startswith("share") else math.inf


def tenths(of_steps_T: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last tenth (rounded up) of what has one entry for each step, in order."""
    window = math.ceil(len(of_steps_T) * TAIL)
    return of_steps_T[:window], of_steps_T[len(of_steps_T) - window :]


def ends(values_T: np.ndarray) -> tuple[float, float]:
    """Means of the first and the last tenth of the steps; NaN where none is known."""
    parts = tenths(values_T)
    first, last = (float(np.nanmean(p)) if np.isfinite(p).any() else math.nan for p in parts)
    return first, last


def shift(values_T: np.ndarray) -> float:
    """How far a run moved: the mean of its last tenth of the steps minus that of the first.

    NaN for a single step, and where the first or the last tenth holds no value at all.
    """
    first, last = ends(values_T)
    return last - first if len(values_T) > 1 else math.nan
