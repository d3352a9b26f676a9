"""A straight line that stops at the ends of a scale: its mean under noise, and its fit.

Scores of a judge are cut at 0 and 1. Under normal noise the mean of a cut line bends before it
reaches an end (the mean of a doubly censored normal, as in Tobin 1958, Econometrica 26).
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

SEARCHED = 30
"""Most iterations of a fit."""
ROUNDED = (0.0, 1.0, 1.5)
"""Spreads that are tried, in SDs of the noise: an end that is sharp, as where the score is a share
of criteria, and two that noise rounds."""
TIED = 1e-3
"""Log likelihoods that lie closer together do not tell one spread from another."""


def clipped_mean(
    line: np.ndarray, spread: np.ndarray | float, low: float, high: float
) -> np.ndarray:
    """Mean of line + spread N(0, 1) cut at the ends of the scale."""
    return _mean_and_rise(line, np.maximum(spread, 1e-9), low, high)[0]


def fitted(
    t_Q: np.ndarray,
    n_B_Q: np.ndarray,
    y_B_Q: np.ndarray,
    sd_B: np.ndarray,
    luck_B_3: np.ndarray,
    low: float,
    high: float,
) -> np.ndarray:
    """Least squares of clip(level + slope t + spread N) on means of n scores: level, slope, spread
    and the place of the spread among `ROUNDED` SDs of the noise, (B, 4).

    Where the means do not tell how round the ends are, a straight line to a sharp end is taken.

    Args:
        t_Q: what the means are of.
        n_B_Q: how many scores each mean is of.
        y_B_Q: the means.
        sd_B: SD of a score around the line.
        luck_B_3: log likelihood that is added to that of each spread. With Gumbel numbers a spread
            is drawn as often as it is likely.
        low, high: the ends; infinite for none.
    """
    n = np.maximum(n_B_Q.sum(axis=1), 1)
    t_mean, y_mean = (n_B_Q @ t_Q) / n, (n_B_Q * y_B_Q).sum(axis=1) / n
    away = t_Q - t_mean[:, None]
    spread_of_t = np.maximum((n_B_Q * away**2).sum(axis=1), 1e-12)
    slope = (n_B_Q * away * (y_B_Q - y_mean[:, None])).sum(axis=1) / spread_of_t
    line = np.stack([y_mean - slope * t_mean, slope], axis=1)
    if np.isinf(low) and np.isinf(high):
        return np.column_stack([line, np.zeros((len(line), 2))])
    best, likely = np.zeros((len(line), 4)), np.full(len(line), -np.inf)
    for place, times in enumerate(ROUNDED):
        spread = times * sd_B
        line_there, squares = _search(t_Q, n_B_Q, y_B_Q, line, spread, low, high)
        how = luck_B_3[:, place] - squares / (2 * np.maximum(sd_B, 1e-6) ** 2)
        better = how > likely + TIED
        likely = np.where(better, how, likely)
        here = np.column_stack([line_there, spread, np.full(len(line_there), place)])
        best = np.where(better[:, None], here, best)
    return best


def refitted(
    t_Q: np.ndarray,
    n_B_Q: np.ndarray,
    y_B_Q: np.ndarray,
    curve_B_4: np.ndarray,
    low: float,
    high: float,
) -> np.ndarray:
    """`fitted` to means that changed a little, with the spread that was found, (B, 4)."""
    spread = curve_B_4[:, 2]
    line, _ = _search(t_Q, n_B_Q, y_B_Q, curve_B_4[:, :2], spread, low, high)
    return np.column_stack([line, curve_B_4[:, 2:]])


def _search(
    t_Q: np.ndarray,
    n_B_Q: np.ndarray,
    y_B_Q: np.ndarray,
    start_B_2: np.ndarray,
    spread_B: np.ndarray,
    low: float,
    high: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Level and slope (B, 2) for a spread, by Levenberg's damped steps, and their squares (B,).
    What has arrived is not looked at again."""
    design = np.stack([np.ones_like(t_Q), t_Q], axis=1)
    products = np.stack([np.ones_like(t_Q), t_Q, t_Q**2], axis=1)
    lines, all_squares = np.array(start_B_2, dtype=float), np.empty(len(start_B_2))
    at, here = np.arange(len(start_B_2)), lines
    n, y, size = n_B_Q, y_B_Q, np.maximum(spread_B[:, None], 1e-9)
    counts, damping = n_B_Q.sum(axis=1), np.full(len(start_B_2), 1e-6)
    mean, rises = _mean_and_rise(here @ design.T, size, low, high)
    rest = y - mean
    squares = (n * rest**2).sum(axis=1)
    for _ in range(SEARCHED):
        weighed = n * rises
        ones, once, twice = ((weighed * rises) @ products).T
        ridge = damping * counts
        gram = np.stack([ones + ridge, once, once, twice + ridge], axis=1).reshape(-1, 2, 2)
        step = np.linalg.solve(gram, ((weighed * rest) @ design)[..., None])[..., 0]
        proposal = here + step
        mean, rises_there = _mean_and_rise(proposal @ design.T, size, low, high)
        rest_there = y - mean
        squares_there = (n * rest_there**2).sum(axis=1)
        good = squares_there < squares
        here = np.where(good[:, None], proposal, here)
        rest = np.where(good[:, None], rest_there, rest)
        rises = np.where(good[:, None], rises_there, rises)
        squares = np.where(good, squares_there, squares)
        damping = np.where(good, np.maximum(damping / 10, 1e-9), np.minimum(damping * 10, 1e6))
        lines[at], all_squares[at] = here, squares
        going = (abs(step) >= 1e-7).any(axis=1)
        if not going.any():
            break
        if not going.all():
            at, here, rest, rises = at[going], here[going], rest[going], rises[going]
            n, y, size, counts = n[going], y[going], size[going], counts[going]
            squares, damping = squares[going], damping[going]
    return lines, all_squares


def _mean_and_rise(
    line: np.ndarray, size: np.ndarray | float, low: float, high: float
) -> tuple[np.ndarray, np.ndarray]:
    """`clipped_mean` of a line, and how fast it rises with the line."""
    mean, rises = line, np.ones_like(line)
    if np.isfinite(low):
        excess, share = _mean_excess(low - line, size)
        mean, rises = mean + excess, rises - share
    if np.isfinite(high):
        excess, share = _mean_excess(line - high, size)
        mean, rises = mean - excess, rises - share
    return mean, rises


def _mean_excess(x: np.ndarray, size: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Mean of max(0, x + size N(0, 1)), and how often that is above 0."""
    unit = x / size
    share = ndtr(unit)
    return x * share + size * np.exp(-0.5 * np.minimum(unit**2, 1400.0)) / (2 * np.pi) ** 0.5, share
