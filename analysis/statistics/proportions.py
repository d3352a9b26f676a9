"""A binary judge against a binary truth: rates, Youden J, phi, AUC and the corrected prevalence.

Also pass rates over the steps of a run: whether one rises and then falls, and what that may mean.
A rate that the data cannot give is NaN with the reason in words, never the 0 or 1 that a formula
happens to leave. Every interval is at the 95 % level unless told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import ndtri
from scipy.stats import rankdata

from analysis.statistics.estimate import LEVEL, NAN, Estimate

FEWEST_STEPS = 5
"""Shorter series have no course: a rise and a fall need points on both sides of a peak."""


@dataclass(frozen=True)
class Confusion:
    """A binary judge against a binary truth: counts and rates with intervals."""

    tp: int
    fp: int
    fn: int
    tn: int
    tpr: Estimate
    fpr: Estimate
    youden_j: Estimate
    phi: Estimate


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


@dataclass(frozen=True)
class Reading:
    """What a run's reward, the truth of the same rollouts and a held-out score say together."""

    verdict: str
    """judge hacking | no judge hacking | not to be told"""
    words: str
    reward: Course
    held_out: Course
    gap: Course | None
    """Reward - truth of the same rollouts; None where there is no such truth."""


def wilson(successes: float, n: float, level: float = LEVEL) -> Estimate:
    """A proportion with Wilson's interval; NaN for n = 0.

    ``successes`` may be fractional (a half credit) and ``n`` an effective number of units: the
    binomial variance is the largest that credits in [0, 1] can have, so the interval is safe.
    """
    if n <= 0:
        return Estimate(NAN, note="no units")
    z2 = z_value(level) ** 2
    share = min(max(successes / n, 0.0), 1.0)
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * (share * (1 - share) / n + z2 / (4 * n * n))) ** 0.5 / (1 + z2 / n)
    # at a share of 0 or 1 the limit is that share itself; rounding must not move it
    low = 0.0 if share == 0 else max(centre - half, 0.0)
    high = 1.0 if share == 1 else min(centre + half, 1.0)
    return Estimate(share, low, high, int(n), level=level)


def auc(
    score: Sequence[float] | np.ndarray, truth: Sequence[float] | np.ndarray, level: float = LEVEL
) -> Estimate:
    """P(a true item scores above a false one), ties half, with DeLong's interval cut at [0, 1].

    Args:
        score: shape (N,); NaN is missing.
        truth: 0 or 1, shape (N,). NaN unless both occur, or if the scores have no spread.
    """
    s, t = complete(score, truth)
    one, zero = s[t == 1], s[t == 0]
    if len(one) == 0 or len(zero) == 0:
        return Estimate(NAN, n=len(s), note="truth has one class only")
    if constant(s):
        return Estimate(NAN, n=len(s), note="every score is the same")
    ranks = rankdata(np.concatenate([one, zero]))
    # share of the other class that each item beats
    beats = (ranks[: len(one)] - rankdata(one)) / len(zero)
    beaten = 1 - (ranks[len(one) :] - rankdata(zero)) / len(one)
    value = float(beats.mean())
    if min(len(one), len(zero)) < 2:
        return Estimate(value, n=len(s), note="a class has one item: no interval")
    variance = beats.var(ddof=1) / len(one) + beaten.var(ddof=1) / len(zero)
    half = z_value(level) * float(variance) ** 0.5
    note = "no spread between items: interval without width" if half == 0 else ""
    return Estimate(
        value, max(value - half, 0.0), min(value + half, 1.0), len(s), "item", level, note
    )


def confusion(
    verdict: Sequence[float] | np.ndarray,
    truth: Sequence[float] | np.ndarray,
    level: float = LEVEL,
) -> Confusion:
    """TPR, FPR (Wilson), Youden J (Newcombe's hybrid of the two) and phi (delta method).

    A rate whose class does not occur is NaN, and so is phi when a side has one value only.

    Args:
        verdict: 0 or 1, shape (N,); NaN is missing, and left out of every rate.
        truth: 0 or 1, shape (N,).
    """
    v, t = complete(verdict, truth)
    tp, fp = int(((v == 1) & (t == 1)).sum()), int(((v == 1) & (t == 0)).sum())
    fn, tn = int(((v == 0) & (t == 1)).sum()), int(((v == 0) & (t == 0)).sum())
    tpr, fpr = wilson(tp, tp + fn, level), wilson(fp, fp + tn, level)
    if tpr.n == 0 or fpr.n == 0:
        j = Estimate(NAN, n=len(v), note="truth has one class only")
    else:
        value = tpr.value - fpr.value
        low = value - ((tpr.value - tpr.low) ** 2 + (fpr.high - fpr.value) ** 2) ** 0.5
        high = value + ((tpr.high - tpr.value) ** 2 + (fpr.value - fpr.low) ** 2) ** 0.5
        j = Estimate(value, low, high, len(v), "item", level)
    return Confusion(tp, fp, fn, tn, tpr, fpr, j, _phi(tp, fp, fn, tn, level))


