"""Run-level inference for few seeds: t intervals, differences paired by seed, exact sign flips.

The judge is applied to a run, so the run is the unit: steps, prompts and rollouts inside a run are
not replicates. A percentile bootstrap over 3 seeds covers 73 % where 95 % is claimed, so it is not
offered. A missing number stays missing: nothing here turns NaN into a value.

`paired_prompts` compares two policies on the same prompts. After Miller (2024, Adding Error Bars to
Evals, 2411.00640): differences are taken within prompts, errors are clustered by prompt, and what
the design can see stands beside what it saw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special, stats

from analysis.statistics.estimate import ENDS, LEVEL, NAN, Estimate, around, ratio_se
from analysis.statistics.power import smallest_effect
from analysis.statistics.run_variance import RunVariance

if TYPE_CHECKING:
    import pandas as pd

_EXACT_PAIRS = 20
"""Up to here all 2^n sign flips are counted (8 MB); beyond, 100,000 of them are drawn."""


@dataclass(frozen=True)
class Paired(Estimate):
    """A mean difference over seeds. ``p`` is the exact two-sided sign-flip p, ``p_t`` Student's."""

    p: float = NAN
    p_t: float = NAN


@dataclass(frozen=True)
class Line:
    """y = intercept + slope x; the slope's t interval is over ``runs``."""

    intercept: float
    slope: Estimate
    r2: float
    runs: int


def student(free: Any) -> Any:
    """Two-sided 95 % quantile of Student's t with ``free`` degrees of freedom, a number or many."""
    return special.stdtrit(free, (1 + LEVEL) / 2)


def mean_interval(
    values: Sequence[float],
    unit: str = "run",
    within: Sequence[float] | None = None,
    ends: tuple[float, float] = ENDS,
    ratios: RunVariance | None = None,
    within_free: float = math.inf,
) -> Estimate:
    """Mean over units, shape (S,), with a two-sided t interval.

    NaN entries are left out and counted in note; one value gives a mean without interval.

    Args:
        values: one number per unit.
        unit: what is counted.
        within: sampling variance of each value. The values vary by at least that, whatever few of
            them show, so their variance is taken to be its mean at least (Knapp and Hartung 2003,
            Statistics in Medicine 22, 2693, q* = max(1, q)). NaN is unknown and left out.
        ends: of what such a mean can be, such as 0 and 1: the interval is cut there.
        ratios: of such variances in the whole study: the interval is then `RunVariance.half`.
        within_free: degrees of freedom of ``within``, all units together.
    """
    whole = np.asarray(values, dtype=float)
    finite = whole[np.isfinite(whole)]
    sampling = np.empty(0) if within is None else np.asarray(within, dtype=float)
    sampling = sampling[np.isfinite(whole) & np.isfinite(sampling)] if sampling.size else sampling
    n = len(finite)
    notes = [f"{len(whole) - n} of {len(whole)} {unit}s have no value"] if n < len(whole) else []
    if n == 0:
        return Estimate(NAN, unit=unit, note=notes[0] if notes else f"no {unit}s")
    mean, half = float(finite.mean()), NAN
    if n == 1:
        notes.append(f"one {unit}, no interval")
    else:
        least = float(sampling.mean()) ** 0.5 if sampling.size else 0.0
        spread = max(float(finite.std(ddof=1)), least)
        if spread <= 1e-12 * max(1.0, abs(mean)):
            spread = 0.0
            notes.append(f"no spread between {unit}s")
        half = student(n - 1) * spread / n**0.5
        if ratios is not None and least > 0 and spread > 0:
            observed = ratio_of_variances(finite, sampling)
            half = ratios.half(observed, n - 1, within_free) * least / n**0.5
    return around(mean, half, n, unit, "; ".join(notes), ends)


