"""Bootstraps of a mean over clusters, over crossed runs and prompts, and over prompts inside runs.

They stand beside the self-check: no report resamples whole runs, of which a study has few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.statistics.bootstrap import (
    CHUNK,
    FEWEST,
    draws,
    ratio,
    ratio_se,
    resampled_sums,
    widened,
)
from analysis.statistics.estimate import LEVEL, NAN, Estimate

REPLICATES = 10_000


@dataclass(frozen=True, kw_only=True)
class Bootstrapped(Estimate):
    """A mean or ratio with its bootstrap interval; ``unit`` is the scarcest kind resampled.

    ``se_naive`` takes rows for independent, ``se_clustered`` does not: both are shown so that a
    reader sees what the clusters cost.
    """

    se: float
    """Standard deviation of the replicates."""
    se_naive: float
    se_clustered: float
    rows: int
    missing: int
    """Rows without a value, left out."""


def cluster_bootstrap(
    values_N: np.ndarray,
    clusters_N: np.ndarray,
    *,
    denominator_N: np.ndarray | None = None,
    unit: str = "prompt",
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = LEVEL,
) -> Bootstrapped:
    """Mean of N rows, or sum(values) / sum(denominator), resampling whole clusters.

    Args:
        values_N: one number per row; NaN is missing.
        clusters_N: the cluster of every row, any labels.
        denominator_N: what the values are a share of; 1 per row by default.
        unit: what a cluster is, for the words of the result.

    Raises:
        ValueError: arrays of different lengths.
    """
    values, where, (clusters,) = _known(values_N, denominator_N, clusters_N)
    sums = cluster_sums([values, where], clusters)
    rng = np.random.default_rng(seed)
    drawn = resampled_sums(sums, replicates, rng) if len(sums) else np.empty((0, 2))
    return _result(
        float(ratio(sums.sum(axis=0))),
        ratio(drawn),
        (_naive_se(values, where), ratio_se(sums)),
        (len(values), len(values_N) - len(values)),
        {unit: len(sums)},
        level,
    )


def crossed_bootstrap(
    values_N: np.ndarray,
    runs_N: np.ndarray,
    prompts_N: np.ndarray,
    *,
    units: tuple[str, str] = ("run", "prompt"),
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = LEVEL,
) -> Bootstrapped:
    """Mean of N rows where every run meets the same prompts: the pigeonhole bootstrap.

    Runs and prompts are drawn independently and a row weighs with the product of its two counts
    (Owen 2007, Ann. Appl. Stat. 1(2)). What is neither of the run nor of the prompt alone counts
    about three times, so the interval is on the wide side. ``se_clustered`` is two-way clustered.

    Raises:
        ValueError: arrays of different lengths.
    """
    values, where, (runs, prompts) = _known(values_N, None, runs_N, prompts_N)
    run, prompt = _codes(runs), _codes(prompts)
    shape = (int(run.max(initial=-1)) + 1, int(prompt.max(initial=-1)) + 1)
    cell = run * shape[1] + prompt
    table = cluster_sums([values, where], cell, keep=shape[0] * shape[1])
    sums_R_P = table.reshape(*shape, 2)
    rng = np.random.default_rng(seed)
    drawn = np.empty((replicates if len(values) else 0, 2))
    step = max(1, CHUNK // max(1, 2 * shape[1]))
    for start in range(0, len(drawn), step):
        count = min(step, len(drawn) - start)
        by_run = draw_weights(rng, shape[0], count) @ sums_R_P.reshape(shape[0], -1)
        weights = draw_weights(rng, shape[1], count)
        drawn[start : start + count] = np.einsum(
            "bpm,bp->bm", by_run.reshape(count, shape[1], 2), weights
        )
    parts = [sums_R_P.sum(axis=1), sums_R_P.sum(axis=0), table[table[:, 1] > 0]]
    one, other, both = (ratio_se(part) ** 2 for part in parts)
    variance = one + other - both
    se = float(np.sqrt(variance)) if variance > 0 else float("nan")
    return _result(
        float(ratio(table.sum(axis=0))),
        ratio(drawn),
        (_naive_se(values, where), se),
        (len(values), len(values_N) - len(values)),
        dict(zip(units, shape, strict=True)),
        level,
    )


def nested_bootstrap(
    values_N: np.ndarray,
    runs_N: np.ndarray,
    clusters_N: np.ndarray,
    *,
    units: tuple[str, str] = ("run", "prompt"),
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = LEVEL,
) -> Bootstrapped:
    """Mean over runs of the run's mean, resampling runs and then clusters inside each drawn run.

    The spread between clusters is in the spread between runs already and is drawn once more, so
    the interval is wide by about the clusters' share of the variance. ``se_clustered`` is the
    standard error over runs.

    Raises:
        ValueError: arrays of different lengths.
    """
    values, where, (runs, clusters) = _known(values_N, None, runs_N, clusters_N)
    run = _codes(runs)
    count = int(run.max(initial=-1)) + 1
    sums = [
        cluster_sums([values[own], None], clusters[own]) for own in (run == r for r in range(count))
    ]
    means = np.array([ratio(one.sum(axis=0)) for one in sums])
    rng = np.random.default_rng(seed)
    drawn = np.empty(0)
    if count:
        picked = rng.integers(0, count, (replicates, count))
        slots = np.empty(picked.shape)
        for r, one in enumerate(sums):
            chosen = picked == r
            slots[chosen] = ratio(resampled_sums(one, int(chosen.sum()), rng))
        drawn = slots.mean(axis=1)
    se = float(means.std(ddof=1) / count**0.5) if count > 1 else float("nan")
    return _result(
        float(means.mean()) if count else float("nan"),
        drawn,
        (_naive_se(values, where), se),
        (len(values), len(values_N) - len(values)),
        {units[0]: count, units[1]: min((len(one) for one in sums), default=0)},
        level,
    )


def cluster_sums(
    columns_M: Sequence[np.ndarray | None], clusters_N: np.ndarray, keep: int = 0
) -> np.ndarray:
    """Sum of every column over the rows of each cluster, shape (C, M); None is a column of ones.

    With ``keep`` the labels are taken as row numbers of a table of that many clusters, empty ones
    included.
    """
    codes = clusters_N if keep else _codes(clusters_N)
    count = keep or int(codes.max(initial=-1)) + 1
    return np.stack([np.bincount(codes, column, count) for column in columns_M], axis=1)


def draw_weights(rng: np.random.Generator, units: int, replicates: int) -> np.ndarray:
    """How often each unit is drawn in ``units`` draws with replacement, shape (B, C)."""
    weights = np.zeros(replicates * units)
    np.add.at(weights, draws(rng, units, replicates).ravel(), 1.0)
    return weights.reshape(replicates, units)


def _result(
    estimate: float,
    replicates_B: np.ndarray,
    errors: tuple[float, float],
    rows: tuple[int, int],
    counts: dict[str, int],
    level: float,
) -> Bootstrapped:
    unit, units = min(counts.items(), key=lambda item: item[1])
    finite = replicates_B[np.isfinite(replicates_B)]
    notes = [f"{rows[1]} of {sum(rows)} rows have no value"] if rows[1] else []
    low = high = NAN
    if units < FEWEST:
        notes.append(
            f"{units} {unit}{'' if units == 1 else 's'}: no bootstrap interval below {FEWEST}, "
            f"take the t interval over {unit} means"
        )
    else:
        tail = widened(level, units)
        low, high = (float(end) for end in np.quantile(finite, [tail, 1 - tail]))
        if len(finite) < len(replicates_B):
            notes.append(f"{len(replicates_B) - len(finite)} replicates had nothing to divide by")
    se = float(finite.std(ddof=1)) if units > 1 and len(finite) > 1 else NAN
    return Bootstrapped(
        value=estimate, low=low, high=high, n=units, unit=unit, level=level, note="; ".join(notes),
        se=se, se_naive=errors[0], se_clustered=errors[1], rows=rows[0], missing=rows[1],
    )  # fmt: skip


def _known(
    values_N: np.ndarray, denominator_N: np.ndarray | None, *labels_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None, list[np.ndarray]]:
    """Values, denominators and labels of the rows that have a value; no denominator stays None."""
    values = np.asarray(values_N, dtype=float)
    given = None if denominator_N is None else np.asarray(denominator_N, dtype=float)
    labels = [np.asarray(one) for one in labels_N]
    columns = [values, *([] if given is None else [given]), *labels]
    if any(len(one) != len(values) for one in columns):
        sizes = ", ".join(str(len(one)) for one in columns)
        raise ValueError(f"values and their labels must be of one length, not {sizes}")
    known = np.isfinite(values)
    if given is not None:
        known &= np.isfinite(given)
    if known.all():
        return values, given, labels
    kept = [one[known] for one in labels]
    return values[known], None if given is None else given[known], kept


def _codes(labels_N: np.ndarray) -> np.ndarray:
    """Labels as 0 .. C - 1 without a gap."""
    if labels_N.dtype.kind in "iu" and len(labels_N) and labels_N.min() >= 0:
        top = int(labels_N.max()) + 1
        if top <= 4 * len(labels_N):
            used = np.bincount(labels_N, minlength=top) > 0
            return labels_N if used.all() else (np.cumsum(used) - 1)[labels_N]
    return np.unique(labels_N, return_inverse=True)[1]


def _naive_se(values_N: np.ndarray, where_N: np.ndarray | None) -> float:
    """The same with every row as its own cluster."""
    rows = len(values_N)
    if where_N is not None:
        return ratio_se(np.stack([values_N, where_N], axis=1))
    return float(values_N.std(ddof=1) / rows**0.5) if rows > 1 else float("nan")