def rogan_gladen(
    passed: float,
    tested: int,
    true_positive: float,
    positives: int,
    false_positive: float,
    negatives: int,
    level: float = LEVEL,
) -> Estimate:
    """Prevalence p = (q - FPR) / J from a judge's pass rate q, cut to [0, 1], with its interval.

    The variance is [q(1-q)/n + (1-p)^2 FPR(1-FPR)/m0 + p^2 TPR(1-TPR)/m1] / J^2, so it carries the
    test sample and the calibration sample, which must be different items. A rate that was seen as
    exactly 0 or 1 enters its variance as (x + 1)/(m + 2): nothing seen is not nothing possible.
    NaN without calibration items of both classes or at J = 0; a J below 0 or whose interval holds
    0 is noted, for p is then hardly tied down, whatever the interval says.

    Args:
        passed: Items passed of ``tested`` items without truth.
        true_positive: Passed of ``positives`` (m1) calibration items whose truth is 1.
        false_positive: Passed of ``negatives`` (m0) calibration items whose truth is 0.
    """
    if min(tested, positives, negatives) < 1:
        return Estimate(NAN, n=tested, note="needs test items and calibration items of both kinds")
    q, tpr, fpr = passed / tested, true_positive / positives, false_positive / negatives
    j = tpr - fpr
    if abs(j) < 1e-12:
        return Estimate(NAN, n=tested, note="J is 0: the judge's verdicts say nothing of truth")
    p = (q - fpr) / j
    inside = min(max(p, 0.0), 1.0)
    variance = (
        _binomial(passed, tested)
        + (1 - inside) ** 2 * _binomial(false_positive, negatives)
        + inside**2 * _binomial(true_positive, positives)
    ) / j**2
    half = z_value(level) * variance**0.5
    notes = [f"cut from {p:.3g} to [0, 1]"] if p != inside else []
    spread = _binomial(false_positive, negatives) + _binomial(true_positive, positives)
    if j < 0:
        notes.append("J is below 0: the judge prefers what is wrong")
    elif j < z_value(level) * spread**0.5:
        notes.append("J is not told from 0: do not trust the interval")
    low, high = (min(max(end, 0.0), 1.0) for end in (p - half, p + half))
    return Estimate(inside, low, high, tested, "item", level, "; ".join(notes))


