"""Agreement of judges with each other and with truth: kappas, alpha, ICC, correlations.

A statistic that the data cannot give is NaN with the reason in words. Ratings without spread give
NaN, never the 0 or 1 that a formula happens to leave; a value of exactly 1 means that all ratings
agreed and did differ between items. Every interval is at the 95 % level. Tables of
ratings are of shape (N items, R raters), and NaN is a missing score.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats
from scipy.stats import f
from statsmodels.stats import inter_rater

from analysis.statistics.estimate import LEVEL, NAN, Estimate, around
from analysis.statistics.intervals import mean_interval, student
from analysis.statistics.proportions import NORMAL, Scores, complete, constant

MAX_LEVELS = 200
"""More distinct scores than this make no categories: kappas are not computed for them."""
MOST_LEVELS = 2000
"""More distinct scores than this have no table of coincidences: no alpha but the interval one."""
BLOCKS = 100
"""Items are dealt into at most this many blocks for the delete-one-block jackknife."""
SCALES = ("nominal", "ordinal", "interval", "ratio")
FEW_RATERS, MANY_ITEMS = 5, 300
"""McGraw and Wong's interval of ICC(A,1) covers .95 with 3 raters and 60 items, .90 with 200 items
and .77 with 1,000 (`analysis.selfcheck`): the raters' variance rests on the raters alone."""
ICC_TYPES = ("ICC(1,1)", "ICC(A,1)", "ICC(C,1)", "ICC(1,k)", "ICC(A,k)", "ICC(C,k)")
KINDS = ("pearson", "spearman", "kendall")
Kind = Literal["pearson", "spearman", "kendall"]
ALL_AGREE = "the raters agree on every item: no interval"


@dataclass(frozen=True)
class WithinGroups:
    """Mean of the groups' own correlations, its t interval over groups, and what was left out."""

    estimate: Estimate
    constant: int
    """Groups in which one side has no spread: they have no correlation, not one of 0."""
    small: int
    """Groups with fewer than two complete pairs."""


def cohen_kappa(
    a: Scores,
    b: Scores,
    weights: Literal["linear", "quadratic"] | None = None,
) -> Estimate:
    """Cohen's kappa of two raters over the items that both scored, shapes (N,).

    Weights are distances between the scores themselves, so 1-2-5 is not 1-2-3. The interval uses
    the large-sample standard error (statsmodels), cut at [-1, 1]. NaN if either rater gave one
    score only: the formula's 0 would say "no better than chance" where nothing was tested.
    """
    x, y = complete(a, b)
    n = len(x)
    if n == 0:
        return Estimate(NAN, note="no item was scored by both")
    if constant(x) or constant(y):
        return Estimate(NAN, n=n, note="a rater gave every item the same score")
    levels, codes = np.unique(np.concatenate([x, y]), return_inverse=True)
    if len(levels) > MAX_LEVELS:
        return Estimate(NAN, n=n, note=f"{len(levels)} distinct scores are no categories")
    table = np.zeros((len(levels), len(levels)))
    np.add.at(table, (codes[:n], codes[n:]), 1)
    if weights is None and not np.intersect1d(x, y).size:
        return Estimate(NAN, n=n, note="the raters have no score in common")
    with np.errstate(divide="ignore", invalid="ignore"):  # its z, where the variance is 0
        kappa = inter_rater.cohens_kappa(table, weights=levels if weights else None, wt=weights)
    value = float(kappa.kappa)
    if value == 1.0:
        return Estimate(1.0, n=n, note=ALL_AGREE)
    half = NORMAL * float(np.sqrt(max(float(kappa.var_kappa), 0.0)))
    return around(value, half, n, "item", ends=(-1.0, 1.0))


