"""What an estimator said over many replications of planted truth, and how a check is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Protocol

import numpy as np

from analysis.statistics.estimate import LEVEL, Estimate


@dataclass(frozen=True)
class Trials:
    """What one estimator said over R replications: estimates and interval ends, each (R,).

    ``at_least`` marks what may be safer than it claims, as an exact test on whole numbers is: its
    coverage has no upper band. ``tolerance`` is how far coverage may lie from ``nominal`` by
    construction.
    """

    truth: float
    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    nominal: float = LEVEL
    at_least: bool = False
    tolerance: float = 0.0


class Check(Protocol):
    """Replications of some estimators on planted data, by the name of their row."""

    __qualname__: str

    def __call__(self, rng: np.random.Generator, count: int, /) -> dict[str, Trials]: ...


def trials(
    truth: float,
    estimates: Iterable[Estimate],
    nominal: float = LEVEL,
    at_least: bool = False,
    tolerance: float = 0.0,
) -> Trials:
    """What one estimator said, once for each replication."""
    ends = np.array([(each.value, each.low, each.high) for each in estimates], dtype=float)
    return Trials(float(truth), *ends.T, nominal, at_least, tolerance)


def silent(p: float) -> Estimate:
    """A test that should not reject, as an interval: it holds 0 where p > .05, else nothing.

    ``p`` may also be a truth value: True is silent.
    """
    return Estimate(0.0, 0.0, 0.0) if p > 0.05 else Estimate(0.0)


def replicated(
    truths: Mapping[str, float], at_least: bool = False
) -> Callable[[Callable[[np.random.Generator, int], Iterable[Estimate]]], Check]:
    """Makes a check of a function that plants one data set and gives one Estimate for each row.

    Args:
        truths: row -> what its estimator should find. The function gets the random numbers and the
            number of the replication.
        at_least: as in `Trials`, for all rows.
    """

    def check_of(once: Callable[[np.random.Generator, int], Iterable[Estimate]]) -> Check:
        @wraps(once)
        def check(rng: np.random.Generator, count: int) -> dict[str, Trials]:
            by_row = zip(*(once(rng, number) for number in range(count)), strict=True)
            return {
                row: trials(truth, estimates, at_least=at_least)
                for (row, truth), estimates in zip(truths.items(), by_row, strict=True)
            }

        return check

    return check_of
