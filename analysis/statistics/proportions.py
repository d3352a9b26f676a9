"""A binary judge against a binary truth: rates, Youden J, phi, AUC and the corrected prevalence.

A rate that the data cannot give is NaN with the reason in words, never the 0 or 1 that a formula
happens to leave. Intervals are at the 95 % level unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtri, stdtrit
from scipy.stats import rankdata

from analysis.statistics.estimate import LEVEL, NAN, Estimate, around, ratio, ratio_se

Scores = Sequence[float] | np.ndarray


def normal(level: float = LEVEL) -> float:
    """The two-sided normal quantile: 1.96 at .95."""
    return float(ndtri((1 + level) / 2))


NORMAL = normal()


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


def wilson(successes: float, n: float, level: float = LEVEL) -> Estimate:
    """A proportion with Wilson's interval; NaN for n = 0.

    ``successes`` may be fractional (a half credit) and ``n`` an effective number of units: the
    binomial variance is the largest that credits in [0, 1] can have, so the interval is safe.
    """
    if n <= 0:
        return Estimate(NAN, note="no units", level=level)
    z2 = normal(level) ** 2
    share = min(max(successes / n, 0.0), 1.0)
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * (share * (1 - share) / n + z2 / (4 * n * n))) ** 0.5 / (1 + z2 / n)
    # at a share of 0 or 1 the limit is that share itself; rounding must not move it
    low = 0.0 if share == 0 else max(centre - half, 0.0)
    high = 1.0 if share == 1 else min(centre + half, 1.0)
    return Estimate(share, low, high, int(n), level=level)


def clustered_wilson(
    share: float, variance: float, n: int, clusters: int, level: float = LEVEL
) -> Estimate:
    """A mean of ``n`` credits in ``clusters``, with Wilson's interval at as many independent ones.

    That many would have the same ``variance``, at most ``n``; where all credits are 0 or all 1, a
    cluster counts as one.
    """
    effective = float(clusters)
    if 0 < share < 1:
        # values that only cancel out inside clusters are no reason for more than all of them
        effective = min(share * (1 - share) / variance, n) if variance > 0 else n
    return replace(wilson(share * effective, effective, level), value=share)


def clustered_share(sums_C_2: np.ndarray, n: int, level: float = LEVEL) -> Estimate:
    """A ratio of sums over C clusters with the Wilson interval of as many independent credits.

    Their number is that which would be as uncertain as the clusters are (`ratio_se`), at most
    ``n``: clusters of one credit each give Wilson's interval on C - 1. NaN for no credits.

    Args:
        sums_C_2: credits in [0, 1] and their weights, summed in each cluster.
        n: the credits.
    """
    total = np.asarray(sums_C_2, dtype=float).reshape(-1, 2).sum(axis=0)
    if total[1] <= 0:
        return Estimate(NAN, note="no units", level=level)
    share, clusters = float(ratio(total)), len(sums_C_2)
    if clusters == 1:
        return wilson(share, 1, level)
    return clustered_wilson(share, ratio_se(sums_C_2) ** 2, n, clusters, level)


def pooled_share(sums_C_2: np.ndarray, level: float = LEVEL) -> Estimate:
    """`clustered_share` of 0/1 credits and their counts; Wilson's own interval on C where no
    cluster has two. Clusters without a credit may stand among the C."""
    sums_C_2 = sums_C_2[sums_C_2[:, 1] > 0]
    passed, n = (int(total) for total in sums_C_2.sum(axis=0))
    if n == len(sums_C_2):
        return wilson(passed, n, level)
    return replace(clustered_share(sums_C_2, n, level), n=n)


def logit_share(
    share: float, variance: float, free: float, units: int, unit: str = "run"
) -> Estimate:
    """A share of few units with its t interval on the logit scale; NaN for no unit.

    Where the units do not vary it is Wilson's interval of as many independent ones.

    Args:
        share: in [0, 1].
        variance: of the share.
        free: degrees of freedom of the variance.
        units: how many vary independently.
    """
    if not units or np.isnan(share):
        return Estimate(NAN, unit=unit, note=f"no {unit} has a score")
    if units == 1:
        return Estimate(share, n=1, unit=unit, note=f"one {unit}, no interval")
    if not 0 < share < 1 or variance <= 1e-24:
        ends = wilson(share * units, units)
        note = f"no spread between {unit}s: Wilson's interval over them"
        return Estimate(share, ends.low, ends.high, units, unit, note)
    half = float(stdtrit(free, (1 + LEVEL) / 2)) * variance**0.5 / (share * (1 - share))
    low, high = expit(logit(share) + np.array([-half, half])).tolist()
    return Estimate(share, low, high, units, unit)


def auc(
    score: Scores, truth: Scores, clusters: np.ndarray | None = None, level: float = LEVEL
) -> Estimate:
    """P(a true item scores above a false one), ties half, with DeLong's interval cut at [0, 1].

    NaN unless both occur and the scores have a spread. With ``clusters`` the variance is
    Obuchowski's (1997, Biometrics 53, 567-578), which is DeLong's where every item is a cluster of
    its own.

    Args:
        score: (N,), NaN is missing.
        truth: (N,), 0 or 1, NaN is missing.
        clusters: (N,), whose items are not independent; None for none such.
    """
    s, t = complete(score, truth)
    true, false = s[t == 1], s[t == 0]
    if len(true) == 0 or len(false) == 0:
        return Estimate(NAN, n=len(s), note="truth has one class only", level=level)
    if constant(s):
        return Estimate(NAN, n=len(s), note="every score is the same", level=level)
    ranks = rankdata(np.concatenate([true, false]))
    # share of the other class that each item beats
    beats = (ranks[: len(true)] - rankdata(true)) / len(false)
    beaten = 1 - (ranks[len(true) :] - rankdata(false)) / len(true)
    value = float(beats.mean())
    codes = np.arange(len(s))
    if clusters is not None:
        both = ~(np.isnan(np.asarray(score, float)) | np.isnan(np.asarray(truth, float)))
        codes = np.unique(np.asarray(clusters)[both], return_inverse=True)[1]
    of_true, of_false = codes[t == 1], codes[t == 0]
    kinds = len(np.unique(of_true)), len(np.unique(of_false))
    if min(kinds) < 2:
        unit = "item" if clusters is None else "cluster"
        return Estimate(value, n=len(s), note=f"a class has one {unit}: no interval", level=level)
    units = len(np.unique(codes))
    by_true = np.bincount(of_true, beats - value, units) / len(true)
    by_false = np.bincount(of_false, beaten - value, units) / len(false)
    variance = by_true @ by_true * kinds[0] / (kinds[0] - 1)
    variance += by_false @ by_false * kinds[1] / (kinds[1] - 1)
    variance += 2 * (by_true @ by_false) * units / (units - 1)
    half = normal(level) * max(float(variance), 0.0) ** 0.5
    note = "no spread between items: interval without width" if half == 0 else ""
    return replace(around(value, half, len(s), "item", note, (0.0, 1.0)), level=level)


def confusion(verdict: Scores, truth: Scores) -> Confusion:
    """TPR, FPR (Wilson), Youden J (Newcombe's hybrid of the two) and phi (delta method).

    Both are 0 or 1, shapes (N,); NaN is missing, and left out of every rate. A rate whose class
    does not occur is NaN, and so is phi when a side has one value only.
    """
    v, t = complete(verdict, truth)
    tp, fp, fn, tn = (int(((v == a) & (t == b)).sum()) for a, b in ((1, 1), (1, 0), (0, 1), (0, 0)))
    tpr, fpr = wilson(tp, tp + fn), wilson(fp, fp + tn)
    j = youden_j(tpr, fpr)
    if tpr.n == 0 or fpr.n == 0:
        j = Estimate(NAN, n=len(v), note="truth has one class only")
    return Confusion(tp, fp, fn, tn, tpr, fpr, j, _phi(tp, fp, fn, tn))


def youden_j(tpr: Estimate, fpr: Estimate, correlation: float = 0.0) -> Estimate:
    """J = TPR - FPR, its interval joined from theirs (Newcombe 1998, method 10; with the
    ``correlation`` of the two estimates Zou and Donner 2008, Statistics in Medicine 27)."""
    value = tpr.value - fpr.value
    legs = (
        (tpr.value - tpr.low, fpr.high - fpr.value),
        (tpr.high - tpr.value, fpr.value - fpr.low),
    )
    below, above = (max(a * a + b * b - 2 * correlation * a * b, 0.0) ** 0.5 for a, b in legs)
    ends = value - below, value + above
    return Estimate(value, *ends, tpr.n + fpr.n, "item", level=tpr.level)


def rogan_gladen(
    passed: float,
    tested: int,
    true_positive: float,
    positives: int,
    false_positive: float,
    negatives: int,
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
    half = NORMAL * variance**0.5
    notes = [f"cut from {p:.3g} to [0, 1]"] if p != inside else []
    spread = _binomial(false_positive, negatives) + _binomial(true_positive, positives)
    if j < 0:
        notes.append("J is below 0: the judge prefers what is wrong")
    elif j < NORMAL * spread**0.5:
        notes.append("J is not told from 0: do not trust the interval")
    low, high = (min(max(end, 0.0), 1.0) for end in (p - half, p + half))
    return Estimate(inside, low, high, tested, "item", "; ".join(notes))


def _phi(tp: int, fp: int, fn: int, tn: int) -> Estimate:
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
    half = NORMAL * max(variance, 0.0) ** 0.5
    note = "every item is right: interval without width" if half < 1e-9 else ""
    return around(phi, half, n, "item", note, (-1.0, 1.0))


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