def fleiss_kappa(ratings: np.ndarray) -> Estimate:
    """Fleiss' kappa over the items that every rater scored, with a jackknife interval over items.

    NaN for one rater, or one score only.
    """
    scores, why = _complete_items(ratings)
    if why:
        return Estimate(NAN, n=len(scores), note=why)
    counts = _counts(scores, np.unique(scores))
    blocks = min(len(counts), BLOCKS)
    block = np.arange(len(counts)) % blocks
    formula = inter_rater.fleiss_kappa
    with np.errstate(divide="ignore", invalid="ignore"):  # without a block none may differ
        leave_one_out = [float(formula(counts[block != number])) for number in range(blocks)]
    return jackknife(float(formula(counts)), leave_one_out, len(counts), "fewer than 3 items")


def krippendorff_alpha(
    ratings: np.ndarray,
    scale: Literal["nominal", "ordinal", "interval", "ratio"] = "interval",
) -> Estimate:
    """Krippendorff's alpha with missing cells, and a jackknife interval over items.

    ``n`` counts the items with at least two scores; the others carry no information. NaN where
    no item has two scores, where there is one score only, and at ratio level for negative scores.
    The interval level takes any number of distinct scores, the others `MOST_LEVELS`.
    """
    table = np.asarray(ratings, dtype=float)
    table = table[(~np.isnan(table)).sum(axis=1) >= 2] if table.size else table[:0]
    n = len(table)
    if n == 0:
        return Estimate(NAN, note="no item has two scores")
    scores = table[~np.isnan(table)]
    if constant(scores):
        return Estimate(NAN, n=n, note="every score is the same")
    if scale == "ratio" and scores.min() < 0:
        return Estimate(NAN, n=n, note="the ratio level needs scores of at least 0")
    blocks, few = min(n, BLOCKS), "fewer than 3 items"
    if scale == "interval":
        parts, alpha = _moments(table - scores.mean(), blocks), _alpha_of_moments
    else:
        levels = np.unique(scores)
        if len(levels) > MOST_LEVELS:
            return Estimate(NAN, n=n, note=f"{len(levels)} distinct scores are too many")
        if blocks > 1 and len(levels) > MAX_LEVELS:
            # one alpha of 2,000 levels takes seconds at most, a hundred of them minutes
            blocks, few = 1, "too many distinct scores"
        parts = _coincidences(_counts(table, levels), blocks)

        def alpha(part: np.ndarray) -> float:
            return _alpha_of_coincidences(part, levels, scale)

    whole = parts.sum(axis=0)
    leave_one_out = [alpha(whole - part) for part in parts] if blocks > 1 else []
    return jackknife(alpha(whole), leave_one_out, n, few)


def icc_family(ratings: np.ndarray) -> dict[str, Estimate]:
    """The six intraclass correlations over the items that every rater scored, with F intervals.

    McGraw and Wong's names: ICC(1,1) raters differ by item, ICC(A,1) agreement and ICC(C,1)
    consistency of one of the same raters; ``k`` in place of 1 for the mean of all. NaN for one
    rater, one item or no spread.
    """
    scores, why = _complete_items(ratings)
    if why:
        return dict.fromkeys(ICC_TYPES, Estimate(NAN, n=len(scores), note=why))
    n, k = scores.shape
    rows, columns = scores.mean(axis=1), scores.mean(axis=0)
    between, raters = k * rows.var(ddof=1), n * columns.var(ddof=1)
    within = float(((scores - rows[:, None]) ** 2).sum()) / (n * (k - 1))
    rest = scores - rows[:, None] - columns + scores.mean()
    error = float((rest**2).sum()) / ((n - 1) * (k - 1))
    rounding = 1e-20 * float((scores**2).mean())
    if within <= rounding:
        return dict.fromkeys(ICC_TYPES, Estimate(1.0, n=n, note=ALL_AGREE))
    error = error if error > rounding else 0.0
    agree = float((between - error) / (between + (k - 1) * error + k * (raters - error) / n))
    consistent = _share(between / error, k) if error else 1.0 if between else NAN
    values = (_share(between / within, k), agree, consistent)
    ends, notes = [(NAN, NAN)] * 3, ["the raters differ by a constant only: no interval"] * 3
    if error:
        few = k < FEW_RATERS and n > MANY_ITEMS
        notes = ["", few * "few raters over many items: the interval is too narrow", ""]
        ends = [
            _f_interval(between / within, n - 1, n * (k - 1), k),
            _agreement_interval(between, raters, error, (n, k), agree),
            _f_interval(between / error, n - 1, (n - 1) * (k - 1), k),
        ]

    def of_mean(icc: float) -> float:  # Spearman and Brown's formula; -1/(k-1) is its pole
        return k * icc / (1 + (k - 1) * icc) if 1 + (k - 1) * icc > 1e-12 else NAN

    single = [
        Estimate(value, *low_high, n, "item", note)
        for value, low_high, note in zip(values, ends, notes, strict=True)
    ]
    mean = [
        replace(icc, value=of_mean(icc.value), low=of_mean(icc.low), high=of_mean(icc.high))
        for icc in single
    ]
    return dict(zip(ICC_TYPES, [*single, *mean], strict=True))


