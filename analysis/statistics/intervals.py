"""Run-level inference for few seeds: t intervals, differences paired by seed, exact sign flips.

The judge is applied to a run, so the run is the unit: steps, prompts and rollouts inside a run are
not replicates. A percentile bootstrap over 3 seeds covers 73 % where 95 % is claimed, so it is not
offered. A missing number stays missing: nothing here turns NaN into a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

LEVEL = 0.95
_EXACT_PAIRS = 20
"""Up to here all 2^n sign flips are counted (8 MB); beyond, 100,000 of them are drawn."""


@dataclass(frozen=True)
class Interval:
    """A mean over ``n`` units and its t interval; ``low`` and ``high`` are NaN without one."""

    mean: float
    low: float
    high: float
    n: int
    unit: str = "run"
    note: str = ""
    """Why there is no interval, or why not to trust it; empty where nothing is wrong."""


@dataclass(frozen=True)
class Paired(Interval):
    """A mean difference over seeds. ``p`` is the exact two-sided sign-flip p, ``p_t`` Student's."""

    p: float = float("nan")
    p_t: float = float("nan")


def mean_interval(values: Sequence[float], unit: str = "run", level: float = LEVEL) -> Interval:
    """Mean over units with a two-sided t interval; NaN entries are left out and counted in note.

    Args:
        values: One number per unit, shape (S,). n = 0 gives NaN, n = 1 a mean without interval.
    """
    given = np.asarray(values, dtype=float)
    kept = given[np.isfinite(given)]
    n, nan = len(kept), float("nan")
    notes = [f"{len(given) - n} of {len(given)} {unit}s have no value"] if n < len(given) else []
    if n == 0:
        return Interval(nan, nan, nan, 0, unit, notes[0] if notes else f"no {unit}s")
    mean = float(kept.mean())
    if n == 1:
        return Interval(mean, nan, nan, 1, unit, "; ".join([*notes, f"one {unit}, no interval"]))
    spread = float(kept.std(ddof=1))
    if spread <= 1e-12 * max(1.0, abs(mean)):
        spread = 0.0
        notes.append(f"no spread between {unit}s")
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * spread / n**0.5
    return Interval(mean, mean - half, mean + half, n, unit, "; ".join(notes))


def paired_difference(
    treated: pd.Series, base: pd.Series, unit: str = "seed pair", level: float = LEVEL
) -> Paired:
    """Mean of treated - base over the seeds that both have, with t interval and sign-flip p.

    Args:
        treated: One number per run, indexed by seed; runs of one seed are averaged first.
        base: The same for the arm compared with.
    """
    a, b = (one.astype(float).groupby(level=0).mean() for one in (treated, base))
    shared = a.index.intersection(b.index)
    differences = (a.loc[shared] - b.loc[shared]).to_numpy()
    found = mean_interval(differences, unit, level)
    kept = differences[np.isfinite(differences)]
    notes = [found.note] if found.note else []
    if 0 < found.n < 6:
        notes.append(f"{found.n} pairs cannot give an exact p below {2 / 2**found.n:.3g}")
    p_t = float("nan")
    if found.n > 1:
        half = found.high - found.mean
        if half > 0:
            p_t = float(stats.ttest_1samp(kept, 0.0).pvalue)
        elif found.mean == 0:
            p_t = 1.0
    return Paired(
        found.mean,
        found.low,
        found.high,
        found.n,
        unit,
        "; ".join(notes),
        sign_flip_p(kept),
        p_t,
    )


def sign_flip_p(differences: np.ndarray) -> float:
    """Two-sided p that the mean difference is zero, over all 2^n equally likely sign patterns.

    Exact up to 20 differences, a seeded draw of 100,000 patterns beyond. NaN for none.
    """
    kept = np.asarray(differences, dtype=float)
    kept = kept[np.isfinite(kept)]
    if len(kept) == 0:
        return float("nan")
    # Sums that are equal on paper must count as equal in floating point.
    seen = abs(kept.sum()) - 1e-9 * np.abs(kept).sum()
    if len(kept) <= _EXACT_PAIRS:
        sums = np.zeros(1)
        for difference in kept:
            sums = np.concatenate([sums + difference, sums - difference])
        return float((np.abs(sums) >= seen).mean())
    signs = np.random.default_rng(0).integers(0, 2, (100_000, len(kept)), dtype=np.int8) * 2 - 1
    return float((1 + (np.abs(signs @ kept) >= seen).sum()) / (1 + len(signs)))


def grouped_intervals(
    frame: pd.DataFrame, by: list[str], value: str = "value", level: float = LEVEL
) -> pd.DataFrame:
    """`mean_interval` of every group at once: columns ``by`` + mean, low, high, n, missing.

    ``frame`` holds one row per run in each group; ``missing`` counts the runs without a value.
    """
    grouped = frame.groupby(by, sort=True, observed=True)[value]
    table = grouped.agg(["mean", "std", "count", "size"]).reset_index()
    n = table["count"].to_numpy()
    t = np.where(n > 1, stats.t.ppf((1 + level) / 2, np.maximum(n - 1, 1)), np.nan)
    half = t * table["std"] / np.sqrt(np.maximum(n, 1))
    table["low"], table["high"] = table["mean"] - half, table["mean"] + half
    table["n"], table["missing"] = table["count"], table["size"] - table["count"]
    return table[[*by, "mean", "low", "high", "n", "missing"]]
