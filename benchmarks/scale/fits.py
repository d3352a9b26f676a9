"""Curves through what was measured, and how far they may be trusted beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.optimize import nnls

LEVEL = 0.95
"""Of all intervals."""


@dataclass(frozen=True)
class Power:
    """The exponent of values = c * sizes^slope, with its interval of `LEVEL`."""

    slope: float
    r2: float
    low: float
    high: float

    def describe(self) -> str:
        return f"{self.slope:.2f} [{self.low:.2f}, {self.high:.2f}]"


def exponent(sizes: Sequence[float], values: Sequence[float]) -> Power:
    """Slope of log(values) on log(sizes), by least squares, with Student's interval of N - 2
    degrees of freedom, and R squared. Needs three sizes or more; values that are all equal have the
    exponent 0 without doubt."""
    logs = np.log(np.asarray(values, dtype=float))
    if np.ptp(logs) == 0:
        return Power(0.0, 1.0, 0.0, 0.0)
    fit = stats.linregress(np.log(np.asarray(sizes, dtype=float)), logs)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 2) * fit.stderr)
    slope = float(fit.slope)
    return Power(slope, float(fit.rvalue**2), slope - half, slope + half)


@dataclass(frozen=True)
class Line:
    """values = start + slope * sizes, by least squares."""

    start: float
    slope: float
    r2: float
    spread: float
    """Residual standard deviation, with N - 2 degrees of freedom."""
    sizes: tuple[float, ...]

    def at(self, size: float) -> tuple[float, float, float]:
        """The value at another size, and the interval in which one more measurement would lie."""
        middle, count = float(np.mean(self.sizes)), len(self.sizes)
        around = float(np.sum((np.asarray(self.sizes) - middle) ** 2))
        width = self.spread * np.sqrt(1 + 1 / count + (size - middle) ** 2 / around)
        width *= stats.t.ppf((1 + LEVEL) / 2, count - 2)
        value = self.start + self.slope * size
        return value, value - float(width), value + float(width)


def line(sizes: Sequence[float], values: Sequence[float]) -> Line:
    """Needs three sizes or more."""
    x, y = np.asarray(sizes, dtype=float), np.asarray(values, dtype=float)
    fit = stats.linregress(x, y)
    residuals = y - fit.intercept - fit.slope * x
    spread = float(np.sqrt(np.sum(residuals**2) / (len(x) - 2)))
    r2 = float(fit.rvalue**2)
    return Line(float(fit.intercept), float(fit.slope), r2, spread, tuple(map(float, x)))


def rates(rows: Sequence[Mapping[str, float]], values: Sequence[float]) -> dict[str, float]:
    """Non-negative cost of one unit of each column that makes the relative errors least: values =
    sum of column * rate."""
    names = list(rows[0])
    table = np.array([[row[name] for name in names] for row in rows]) / np.array(values)[:, None]
    costs, _ = nnls(table, np.ones(len(values)))
    return dict(zip(names, map(float, costs), strict=True))