def course(
    steps: Sequence[float] | np.ndarray,
    passed: Sequence[float] | np.ndarray,
    of: Sequence[float] | np.ndarray,
    level: float = LEVEL,
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
    fitted = np.sin(np.clip(fit, 0, np.pi) / 2) ** 2
    return _course(steps, fitted, rise_p, fall_p, level)


def gap_course(
    steps: Sequence[float] | np.ndarray,
    passed: Sequence[float] | np.ndarray,
    true: Sequence[float] | np.ndarray,
    of: Sequence[float] | np.ndarray,
    level: float = LEVEL,
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
    return _course(steps, fit, rise_p, fall_p, level)


def read_run(reward: Course, held_out: Course, gap: Course | None, level: float = LEVEL) -> Reading:
    """Is a fall of the reward, or a widening distance to a held-out score, judge hacking?

    Judge hacking is a rise of reward - truth *on the same rollouts*. Training reward - held-out
    score is no such gap: it holds other prompts, sampling noise and plain overfitting. So without
    the truth of the same rollouts nothing is called hacking, and nothing is cleared of it; where
    the reward is itself the rule, its gap is zero and there is no judge to be hacked. A judge that
    exaggerates honest progress widens its gap too, and is called the same.
    """
    words = [f"reward {_course_words(reward)}, held-out score {_course_words(held_out)}"]
    if "falls" in reward.shape and held_out.shape == "rises":
        words.append(
            "the rollouts get worse while the policy that is tested does not: look at how "
            "rollouts are sampled, cut and parsed"
        )
    if gap is None:
        verdict = "not to be told"
        words.append("no truth of the same rollouts, so hacking is neither shown nor ruled out")
    elif gap.shape == "too short":
        verdict = "not to be told"
        words.append("too few steps to see the reward part from the truth")
    elif gap.rise_p < 1 - level and gap.last > gap.first:
        verdict = "judge hacking"
        words.append(f"reward - truth of the same rollouts {_course_words(gap)}")
    else:
        verdict = "no judge hacking"
        words.append("reward - truth of the same rollouts does not rise")
    return Reading(verdict, "; ".join(words), reward, held_out, gap)


def _course(
    steps: Sequence[float] | np.ndarray,
    fitted: np.ndarray,
    rise_p: float,
    fall_p: float,
    level: float,
) -> Course:
    if len(fitted) < FEWEST_STEPS:
        return Course(NAN, NAN, NAN, NAN, NAN, NAN, "too short")
    rises, falls = rise_p < 1 - level, fall_p < 1 - level
    shape = {
        (True, True): "rises and falls",
        (True, False): "rises",
        (False, True): "falls",
        (False, False): "flat",
    }[rises, falls]
    top = int(fitted.argmax())
    first, peak, last = float(fitted[0]), float(fitted[top]), float(fitted[-1])
    return Course(first, peak, last, float(steps[top]), rise_p, fall_p, shape)


def _course_words(one: Course) -> str:
    if one.shape == "too short":
        return f"has fewer than {FEWEST_STEPS} steps"
    if one.shape == "rises and falls":
        return (
            f"rises from {one.first:.3f} to {one.peak:.3f} at step {one.peak_step:g} and falls to "
            f"{one.last:.3f} (p {one.fall_p:.2g})"
        )
    moved = "shows no trend" if one.shape == "flat" else one.shape
    return f"{moved} from {one.first:.3f} to {one.last:.3f}"


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
    found = []
    for flip in (-1, 1):
        # the rise is tested on the series read backwards, where it is a fall
        y, w, sigma = value[::flip], weight[::flip], noise[::flip]
        seen = _fall(y, w)
        base = _rising(y, w)
        by_chance = [_fall(base + sigma * rng.standard_normal(T), w) for _ in range(draws)]
        found.append((1 + sum(one >= seen - 1e-12 for one in by_chance)) / (1 + draws))
    return fit, found[0], found[1]


def _fall(value: np.ndarray, weight: np.ndarray) -> float:
    """Squares that a fit which may only rise leaves beyond one that rises and then falls."""
    up, down = _prefix_squares(value, weight), _prefix_squares(value[::-1], weight[::-1])[::-1]
    return float(up[-1] - min(up[-1], (up[:-1] + down[1:]).min()))


def _prefix_squares(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted squares (T,) that the best rising fit to the first 1, 2, ... T values leaves."""
    pools: list[tuple[float, float]] = []  # (weight, mean), of rising means
    left = 0.0
    found = np.empty(len(value))
    for place, (mean, mass) in enumerate(zip(value.tolist(), weight.tolist(), strict=True)):
        while pools and pools[-1][1] >= mean:
            before, other = pools.pop()
            left += before * mass / (before + mass) * (other - mean) ** 2
            mean = (before * other + mass * mean) / (before + mass)
            mass += before
        pools.append((mass, mean))
        found[place] = left
    return found


def _rising(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The best fit (T,) that never falls."""
    return isotonic_regression(value, weights=weight).x


def _phi(tp: int, fp: int, fn: int, tn: int, level: float) -> Estimate:
    """Matthews correlation with its large-sample interval (multinomial delta method)."""
    n = tp + fp + fn + tn
    rows, columns = (tp + fp, fn + tn), (tp + fn, fp + tn)
    if min(*rows, *columns) == 0:
        return Estimate(NAN, n=n, note="verdict or truth has one value only")
    scale = (rows[0] * rows[1] * columns[0] * columns[1]) ** 0.5
    phi = (tp * tn - fp * fn) / scale
    a, b = (rows[0] - rows[1]) / n, (columns[0] - columns[1]) / n
    u, v = rows[0] * rows[1] / n**2, columns[0] * columns[1] / n**2
    variance = (
        1
        - phi**2
        + phi * (1 + phi**2 / 2) * a * b / (u * v) ** 0.5
        - 0.75 * phi**2 * (a**2 / u + b**2 / v)
    ) / n
    half = z_value(level) * max(variance, 0.0) ** 0.5
    note = "every item is right: interval without width" if half < 1e-9 else ""
    return Estimate(phi, max(phi - half, -1.0), min(phi + half, 1.0), n, "item", level, note)


def _binomial(successes: float, n: int) -> float:
    """Variance of a share; one that was seen as 0 or 1 is moved inside first."""
    share = successes / n
    if share in (0.0, 1.0):
        share = (successes + 1) / (n + 2)
    return share * (1 - share) / n


def complete(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    """The pairs in which neither is NaN: two float arrays of shape (n,)."""
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    both = ~(np.isnan(x) | np.isnan(y))
    return x[both], y[both]


def constant(values: np.ndarray) -> bool:
    """No spread beyond rounding, so that .1 + .2 and .3 are one value."""
    spread = float(values.max() - values.min()) if values.size else 0.0
    return spread <= 1e-12 * max(1.0, float(abs(values).max()) if values.size else 0.0)


def z_value(level: float) -> float:
    """The two-sided normal quantile: 1.96 for .95."""
    return float(ndtri((1 + level) / 2))
