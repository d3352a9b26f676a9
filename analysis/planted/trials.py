"""What one estimator said over many replications of planted truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    class Check(Protocol):
        """Replications of some estimators on planted data, by the name of their row."""

        __qualname__: str

        def __call__(self, rng: np.random.Generator, count: int, /) -> dict[str, Trials]: ...


LEVEL = 0.95


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
