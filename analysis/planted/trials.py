"""What one estimator said over many replications of planted truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from analysis.statistics.estimate import LEVEL, Estimate


@dataclass(frozen=True)
class Trials:
    """What one estimator said over R replications: estimates and interval ends, each (R,).

    ``at_least`` marks what may be safer than it claims, as an exact test on whole numbers is: its
    coverage has no upper band.
    """

    truth: float
    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    nominal: float = LEVEL
    at_least: bool = False


class Check(Protocol):
    """Replications of some estimators on planted data, by the name of their row."""

    __qualname__: str

    def __call__(self, rng: np.random.Generator, count: int, /) -> dict[str, Trials]: ...


def trials(truth: float, estimates: Iterable[Estimate]) -> Trials:
    """What one estimator said, once for each replication."""
    ends = np.array([(each.value, each.low, each.high) for each in estimates], dtype=float)
    return Trials(truth, *ends.T)


def quiet(silent: np.ndarray) -> Trials:
    """A test as an interval: it holds 0 where the test was rightly silent, else nothing."""
    held = np.where(silent, 0.0, np.nan)
    return Trials(0.0, np.zeros(len(silent)), held, held)
