"""Bootstraps of sums over clusters: what onset, over-optimisation and judge profiles resample.

A mean is a ratio of sums, so a replicate needs only the sums of every cluster and how often it was
drawn: one pass over the rows, then a product of weights and sums. Intervals are percentile ones,
widened for few units, and refused in words below ten of them; docs/onset.md has the formulas.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from analysis.statistics.estimate import LEVEL, NAN, Estimate, ratio, ratio_se

FEWEST = 10
"""Fewest units of any resampled kind for which an interval is given."""
CHUNK = 1 << 17
"""Weights that are drawn at once: 1 MB, so that they stay in a core's cache."""


def resampled_sums(sums_C_M: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
    """Column sums over C clusters drawn with replacement, ``replicates`` times: (B, M)."""
    units = len(sums_C_M)
    out = np.empty((replicates, sums_C_M.shape[1]))
    step = min(max(1, CHUNK // max(1, units)), max(1, replicates))
    # One buffer for all chunks: fresh pages would cost as much as the draws.
    buffer = np.empty((step, units))
    for start in range(0, replicates, step):
        chunk = out[start : start + step]
        chunk[:] = draw_weights(rng, buffer[: len(chunk)]) @ sums_C_M
    return out


def draw_weights(rng: np.random.Generator, out_B_C: np.ndarray) -> np.ndarray:
    """How often each of C units is drawn in C draws with replacement, B times, into ``out_B_C``.
    Raises ValueError: that is not contiguous."""
    replicates, units = out_B_C.shape
    kind = np.uint16 if units <= 1 << 16 else np.int64
    places = rng.integers(0, units, (replicates, units), dtype=kind)
    out_B_C[:] = 0.0
    flat = np.reshape(out_B_C, -1, copy=False)
    np.add.at(flat, (places + np.arange(replicates)[:, None] * units).ravel(), 1.0)
    return out_B_C


def step_noise(
    step_P: np.ndarray, sums_P_2: np.ndarray, replicates: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Step means of a run and how they vary when the groups of each step are drawn anew.

    Returns steps (T,), means (T,), standard errors (T,) and deviations from the means (B, T), these
    stretched by sqrt(P / (P - 1)) so that their variance is right for P groups. A step of one group
    has NaN errors and deviations.

    Args:
        step_P: the step of every group.
        sums_P_2: sum over the group's rollouts, and how many they are (none 0).
    """
    steps = np.unique(step_P)
    means, errors = np.empty(len(steps)), np.empty(len(steps))
    noise = np.empty((replicates, len(steps)))
    for t, step in enumerate(steps):
        of_step = sums_P_2[step_P == step]
        groups = len(of_step)
        means[t], errors[t] = ratio(of_step.sum(axis=0)), ratio_se(of_step)
        stretch = (groups / (groups - 1)) ** 0.5 if groups > 1 else float("nan")
        noise[:, t] = stretch * (ratio(resampled_sums(of_step, replicates, rng)) - means[t])
    return steps, means, errors, noise


def widened(units: int, level: float = LEVEL) -> float:
    """Lower tail probability whose percentile interval fits a t interval over ``units``.

    Phi(-sqrt(n / (n - 1)) t), t the upper quantile with n - 1 degrees of freedom: the expanded
    percentile interval of Hesterberg (2015, The American Statistician 69(4)). Plain percentiles
    are too narrow by sqrt((n - 1) / n) and by the difference between t and the normal.
    """
    t = special.stdtrit(units - 1, (1 + level) / 2)
    return float(special.ndtr(-((units / (units - 1)) ** 0.5) * t))


def mean_by_bootstrap(
    values_C: np.ndarray, seed: int, unit: str, replicates: int = 4000
) -> Estimate:
    """Mean over C units with its percentile interval, `widened`: of paired differences, the paired
    bootstrap. No interval below `FEWEST` units, which ``note`` says."""
    units = len(values_C)
    if units < FEWEST:
        mean = float(np.mean(values_C)) if units else NAN
        return Estimate(mean, n=units, unit=unit, note=f"fewer than {FEWEST} {unit}s, no interval")
    sums_C_2 = np.stack([values_C, np.ones(units)], axis=1)
    means_B = ratio(resampled_sums(sums_C_2, replicates, np.random.default_rng(seed)))
    tail = widened(units)
    low, high = np.quantile(means_B, (tail, 1 - tail))
    return Estimate(float(np.mean(values_C)), float(low), float(high), units, unit)
