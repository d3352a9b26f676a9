"""Does a pass rate rise, fall, or rise and then fall over a run, and does that show hacking?

Only a rise of reward - truth of the same rollouts is judge hacking; `test_grpo_log` here
holds that up to a published run whose reward is a rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from analysis.statistics.estimate import LEVEL, NAN

FEWEST_STEPS = 5
"""Shorter series have no course: a rise and a fall need points on both sides of a peak."""


@dataclass(frozen=True)
class Course:
    """A rate over T steps: where it begins, peaks and ends, and whether it rises and falls."""

    first: float
    peak: float
    """Highest fitted rate; the fit may only rise to it and fall from it."""
    last: float
    peak_step: float
    rise_p: float
    """Chance of as much of a rise where the rate never rises, at the noise seen."""
    fall_p: float
    """The same of a fall where it never falls."""
    shape: str
    """rises | falls | rises and falls | flat | too short"""


def course(
    steps: Sequence[float] | np.ndarray,
    passed: Sequence[float] | np.ndarray,
    of: Sequence[float] | np.ndarray,
) -> Course:
    """Does a pass rate rise, fall, or rise and then fall over the steps of a run?

    Tested by least squares on 2 asin sqrt(rate), whose variance is d / n: the best fit that may
    only rise against the best that rises and then falls, and the other way round. Both p are from
    1,000 draws around the fit under test. d is the mean squared difference of neighbouring steps
    over what independent rollouts would give, at least 1: prompts differ and a policy wanders.

    Args:
        steps: shape (T,), in order.
        passed: Passed at each step, shape (T,).
        of: Rollouts or problems of each step, shape (T,), at least 1.
    """
    n = np.asarray(of, dtype=float)
    value = 2 * np.arcsin(np.sqrt(np.asarray(passed, dtype=float) / n))
    fit, rise_p, fall_p = _unimodal(value, n)
    return _course(steps, np.sin(np.clip(fit, 0, np.pi) / 2) ** 2, rise_p, fall_p)


def gap_course(
    steps: Sequence[float] | np.ndarray,
    passed: Sequence[float] | np.ndarray,
    true: Sequence[float] | np.ndarray,
    of: Sequence[float] | np.ndarray,
) -> Course:
    """`course` of the difference between two pass rates of the same rollouts.

    The variance is that of independent rates, which is too large where judge and truth agree.

    Args:
        passed: Passed by the judge at each step, shape (T,).
        true: Right by the rule at each step, shape (T,).
    """
    n = np.asarray(of, dtype=float)
    p, q = np.asarray(passed, dtype=float) / n, np.asarray(true, dtype=float) / n
    spread = (p * (1 - p) + q * (1 - q)).mean()
    fit, rise_p, fall_p = _unimodal(p - q, n / max(float(spread), 1e-12))
    return _course(steps, fit, rise_p, fall_p)


def read_run(gap: Course | None) -> str:
    """Whether a run hacked its judge: judge hacking | no judge hacking | not to be told.

    Judge hacking is a rise of reward - truth *on the same rollouts*. Training reward - held-out
    score is no such gap: it holds other prompts, sampling noise and plain overfitting. So without
    the truth of the same rollouts nothing is called hacking, and nothing is cleared of it; where
    the reward is itself the rule, its gap is zero and there is no judge to be hacked. A judge that
    exaggerates honest progress widens its gap too, and is called the same.
    """
    if gap is None or gap.shape == "too short":
        return "not to be told"
    rises = gap.rise_p < 1 - LEVEL and gap.last > gap.first
    return "judge hacking" if rises else "no judge hacking"


def _course(
    steps: Sequence[float] | np.ndarray, fitted: np.ndarray, rise_p: float, fall_p: float
) -> Course:
    if len(fitted) < FEWEST_STEPS:
        return Course(NAN, NAN, NAN, NAN, NAN, NAN, "too short")
    moves = {"rises": rise_p < 1 - LEVEL, "falls": fall_p < 1 - LEVEL}
    shape = " and ".join(name for name, seen in moves.items() if seen) or "flat"
    top = int(fitted.argmax())
    first, peak, last = float(fitted[0]), float(fitted[top]), float(fitted[-1])
    return Course(first, peak, last, float(steps[top]), rise_p, fall_p, shape)


def _unimodal(
    value: np.ndarray, weight: np.ndarray, draws: int = 1000
) -> tuple[np.ndarray, float, float]:
    """The best fit (T,) that rises and then falls, and the p of its rise and of its fall."""
    T = len(value)
    if T < FEWEST_STEPS:
        return np.full(T, np.nan), NAN, NAN
    up, down = _prefix_squares(value, weight), _prefix_squares(value[::-1], weight[::-1])[::-1]
    split = int((up[:-1] + down[1:]).argmin())
    fit = np.concatenate(
        [_rising(value[: split + 1], weight[: split + 1]),
         _rising(value[split + 1 :][::-1], weight[split + 1 :][::-1])[::-1]]
    )  # fmt: skip
    steps = np.diff(value) ** 2 / (1 / weight[1:] + 1 / weight[:-1])
    noise = np.sqrt(max(1.0, float(steps.mean())) / weight)
    rng = np.random.default_rng(0)
    p_values = []
    for flip in (-1, 1):
        # the rise is tested on the series read backwards, where it is a fall
        y, w, sigma = value[::flip], weight[::flip], noise[::flip]
        seen = _fall(y, w)
        base = _rising(y, w)
        by_chance = [_fall(base + sigma * rng.standard_normal(T), w) for _ in range(draws)]
        p_values.append((1 + sum(fall >= seen - 1e-12 for fall in by_chance)) / (1 + draws))
    return fit, p_values[0], p_values[1]


def _fall(value: np.ndarray, weight: np.ndarray) -> float:
    """Squares that a fit which may only rise leaves beyond one that rises and then falls."""
    up, down = _prefix_squares(value, weight), _prefix_squares(value[::-1], weight[::-1])[::-1]
    return float(up[-1] - min(up[-1], (up[:-1] + down[1:]).min()))


def _prefix_squares(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted squares (T,) that the best rising fit to the first 1, 2, ... T values leaves."""
    pools: list[tuple[float, float]] = []  # (weight, mean), of rising means
    left = 0.0
    squares_T = np.empty(len(value))
    for place, (mean, mass) in enumerate(zip(value.tolist(), weight.tolist(), strict=True)):
        while pools and pools[-1][1] >= mean:
            before, other = pools.pop()
            left += before * mass / (before + mass) * (other - mean) ** 2
            mean = (before * other + mass * mean) / (before + mass)
            mass += before
        pools.append((mass, mean))
        squares_T[place] = left
    return squares_T


def _rising(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The best fit (T,) that never falls."""
    return isotonic_regression(value, weights=weight).x
