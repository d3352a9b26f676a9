"""Differences between arms, partially pooled: runs within arms, with known sampling variance.

The shift of run s of arm a is theta_a + u_as + e_as: its arm's effect, what the seed did, and
sampling error of known variance v_as. Effects are N(m, t^2) over arms and u is N(0, s^2). With
flat priors on m, t and s (Gelman 2006, Bayesian Analysis 1, 515) the posterior is a mixture of
normals over a grid of t and s. An arm that a few noisy runs put far out is drawn towards the
others, so that the largest of many needs no correction for having been picked; where the runs of
each arm agree, nothing is drawn anywhere.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr

from analysis.statistics.estimate import LEVEL, NAN, Estimate

GRID = 40
"""Values of each of t and s."""
WIDEST = 6.0
"""Largest of them, in SDs that the data show."""
FEWEST_ARMS, FEWEST_SEEDS = 3, 2


def pooled_differences(shift_A_S: np.ndarray, variance_A_S: np.ndarray) -> list[Estimate]:
    """theta_a - theta_0 of every arm but the first, with its 95 % interval.

    What all arms of a seed share, such as its prompts, is taken out of the runs and cancels in the
    difference.

    Args:
        shift_A_S: shifts of A arms, the base first, under S seeds.
        variance_A_S: sampling variance of each; NaN is unknown, and taken for 0.

    NaN with a note where there are fewer than three arms or two seeds, or a shift is not known.
    """
    arms, seeds = shift_A_S.shape
    if arms < FEWEST_ARMS or seeds < FEWEST_SEEDS or not np.isfinite(shift_A_S).all():
        why = f"pooling needs {FEWEST_ARMS} arms of the same {FEWEST_SEEDS} seeds or more"
        return [Estimate(NAN, n=seeds, unit="seed", note=why)] * (arms - 1)
    level = shift_A_S.mean(axis=1)
    rest = shift_A_S - level[:, None] - shift_A_S.mean(axis=0) + shift_A_S.mean()
    rest = rest * (arms / (arms - 1)) ** 0.5  # the seeds' means took 1 / A of its variance
    sampling = np.nan_to_num(variance_A_S)
    noise = float((rest**2).mean() + sampling.mean()) ** 0.5
    spread = max(float(level.std()), noise / seeds**0.5)
    if spread == 0:
        return [Estimate(0.0, 0.0, 0.0, seeds, "seed") for _ in range(arms - 1)]
    least = 1e-3 * spread  # of s: runs may agree to the last digit
    t, s = (
        axis.ravel()[:, None]
        for axis in np.meshgrid(
            np.linspace(0, WIDEST * spread, GRID),
            np.linspace(least, WIDEST * max(noise, least), GRID),
        )
    )
    weight = 1 / (s[..., None] ** 2 + sampling)  # (grid, A, S)
    total = weight.sum(axis=2)
    runs = level[None] + (weight * rest).sum(axis=2) / total
    between = 1 / (t**2 + 1 / total)
    precision = between.sum(axis=1, keepdims=True)
    mean = (between * runs).sum(axis=1, keepdims=True) / precision
    apart = level[None, :, None] + rest - runs[..., None]
    fit = (np.log(weight).sum(axis=(1, 2)) - (weight * apart**2).sum(axis=(1, 2))) / 2
    fit += (np.log(between / total).sum(axis=1) - (between * (runs - mean) ** 2).sum(axis=1)) / 2
    fit -= np.log(precision[:, 0]) / 2
    share = np.exp(fit - logsumexp(fit))
    pull = between / total  # towards the mean of all arms
    centre = (1 - pull) * runs + pull * mean
    variance = (1 - pull) / total + pull**2 / precision
    shared = pull * pull[:, :1] / precision  # covariance with the base
    return [
        _mixture(
            share,
            centre[:, arm] - centre[:, 0],
            variance[:, arm] + variance[:, 0] - 2 * shared[:, arm],
            seeds,
        )
        for arm in range(1, arms)
    ]


def _mixture(share: np.ndarray, centre: np.ndarray, variance: np.ndarray, n: int) -> Estimate:
    """Mean and quantiles of a mixture of normals, each of shape (grid,)."""
    sd = np.sqrt(np.maximum(variance, 1e-300))
    near = share > 1e-9
    share, centre, sd = share[near] / share[near].sum(), centre[near], sd[near]
    ends = float((centre - 40 * sd).min()), float((centre + 40 * sd).max())

    def quantile(p: float) -> float:
        return float(brentq(lambda x: float(share @ ndtr((x - centre) / sd)) - p, *ends))

    tail = (1 - LEVEL) / 2
    return Estimate(float(share @ centre), quantile(tail), quantile(1 - tail), n, "seed")
