"""Scores of runs on several metrics, put together: interquartile mean, performance profile,
probability of improvement.

Definitions are those of rliable (Agarwal et al. 2021, 2108.13264). Its intervals take a run's
scores on two metrics for independent, as they are where every metric is a training of its own.
Here one run gives all of its scores, so the runs are the units: `analysis.selfcheck` plants five
such runs, of which rliable's bootstrap covers about .5 to .8. It is given beside for comparison.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from analysis.statistics.estimate import LEVEL, NAN, Estimate, around
from analysis.statistics.intervals import student
from analysis.statistics.proportions import logit_share

TRIMMED = 0.25
"""Share of the scores left out at each end of an interquartile mean."""
REPLICATES = 2000


def interquartile_mean(scores_S_M: np.ndarray) -> Estimate:
    """Mean of the middle half of all scores, with a t interval over runs.

    A score pulls by its winsorised value, and a run by the mean over its scores: Tukey and
    McLaughlin's standard error (1963, Sankhya A 25), clustered by run. Degrees of freedom are
    those of the runs, or of the scores that are left where these are fewer.

    Args:
        scores_S_M: of S runs on M metrics of one scale; NaN is missing, and left out.
    """
    scores = np.asarray(scores_S_M, dtype=float)
    has_score = np.isfinite(scores)
    scores, has_score = scores[has_score.any(axis=1)], has_score[has_score.any(axis=1)]
    runs, values = len(scores), np.sort(scores[has_score])
    if not runs:
        return Estimate(NAN, unit="run", note="no run has a score")
    cut = int(TRIMMED * len(values))
    mean = float(stats.trim_mean(values, TRIMMED))
    if runs == 1:
        return Estimate(mean, n=1, unit="run", note="one run, no interval")
    winsorised = np.clip(scores, values[cut], values[len(values) - 1 - cut])
    centre = winsorised[has_score].mean()
    pull_S = np.where(has_score, winsorised - centre, 0.0).sum(axis=1) / (1 - 2 * TRIMMED)
    error = float(np.sqrt(runs / (runs - 1) * (pull_S**2).sum())) / len(values)
    free = min(runs, len(values) - 2 * cut) - 1
    note = "no spread between runs" if error <= 1e-12 * max(1.0, abs(mean)) else ""
    return around(mean, float(student(free)) * error, runs, "run", note)


def stratified_bootstrap(
    scores_S_M: np.ndarray, replicates: int = REPLICATES, seed: int = 0
) -> Estimate:
    """The interquartile mean with rliable's interval: percentiles, each metric resampled alone.

    Too narrow where a run gives several of the scores, and for few runs (see the module).

    Args:
        scores_S_M: as for `interquartile_mean`.
    """
    scores = np.asarray(scores_S_M, dtype=float)
    columns = [column[np.isfinite(column)] for column in scores.T if np.isfinite(column).any()]
    if not columns:
        return Estimate(NAN, unit="run", note="no run has a score")
    value = float(stats.trim_mean(np.concatenate(columns), TRIMMED))
    if max(map(len, columns)) == 1:
        return Estimate(value, n=1, unit="run", note="one run, no interval")
    rng = np.random.default_rng(seed)
    drawn = [column[rng.integers(0, len(column), (replicates, len(column)))] for column in columns]
    means = stats.trim_mean(np.hstack(drawn), TRIMMED, axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high), max(map(len, columns)), "run")


def performance_profile(scores_S_M: np.ndarray, thresholds_T: np.ndarray) -> list[Estimate]:
    """Share of all scores above each threshold, T of them, intervals over runs.

    Args:
        scores_S_M: as for `interquartile_mean`.
    """
    scores = np.asarray(scores_S_M, dtype=float)
    has_score = np.isfinite(scores)
    scores, has_score = scores[has_score.any(axis=1)], has_score[has_score.any(axis=1)]
    count, runs = int(has_score.sum()), len(scores)
    profile = []
    for threshold in np.asarray(thresholds_T, dtype=float):
        above = np.where(has_score, scores > threshold, 0.0)
        share = float(above.sum() / count) if count else NAN
        pull_S = (above - share * has_score).sum(axis=1) / max(count, 1)
        variance = runs / (runs - 1) * float(pull_S @ pull_S) if runs > 1 else NAN
        profile.append(logit_share(share, variance, runs - 1, runs))
    return profile


def probability_of_improvement(
    better_S_M: np.ndarray, worse_S_M: np.ndarray, *, paired: bool = False
) -> Estimate:
    """P(a run of the first arm scores above one of the second), ties half, mean over M metrics.

    That is the Mann-Whitney statistic over the number of pairs, of each metric. The variance is
    DeLong's over runs, each run with all of its metrics. The interval is a t one on the logit
    scale, with Welch and Satterthwaite's degrees of freedom. ``n`` counts the runs of the smaller
    arm.

    Args:
        better_S_M: scores of one arm's runs; NaN is missing. A metric that one of the arms lacks
            is left out, and so is a run without a score.
        worse_S_M: scores of the other arm's runs.
        paired: whether row s of both is one seed, so that their chance has a common part. A pair
            of which one run has no score is left out.

    Raises:
        ValueError: ``paired`` arms of different numbers of runs.
    """
    better, worse = (np.asarray(each, dtype=float) for each in (better_S_M, worse_S_M))
    if paired and len(better) != len(worse):
        raise ValueError(f"{len(better)} and {len(worse)} runs cannot be paired")
    has_score = [np.isfinite(each) for each in (better, worse)]
    shared = has_score[0].any(axis=0) & has_score[1].any(axis=0)
    scored = [each[:, shared].any(axis=1) for each in has_score]
    if paired:
        scored = [scored[0] & scored[1]] * 2
    better, worse = better[scored[0]][:, shared], worse[scored[1]][:, shared]
    shares, pulls = [], []
    for x, y in zip(better.T, worse.T, strict=True):
        has_x, has_y = np.isfinite(x), np.isfinite(y)
        pairs = has_x[:, None] & has_y
        if not pairs.any():
            continue
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        share = wins[pairs].mean()
        above = np.where(pairs, wins - share, 0.0) / pairs.sum()
        shares.append(share)
        pulls.append((above.sum(axis=1), above.sum(axis=0)))
    if not shares:
        return Estimate(NAN, unit="run", note="the arms have no metric in common")
    value = float(np.mean(shares))
    of_x, of_y = (np.mean([pull[side] for pull in pulls], axis=0) for side in (0, 1))
    smaller = min(len(of_x), len(of_y))
    if smaller < 2:
        return Estimate(value, n=smaller, unit="run", note="one run, no interval")
    parts = [of_x + of_y] if paired else [of_x, of_y]
    variances = [len(part) / (len(part) - 1) * float(part @ part) for part in parts]
    total = sum(variances)
    weights = [v**2 / (len(part) - 1) for v, part in zip(variances, parts, strict=True)]
    free = total**2 / sum(weights) if total > 0 else smaller - 1
    return logit_share(value, total, free, smaller)