def correlation(x: Scores, y: Scores, kind: Kind = "pearson") -> Estimate:
    """Pearson, Spearman or Kendall tau-b over complete pairs; NaN if a side has no spread.

    The interval is Fisher's z with the variance 1/(n-3), (1 + r^2/2)/(n-3) (Bonett and Wright) or
    .437/(n-4) (Fieller), so it needs n > 3 or 4, and none is given at exactly -1 or 1.
    """
    a, b = complete(x, y)
    n = len(a)
    if n < 2:
        return Estimate(NAN, n=n, note="fewer than two complete pairs")
    if constant(a) or constant(b):
        return Estimate(NAN, n=n, note="one side has no spread")
    formula = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly constant input: spread was checked above
        value = float(formula[kind](a, b)[0])
    dof = n - (4 if kind == "kendall" else 3)
    if dof < 1 or abs(value) >= 1 - 1e-12:
        return Estimate(value, n=n, note="too few pairs" if dof < 1 else "exact order: no interval")
    variance = {"pearson": 1.0, "spearman": 1 + value**2 / 2, "kendall": 0.437}[kind] / dof
    half = NORMAL * variance**0.5
    low, high = np.tanh(np.arctanh(value) + np.array([-half, half])).tolist()
    return Estimate(value, low, high, n, "item")


def within_groups(
    x: Scores,
    y: Scores,
    groups: Sequence[Any] | np.ndarray,
    kind: Kind = "pearson",
) -> WithinGroups:
    """Mean over groups of the correlation inside each; groups without spread are counted apart.

    ``groups`` labels each pair, shape (N,).
    """
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    places = pd.Series(range(len(a))).groupby(np.asarray(groups)).indices.values()
    inside = [correlation(a[place], b[place], kind) for place in places]
    measured = [each.value for each in inside if each.n >= 2]
    values = [value for value in measured if not np.isnan(value)]
    flat, small = len(measured) - len(values), len(inside) - len(measured)
    return WithinGroups(mean_interval(values, "group"), flat, small)


def jackknife(
    value: float, leave_one_out: Sequence[float], n: int, few: str, most: float = 1.0
) -> Estimate:
    """A statistic of n items with its delete-one-block t interval, cut at the most it can be.

    Args:
        leave_one_out: the statistic without each block; fewer than three give no interval.
        few: why they are fewer, in words.
    """
    if abs(value - most) < 1e-12:
        return Estimate(most, n=n, note=ALL_AGREE)
    if len(leave_one_out) < 3:
        return Estimate(value, n=n, note=f"{few}: no interval")
    if not np.isfinite(leave_one_out).all():
        return Estimate(value, n=n, note="hangs on a single item: no interval")
    blocks = len(leave_one_out)
    spread = float(np.var(leave_one_out) * (blocks - 1)) ** 0.5
    half = float(student(blocks - 1)) * spread
    return around(value, half, n, "item", ends=(-np.inf, most))


def _moments(centred: np.ndarray, blocks: int) -> np.ndarray:
    """Per block: disagreement within items, number, sum and square sum of scores: (B, 4)."""
    number = (~np.isnan(centred)).sum(axis=1)
    total, squares = np.nansum(centred, axis=1), np.nansum(centred**2, axis=1)
    within = 2 * (number * squares - total**2) / (number - 1)
    items = np.stack([within, number, total, squares], axis=1)
    return np.stack([items[block::blocks].sum(axis=0) for block in range(blocks)])


