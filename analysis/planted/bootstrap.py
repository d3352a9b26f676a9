"""Bootstraps of a mean over clusters, over crossed runs and prompts, and over prompts inside runs.

They stand beside the self-check: no report resamples whole runs, of which a study has few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.statistics.bootstrap import FEWEST, draw_weights, resampled_sums, widened
from analysis.statistics.estimate import NAN, Estimate, ratio
from analysis.statistics.fixed_effects import grouped
from study.screen import plural

REPLICATES = 10_000


@dataclass(frozen=True, kw_only=True)
class Bootstrapped(Estimate):
    """A mean with its bootstrap interval; ``unit`` is the scarcest kind resampled."""

    se: float
    """Standard deviation of the replicates."""


def cluster_bootstrap(
    values_N: np.ndarray,
    clusters_N: np.ndarray,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Bootstrapped:
    """Mean of N rows, resampling whole clusters: ``clusters_N`` labels each row's, a prompt."""
    sums = cluster_sums(values_N, clusters_N)
    drawn = resampled_sums(sums, replicates, np.random.default_rng(seed))
    return _result(ratio(sums.sum(axis=0)), ratio(drawn), {"prompt": len(sums)})


def crossed_bootstrap(
    values_N: np.ndarray,
    runs_N: np.ndarray,
    prompts_N: np.ndarray,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Bootstrapped:
    """Mean of N rows where every run meets the same prompts: the pigeonhole bootstrap.

    Runs and prompts are drawn independently and a row weighs with the product of its two counts
    (Owen 2007, Ann. Appl. Stat. 1(2)). What is neither of the run nor of the prompt alone counts
    about three times, so the interval is on the wide side.
    """
    run, prompt = grouped(runs_N), grouped(prompts_N)
    shape = (len(run.counts_P), len(prompt.counts_P))
    cell = run.codes_N * shape[1] + prompt.codes_N
    columns = [np.bincount(cell, column, shape[0] * shape[1]) for column in (values_N, None)]
    sums_R_P = np.stack(columns, axis=1).reshape(*shape, 2)
    rng = np.random.default_rng(seed)
    by_run = draw_weights(rng, np.empty((replicates, shape[0]))) @ sums_R_P.reshape(shape[0], -1)
    weights = draw_weights(rng, np.empty((replicates, shape[1])))
    drawn = np.einsum("bpm,bp->bm", by_run.reshape(replicates, shape[1], 2), weights)
    counts = dict(zip(("run", "prompt"), shape, strict=True))
    return _result(ratio(sums_R_P.sum(axis=(0, 1))), ratio(drawn), counts)


def nested_bootstrap(
    values_N: np.ndarray,
    runs_N: np.ndarray,
    clusters_N: np.ndarray,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Bootstrapped:
    """Mean over runs of the run's mean, resampling runs and then clusters inside each drawn run.

    The spread between clusters is in the spread between runs already and is drawn once more, so
    the interval is wide by about the clusters' share of the variance.
    """
    in_run = [runs_N == run for run in np.unique(runs_N)]
    sums = [cluster_sums(values_N[rows], clusters_N[rows]) for rows in in_run]
    rng = np.random.default_rng(seed)
    drawn_runs = rng.integers(0, len(sums), (replicates, len(sums)))
    means = np.empty(drawn_runs.shape)
    for run, sums_C_2 in enumerate(sums):
        slots = drawn_runs == run
        means[slots] = ratio(resampled_sums(sums_C_2, int(slots.sum()), rng))
    mean = np.mean([ratio(sums_C_2.sum(axis=0)) for sums_C_2 in sums])
    counts = {"run": len(sums), "prompt": min(map(len, sums))}
    return _result(mean, means.mean(axis=1), counts)


def cluster_sums(values_N: np.ndarray, clusters_N: np.ndarray) -> np.ndarray:
    """Sum of the values and number of rows of each cluster, shape (C, 2)."""
    by = grouped(clusters_N)
    return np.stack([by.sums(values_N), by.counts_P], axis=1)


def _result(
    mean: float | np.ndarray, replicates_B: np.ndarray, counts: dict[str, int]
) -> Bootstrapped:
    """The expanded percentile interval over the scarcest of the units counted."""
    unit, units = min(counts.items(), key=lambda item: item[1])
    finite = replicates_B[np.isfinite(replicates_B)]
    note, low, high = "", NAN, NAN
    if units < FEWEST:
        note = (
            f"{plural(units, unit)}: no bootstrap interval below {FEWEST}; use the t interval over"
            f" {unit} means"
        )
    else:
        tail = widened(units)
        low, high = (float(end) for end in np.quantile(finite, [tail, 1 - tail]))
        if len(finite) < len(replicates_B):
            note = f"{len(replicates_B) - len(finite)} replicates had nothing to divide by"
    se = float(finite.std(ddof=1)) if units > 1 and len(finite) > 1 else NAN
    return Bootstrapped(float(mean), low, high, units, unit, note, se=se)
