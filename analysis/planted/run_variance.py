"""Planted studies for the intervals of differences: runs that vary by sampling alone, and more.

`rates` counts, over simulated studies of one variance between runs, how often a plain interval
leaves 0 out, how often a family of comparisons has a claim, and how often a planted effect is seen;
beside the interval that takes the larger of the two variances and Student's t. `first_clear` looks
at a study several times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.planted.trials import Trials, silent, trials
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import Paired, paired_difference, ratio_of_variances
from analysis.statistics.looks import level
from analysis.statistics.power import POWER, smallest_difference
from analysis.statistics.run_variance import BEFORE_DATA, RunVariance

ARMS, METRICS = 2, 12
"""Arms beside the base, and measures of each: as in the quickstart."""
ALIKE = 0.4
"""Correlation of two measures of one run."""
EFFECT = 4.0
"""Planted difference, in standard errors of sampling."""
GROUPS = 190
"""Degrees of freedom of the sampling variance."""
SHARE = 0.02
"""How far coverage may lie from .95: the ratio is learnt, not known."""


@dataclass(frozen=True)
class Rates:
    """Shares of comparisons, and for ``family`` of studies."""

    null: float
    family: float
    power: float
    power_of_student: float
    null_of_odd: float
    """Of the one measure whose runs vary, among others that do not; NaN where all are alike."""


def study(
    rng: np.random.Generator, seeds: int, excess_M: np.ndarray
) -> tuple[np.ndarray, RunVariance]:
    """Differences (A, M, S) from a base that all arms share, of sampling variance 1 and ``excess``
    more, and what they say of the variance between runs."""
    factor = np.linalg.cholesky(ALIKE + (1 - ALIKE) * np.eye(len(excess_M)))
    runs = rng.standard_normal((ARMS + 1, seeds, len(excess_M))) @ factor.T
    runs *= ((1 + excess_M) / 2) ** 0.5
    differences = (runs[1:] - runs[0]).swapaxes(1, 2)
    rows = differences.reshape(-1, seeds)
    observed = np.array([ratio_of_variances(row, np.ones(seeds)) for row in rows])
    return differences, RunVariance.fitted(observed, np.full(len(rows), seeds - 1))


def compared(difference_S: np.ndarray, ratios: RunVariance | None) -> Paired:
    """The difference of two arms, by the product's own function."""
    seeds = range(len(difference_S))
    base, within = pd.Series(0.0, seeds), pd.Series(1.0, seeds)
    treated = pd.Series(difference_S, seeds)
    return paired_difference(treated, base, within=within, ratios=ratios, within_free=GROUPS)


def rates(seeds: int, excess: float, studies: int, seed: int = 0, odd: bool = False) -> Rates:
    """Over ``studies`` of 24 comparisons whose runs vary by ``excess`` beyond sampling; with
    ``odd``, those of the last measure alone."""
    rng = np.random.default_rng([seed, seeds, int(100 * excess)])
    excess_M = np.full(METRICS, 0.0 if odd else excess)
    excess_M[-1] = excess
    null, claims, odd_null, seen, seen_by_student = [], [], [], [], []
    for _ in range(studies):
        differences, ratios = study(rng, seeds, excess_M)
        z_A_M = differences.mean(axis=2) * seeds**0.5
        observed_A_M = differences.var(axis=2, ddof=1)
        p = np.frompyfunc(lambda z, v: ratios.p(z, v, seeds - 1, GROUPS), 2, 1)  # noqa: B023
        p_A_M = p(z_A_M, observed_A_M).astype(float)
        null.append((p_A_M < 0.05).mean())
        odd_null.append((p_A_M[:, -1] < 0.05).mean())
        claims.append(p_A_M.min() * p_A_M.size < 0.05)  # Holm's first step
        moved = differences[0, 0] + EFFECT / seeds**0.5
        seen.append(compared(moved, ratios).p_t < 0.05)
        seen_by_student.append(compared(moved, None).p_t < 0.05)
    of_odd = float(np.mean(odd_null)) if odd else float("nan")
    shares = (float(np.mean(values)) for values in (null, claims, seen, seen_by_student))
    return Rates(*shares, null_of_odd=of_odd)


def at_the_smallest(rng: np.random.Generator, seeds: int, studies: int) -> list[Paired]:
    """One comparison of each study, in which the measures vary beyond sampling as the prior has it,
    with a planted effect of the smallest size that a plan says is seen."""
    size, prior = smallest_difference(seeds), BEFORE_DATA
    pairs = []
    for _ in range(studies):
        ratio_M = rng.choice(prior.ratio_R, METRICS, p=prior.weight_R)
        differences, ratios = study(rng, seeds, ratio_M - 1)
        pairs.append(compared(differences[0, 0] + size * ratio_M[0] ** 0.5, ratios))
    return pairs


LOOKS = (3, 4, 6)
"""Seeds at which a study is looked at."""


def first_clear(
    rng: np.random.Generator, excess: float, effect: float = 0.0, alpha: float | None = None
) -> int:
    """Seeds at which one comparison of a study is first told from 0 at one of `LOOKS`; 0 where it
    is at none.

    Args:
        excess: variance of the runs beyond sampling, which is 1.
        effect: planted, in SDs of the differences by seed.
        alpha: that p must be below at each; by default the level of three looks.
    """
    limit = level(LOOKS) if alpha is None else alpha
    differences, _ = study(rng, LOOKS[-1], np.full(METRICS, excess))
    differences[0, 0] += effect * (1 + excess) ** 0.5
    rows = differences.reshape(-1, LOOKS[-1])
    for seeds in LOOKS:
        observed = [ratio_of_variances(row[:seeds], np.ones(seeds)) for row in rows]
        ratios = RunVariance.fitted(np.array(observed), np.full(len(rows), seeds - 1))
        if compared(rows[0, :seeds], ratios).p_t < limit:
            return seeds
    return 0


def differences_of_arms(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """One interval of each study: of three and six seeds, with and without variance between runs;
    and how often the plan's smallest visible difference is missed."""
    checks = {}
    for seeds in (3, 6):
        for excess in (0.0, 1.0):
            studies = (study(rng, seeds, np.full(METRICS, excess)) for _ in range(count))
            pairs = (compared(differences[0, 0], ratios) for differences, ratios in studies)
            name = f"difference, {seeds} seeds, excess {excess:g}"
            checks[name] = trials(0.0, pairs, tolerance=SHARE)
        missed = (each.low <= 0 for each in at_the_smallest(rng, seeds, count))
        estimates = (Estimate(0.0, 0.0, 0.0) if each else Estimate(0.0) for each in missed)
        name = f"smallest visible difference, {seeds} seeds, missed"
        checks[name] = trials(0.0, estimates, 1 - POWER, tolerance=SHARE)
    for excess in (0.0, 1.0):
        never = (silent(not first_clear(rng, excess)) for _ in range(count))
        name = f"difference, looks at 3, 4, 6 seeds, excess {excess:g}"
        checks[name] = trials(0.0, never, at_least=True, tolerance=SHARE)
    return checks
