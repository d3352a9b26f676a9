"""`Estimate`: one number with its interval, what it was taken over, and why not to trust it.

A mean over clusters is a ratio of sums: `group_sums`, `ratio`, and its standard error `ratio_se`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from study.screen import plural

LEVEL = 0.95
NAN = float("nan")
ENDS = (-float("inf"), float("inf"))


@dataclass(frozen=True)
class Estimate:
    """A number from ``n`` units with its interval; NaN where there is none, and ``note`` says why.

    An estimator with more to say of the same number, such as a p, adds fields of its own.
    """

    value: float
    low: float = NAN
    high: float = NAN
    n: int = 0
    unit: str = ""
    """What ``n`` counts: run, prompt, item."""
    level: float = field(default=LEVEL, kw_only=True)
    """Share of such intervals that hold the truth: the same down a table."""
    note: str = ""
    """Why there is no interval, or why not to trust it; empty where nothing is wrong."""

    def __str__(self) -> str:
        """``+12.3 [+4.5, +20.1] over 3 runs``"""
        over = f" over {plural(self.n, self.unit)}" if self.unit else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.value:+.4g} [{self.low:+.4g}, {self.high:+.4g}]{over}{note}"

    def row(self, value: str = "value", n: str = "n") -> dict[str, Any]:
        """One row of a table, in which ``value`` and ``n`` are the names of those two columns.

        Unit and level are the same down a table: its heading says them.
        """
        names = {"value": value, "n": n}
        return {
            names.get(each.name, each.name): getattr(self, each.name)
            for each in fields(self)
            if each.name not in ("unit", "level")
        }


NO_ESTIMATE = Estimate(NAN)


def around(
    value: float, half: float, n: int, unit: str, note: str = "", ends: tuple[float, float] = ENDS
) -> Estimate:
    """``value`` +- ``half``, cut at the ``ends`` of what can be."""
    low, high = max(float(value - half), ends[0]), min(float(value + half), ends[1])
    return Estimate(float(value), low, high, n, unit, note)


def columns(record: Any, **prefixes: str | None) -> dict[str, Any]:
    """A dataclass that holds Estimates as one row of a table, in the order of its fields.

    Args:
        record: the dataclass. An Estimate becomes its value under the field's own name, and its
            ends ``<prefix>low`` and ``<prefix>high``.
        prefixes: of fields whose ends are not called ``<field>_low`` and ``<field>_high``; None
            leaves the ends out.
    """
    row: dict[str, Any] = {}
    for name, value in vars(record).items():
        row[name] = value.value if isinstance(value, Estimate) else value
        prefix = prefixes.get(name, f"{name}_")
        if isinstance(value, Estimate) and prefix is not None:
            row |= {f"{prefix}low": value.low, f"{prefix}high": value.high}
    return row


def known_mean(values: np.ndarray) -> float:
    """Mean of the finite values, NaN for none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else NAN


def known_means(values_N: np.ndarray) -> np.ndarray:
    """Mean over the first axis of the finite values, NaN where there is none."""
    known = np.isfinite(values_N)
    count, total = known.sum(axis=0), np.where(known, values_N, 0.0).sum(axis=0)
    return np.divide(total, count, out=np.full(count.shape, NAN), where=count > 0)


def group_sums(values_P_G: np.ndarray) -> np.ndarray:
    """Sum over the rollouts of each group that have a value, and their number: (P, 2)."""
    finite = np.isfinite(values_P_G)
    return np.stack([np.where(finite, values_P_G, 0.0).sum(axis=1), finite.sum(axis=1)], axis=1)


def ratio(sums: np.ndarray) -> np.ndarray:
    """First over second of the last axis; NaN where the second is 0."""
    sums = np.asarray(sums, dtype=float)
    out = np.full(sums.shape[:-1], np.nan)
    return np.divide(sums[..., 0], sums[..., 1], out=out, where=sums[..., 1] != 0)[()]


def ratio_se(sums_C_2: np.ndarray) -> float:
    """Cluster-robust standard error of the ratio of sums, factor C / (C - 1); NaN for one."""
    clusters = len(sums_C_2)
    total = sums_C_2.sum(axis=0)
    if clusters < 2 or total[1] == 0:
        return float("nan")
    residuals = sums_C_2[:, 0] - ratio(total) * sums_C_2[:, 1]
    return float(np.sqrt(clusters / (clusters - 1) * (residuals @ residuals)) / abs(total[1]))


FLAT = 1e-6
"""Scores of a group that lie closer together than this are tied (float32 rounds at 1e-7)."""