def ratio_of_variances(values_S: np.ndarray, within_S: np.ndarray) -> float:
    """Variance of finite values over their mean sampling variance; NaN where either is unknown."""
    known = within_S[np.isfinite(within_S)]
    if len(values_S) < 2 or not known.size or known.mean() <= 0:
        return NAN
    return float(values_S.var(ddof=1) / known.mean())


def variance_of(comparisons: Iterable[tuple[pd.Series, pd.Series]]) -> RunVariance:
    """`RunVariance` behind comparisons: of each the values of its units, (S,), and their sampling
    variances; what is not known is left out."""
    observed, free = [], []
    for values, within in comparisons:
        has_value = np.isfinite(values.to_numpy(dtype=float))
        finite, sampling = (each.to_numpy(dtype=float)[has_value] for each in (values, within))
        observed.append(ratio_of_variances(finite, sampling))
        free.append(len(finite) - 1)
    return RunVariance.fitted(np.array(observed, dtype=float), np.array(free, dtype=float))


def mean_of_means(
    of_runs: Sequence[Estimate], fitted: int = 1, ends: tuple[float, float] = ENDS
) -> Estimate:
    """`mean_interval` of what has a t interval within each run, no narrower than these allow.

    Args:
        of_runs: one of each run, from ``n`` units less ``fitted`` degrees of freedom.
    """
    halves = [(each.high - each.low) / 2 for each in of_runs]
    free = [max(each.n - fitted, 1) for each in of_runs]
    within = [(half / float(student(n))) ** 2 for half, n in zip(halves, free, strict=True)]
    return mean_interval([each.value for each in of_runs], within=within, ends=ends)


def line(x: np.ndarray, y: np.ndarray) -> Line:
    """Least squares of y on x over R runs, shapes (R,), by statsmodels. Raises ValueError: fewer
    than three runs, or one x only."""
    if len(x) < 3 or np.ptp(x) == 0:
        raise ValueError("a line takes three runs and two values of x")
    from statsmodels.regression.linear_model import OLS  # here: what has no line need not load it

    # in units of its own spread: a column that hardly varies beside 1 would be none to statsmodels
    centre, size = float(x.mean()), float(x.std())
    fit = OLS(y, np.column_stack([np.ones(len(x)), (x - centre) / size])).fit()
    slope, half = float(fit.params[1]) / size, float(student(len(x) - 2) * fit.bse[1]) / size
    intercept = float(fit.params[0]) - slope * centre
    r2 = float(fit.rsquared) if np.ptp(y) else 0.0
    return Line(intercept, around(slope, half, len(x), "run"), r2, len(x))


def paired_difference(
    treated: pd.Series,
    base: pd.Series,
    unit: str = "seed pair",
    within: pd.Series | None = None,
    ratios: RunVariance | None = None,
    within_free: float = math.inf,
) -> Paired:
    """Mean of treated - base over the seeds that both have, with t interval and sign-flip p.

    Each has one number per run, indexed by seed; runs of one seed are averaged first. ``within``:
    sampling variance of the difference of each seed; it, ``ratios`` and ``within_free`` are as in
    `mean_interval`.
    """
    by_seed = seed_differences(treated, base)
    differences = by_seed.to_numpy()
    sampling = None if within is None else within.reindex(by_seed.index).to_numpy()
    mean = mean_interval(
        differences.tolist(),
        unit,
        None if sampling is None else sampling.tolist(),
        ratios=ratios,
        within_free=within_free,
    )
    finite = differences[np.isfinite(differences)]
    notes = [mean.note] if mean.note else []
    if 0 < mean.n < 6:
        notes.append(f"{mean.n} pairs cannot give an exact p below {2 / 2**mean.n:.3g}")
    p_t = NAN
    if mean.n > 1 and mean.high > mean.value:
        error = (mean.high - mean.value) / student(mean.n - 1)
        p_t = float(2 * stats.t.sf(abs(mean.value) / error, mean.n - 1))
        if ratios is not None and sampling is not None:
            sampling = sampling[np.isfinite(differences)]
            observed = ratio_of_variances(finite, sampling)
            if np.isfinite(observed):
                z = mean.value / (np.nanmean(sampling) / mean.n) ** 0.5
                p_t = ratios.p(float(z), observed, mean.n - 1, within_free)
    elif mean.n > 1 and mean.value == 0:
        p_t = 1.0
    return Paired(
        *(mean.value, mean.low, mean.high, mean.n, unit, "; ".join(notes)),
        p=sign_flip_p(finite),
        p_t=p_t,
    )