def _alpha_of_moments(sums: np.ndarray) -> float:
    within, number, total, squares = sums.tolist()
    expected = 2 * (number * squares - total**2)
    # what is left of equal scores is rounding, not spread
    if number < 2 or expected <= 1e-12 * number * squares:
        return NAN
    return 1 - (number - 1) * within / expected


def _coincidences(counts: np.ndarray, blocks: int) -> np.ndarray:
    """Pairs of scores (V, V) within the items of each block, an item weighing with its scores."""
    counts = counts.astype(float)
    weights = 1 / (counts.sum(axis=1) - 1)
    pairs = np.empty((blocks, counts.shape[1], counts.shape[1]))
    for block in range(blocks):
        part, weight = counts[block::blocks], weights[block::blocks]
        pairs[block] = (part * weight[:, None]).T @ part - np.diag(weight @ part)
    return pairs


def _alpha_of_coincidences(pairs: np.ndarray, levels: np.ndarray, scale: str) -> float:
    """1 - observed / expected squared distance, for coincidences (V, V) of scores ``levels``."""
    margin = pairs.sum(axis=1)
    if (margin > 1e-9).sum() < 2:
        return NAN
    if scale == "nominal":
        distance = 1 - np.eye(len(levels))
    elif scale == "ordinal":
        upto = np.cumsum(margin) - margin / 2
        distance = (upto[:, None] - upto) ** 2
    else:
        sums = levels[:, None] + levels
        distance = (np.subtract.outer(levels, levels) / np.where(sums == 0, 1, sums)) ** 2
    expected = float(margin @ distance @ margin)
    return 1 - (float(margin.sum()) - 1) * float((pairs * distance).sum()) / expected


def _share(ratio: float, k: int) -> float:
    """Share of the variance between items in one rating, of the mean squares' ratio F."""
    return float((ratio - 1) / (ratio + k - 1))


def _f_interval(ratio: float, df: int, rest: int, k: int) -> tuple[float, float]:
    """Interval of `_share` from F with its two degrees of freedom."""
    tail = (1 + LEVEL) / 2
    return _share(ratio / f.ppf(tail, df, rest), k), _share(ratio * f.ppf(tail, rest, df), k)


def _agreement_interval(
    between: float, raters: float, error: float, shape: tuple[int, int], icc: float
) -> tuple[float, float]:
    """McGraw and Wong's interval of ICC(A,1), with Satterthwaite's degrees of freedom."""
    n, k = shape
    a, b = k * icc * raters / error, n * (1 + (k - 1) * icc) - k * icc
    freedom = (n - 1) * (k - 1) * (a + b) ** 2 / ((n - 1) * a**2 + b**2)
    tail = (1 + LEVEL) / 2
    lower, upper = f.ppf(tail, n - 1, freedom), f.ppf(tail, freedom, n - 1)
    spread = k * raters + (k * n - k - n) * error
    low = n * (between - lower * error) / (lower * spread + n * between)
    high = n * (upper * between - error) / (spread + n * upper * between)
    return float(low), float(high)


def _counts(ratings: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """How often each item (N, R) was given each of ``levels``: int64 (N, V); NaN counts nowhere."""
    counts = np.zeros((len(ratings), len(levels)), dtype=np.int64)
    item, rater = np.nonzero(~np.isnan(ratings))
    np.add.at(counts, (item, np.searchsorted(levels, ratings[item, rater])), 1)
    return counts


def _complete_items(ratings: np.ndarray) -> tuple[np.ndarray, str]:
    """The items that every rater scored, and why they have no agreement to measure, or ""."""
    table = np.asarray(ratings, dtype=float)
    table = table[~np.isnan(table).any(axis=1)] if table.size else table[:0]
    if table.ndim != 2 or table.shape[1] < 2:
        return table, "needs two raters"
    if len(table) < 2:
        return table, "needs two items that every rater scored"
    return table, "every score is the same" if constant(table) else ""