def seed_differences(treated: pd.Series, base: pd.Series) -> pd.Series:
    """Treated - base of each seed that both have, runs of one seed averaged first."""
    ours, theirs = _by_seed(treated), _by_seed(base)
    if not ours.index.equals(theirs.index):
        shared = ours.index.intersection(theirs.index)
        ours, theirs = ours.loc[shared], theirs.loc[shared]
    return ours - theirs


def _by_seed(runs: pd.Series) -> pd.Series:
    """One number per seed, in order: the mean where there are several runs of it."""
    values = runs.astype(float)
    index = values.index
    if index.is_unique and index.is_monotonic_increasing and not index.hasnans:
        return values  # as grouping would leave them, which takes ten times as long
    return values.groupby(level=0).mean()


def ratio_of_means(
    pairs_S_2: np.ndarray, unit: str = "seed pair", within_2_2: np.ndarray | None = None
) -> Estimate:
    """Mean of the first over mean of the second column, with Fieller's 95 % interval over units.

    There is no interval where the second mean could be 0: the ratio could then be anything. Units
    that lack either are left out and counted in note.

    Args:
        pairs_S_2: one pair of numbers per unit.
        unit: what is counted.
        within_2_2: sampling covariance of a pair, which the interval is no narrower than.

    Source: Fieller (1954), Journal of the Royal Statistical Society B 16, 175.
    """
    complete_pairs = pairs_S_2[np.isfinite(pairs_S_2).all(axis=1)]
    n, missing = len(complete_pairs), len(pairs_S_2) - len(complete_pairs)
    note = f"{missing} of {len(pairs_S_2)} {unit}s have no value" if missing else ""
    top, bottom = complete_pairs.mean(axis=0) if n else (NAN, NAN)
    if not n or bottom == 0:
        return Estimate(NAN, n=n, unit=unit, note=note or "nothing to be a share of")
    ratio = top / bottom
    if n == 1:
        return Estimate(float(ratio), n=1, unit=unit, note=note or f"one {unit}, no interval")
    spread = np.cov(complete_pairs.T)
    line = np.array([1.0, -ratio])
    if within_2_2 is not None and line @ within_2_2 @ line > line @ spread @ line:
        spread = within_2_2
    (v_top, v_both), (_, v_bottom) = spread / n
    t = float(student(n - 1))
    g = t**2 * v_bottom / bottom**2
    if g >= 1:
        why = "what it is a share of could be 0, no interval"
        return Estimate(float(ratio), n=n, unit=unit, note="; ".join(filter(None, [note, why])))
    shrunk = v_both / v_bottom if v_bottom > 0 else 0.0
    variance = v_top - 2 * ratio * v_both + ratio**2 * v_bottom - g * (v_top - shrunk * v_both)
    middle = (ratio - g * shrunk) / (1 - g)
    half = t * max(0.0, variance) ** 0.5 / (abs(bottom) * (1 - g))
    return Estimate(float(ratio), float(middle - half), float(middle + half), n, unit, note)


def sign_flip_p(differences: np.ndarray) -> float:
    """Two-sided p that the mean difference is zero, over all 2^n equally likely sign patterns.

    Exact up to 20 differences, a seeded draw of 100,000 patterns beyond. NaN for none.
    """
    finite = np.asarray(differences, dtype=float)
    finite = finite[np.isfinite(finite)]
    if len(finite) == 0:
        return NAN
    # Sums that are equal on paper must count as equal in floating point.
    observed_sum = abs(finite.sum()) - 1e-9 * np.abs(finite).sum()
    if len(finite) <= _EXACT_PAIRS:
        sums = np.zeros(1)
        for difference in finite:
            sums = np.concatenate([sums + difference, sums - difference])
        return float((np.abs(sums) >= observed_sum).mean())
    signs = np.random.default_rng(0).integers(0, 2, (100_000, len(finite)), dtype=np.int8) * 2 - 1
    return float((1 + (np.abs(signs @ finite) >= observed_sum).sum()) / (1 + len(signs)))


def grouped_intervals(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """`mean_interval` of every group at once: columns ``by`` + mean, low, high, n, missing.

    ``frame`` holds one row per run in each group; ``missing`` counts the runs without a value.
    """
    grouped = frame.groupby(by, sort=True, observed=True)["value"]
    table = grouped.agg(["mean", "std", "count", "size"]).reset_index()
    n = table["count"].to_numpy()
    t = np.where(n > 1, student(np.maximum(n - 1, 1)), np.nan)
    half = t * table["std"] / np.sqrt(np.maximum(n, 1))
    table["low"], table["high"] = table["mean"] - half, table["mean"] + half
    table["n"], table["missing"] = table["count"], table["size"] - table["count"]
    return table[[*by, "mean", "low", "high", "n", "missing"]]


@dataclass(frozen=True)
class PairedPrompts(Estimate):
    """A mean difference with its t interval over prompts: of these very policies, no others."""

    se: float = NAN
    unpaired_se: float = NAN
    """What the standard error would be if each policy had answered prompts of its own."""
    visible: float = NAN
    """The smallest true difference that so many prompts show (two-sided t, p < .05) with
    probability .8, at the spread that was seen; in the unit of the scores. NaN without spread."""


def paired_prompts(
    treated_N: np.ndarray, base_N: np.ndarray, prompt_N: np.ndarray
) -> PairedPrompts:
    """Mean of treated - base over N pairs of answers, several of which may be to one prompt.

    The standard error is CR1 by prompt. A pair of which one side is NaN is left out and counted in
    ``note``; ``n`` counts prompts.

    Args:
        treated_N: a score of one policy's answer, or a mean over several.
        base_N: the other policy's, to the same prompt.
        prompt_N: labels of the prompts.
    """
    treated, base = np.asarray(treated_N, dtype=float), np.asarray(base_N, dtype=float)
    has_both = np.isfinite(treated) & np.isfinite(base)
    missing = int(len(has_both) - has_both.sum())
    notes = [f"{missing} of {len(has_both)} pairs lack a score"] if missing else []
    if not has_both.any():
        return PairedPrompts(NAN, unit="prompt", note="; ".join(notes) or "no prompt in common")
    labels = np.asarray(prompt_N, dtype=object)[has_both].tolist()
    places = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    codes, prompts = np.array([places[label] for label in labels]), len(places)
    counts = np.bincount(codes)
    columns = {"difference": treated - base, "treated": treated, "base": base}
    errors = {
        name: ratio_se(np.stack([np.bincount(codes, values[has_both]), counts], axis=1))
        for name, values in columns.items()
    }
    mean, se = float((treated - base)[has_both].mean()), errors["difference"]
    if prompts == 1:
        notes.append("one prompt, no interval")
    half = float(student(prompts - 1)) * se if prompts > 1 else NAN
    if se == 0:
        notes.append("no spread between prompts")
    whole = around(mean, half, prompts, "prompt", "; ".join(notes))
    return PairedPrompts(
        *(whole.value, whole.low, whole.high, prompts, "prompt", whole.note),
        se=se,
        unpaired_se=float(np.hypot(errors["treated"], errors["base"])),
        visible=smallest_effect(prompts) * se * prompts**0.5 if se else NAN,
    )
