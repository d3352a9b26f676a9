"""Does every interval cover what it claims? ``python -m analysis.selfcheck [replications=500]``.

Each estimator meets data whose truth is known (`analysis.planted.truth`), many times over; the
share of its 95 % intervals that hold the truth must lie in the Monte Carlo band, else the exit
code is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from scipy import stats
from scipy.stats import norm

from analysis.audit import planted as audit
from analysis.field import planted as field
from analysis.forecast import planted as propagation
from analysis.ledger.estimate import step_row
from analysis.ledger.transmission import within_regression
from analysis.mixture import planted as mixture
from analysis.onset import planted as onset
from analysis.panel import planted as panel
from analysis.planted.run_variance import differences_of_arms
from analysis.planted.trials import Check, Trials, replicated, silent, trials
from analysis.planted.truth import Fault, Tabular, sampled_runs, simulate
from analysis.propagation import planted as trained
from analysis.records.runs import Run, shift
from analysis.selfcheck import judges
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import mean_interval, paired_difference, sign_flip_p
from analysis.statistics.proportions import wilson
from analysis.workflow import planted as workflow

FEWEST = 500
FALSE_ALARM = 0.05
"""Chance that a correct build shows any row outside its band, shared over all rows."""
SEEDS = 5
"""Runs per replication: what a study of five seeds has."""


@dataclass(frozen=True)
class Row:
    """One line of the coverage table; ``low`` and ``high`` are the band that coverage must hit."""

    estimator: str
    truth: float
    bias: float
    rmse: float
    coverage: float
    nominal: float
    low: float
    high: float
    replications: int

    @property
    def ok(self) -> bool:
        """Whether coverage lies in its band."""
        return self.low <= self.coverage <= self.high

    def __str__(self) -> str:
        return (
            f"{self.estimator:<38}{self.truth:>9.4f}{self.bias:>+10.5f}{self.rmse:>9.4f}"
            f"{self.coverage:>8.3f}  [{self.low:.3f}, {self.high:.3f}]"
            f"{'' if self.ok else '  OUTSIDE'}"
        )


def band(nominal: float, replications: int, rows: int) -> tuple[float, float]:
    """Coverages that chance explains: exact binomial, Bonferroni over ``rows``."""
    tail = FALSE_ALARM / rows / 2
    low, high = stats.binom.ppf([tail, 1 - tail], replications, nominal) / replications
    return float(low), float(high)


def judge_coverage(name: str, outcome: Trials, rows: int) -> Row:
    """Bias, RMSE and coverage; an interval with a NaN end covers nothing."""
    error = outcome.estimate - outcome.truth
    covered = (outcome.low <= outcome.truth) & (outcome.truth <= outcome.high)
    low, high = band(outcome.nominal, len(error), rows)
    low, high = low - outcome.tolerance, high + outcome.tolerance
    bias, rmse = float(error.mean()), float(np.sqrt((error**2).mean()))
    share = float(covered.mean())
    high = 1.0 if outcome.at_least else high
    return Row(name, outcome.truth, bias, rmse, share, outcome.nominal, low, high, len(error))


def run_level(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The t interval of a mean over runs, a difference paired by seed, and the size of its p."""
    values = rng.normal(0.3, 1.0, (count, SEEDS))
    shared = rng.normal(0.0, 3.0, (count, SEEDS))
    other = shared + rng.normal(0.0, 1.0, (count, SEEDS))
    treated = shared + 0.5 + rng.normal(0.0, 1.0, (count, SEEDS))
    arms = zip(map(pd.Series, treated), map(pd.Series, other), strict=True)
    # Six pairs can reach p = 1/32, so a test at .05 is one of size 1/32; p > .05 is "covered".
    flips = (silent(sign_flip_p(pairs)) for pairs in rng.normal(0.0, 1.0, (count, 6)))
    return {
        "run mean, t": trials(0.3, map(mean_interval, values)),
        "paired difference, t": trials(0.5, (paired_difference(*pair) for pair in arms)),
        "sign-flip p <= .05, 6 pairs": trials(0.0, flips, 1 - 1 / 32),
    }


@replicated({"bias coefficient, cluster": 0.2, "no-bias coefficient, cluster": 0.0})
def regression(rng: np.random.Generator, number: int) -> list[Estimate]:
    """Within-group regression of judge - truth; the bias differs by prompt, features overlap."""
    prompts = 64
    data = simulate(rng, prompts, Fault({0: 0.2}, prompt_sd=1.0, noise_sd=0.3), features=2)
    mixed = data.features.copy()
    mixed[..., 1] += 0.5 * mixed[..., 0]
    by_prompt = 0.2 * rng.standard_normal((prompts, 1)) * mixed[..., 0]
    fit = within_regression(data.judge + by_prompt - data.truth, mixed)
    return [Estimate(*ends) for ends in zip(fit.coef_K, *fit.interval(), strict=True)]


def ledger_columns(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Columns of the ledger over runs of a tabular policy, against the sum over all groups."""
    group, dose = 4, 0.2
    table = Tabular(
        truth=np.array([1.0, 0.0, 0.0, 1.0]),
        features=np.array([[0.0], [1.0], [-0.5], [2.0]]),
        logits=np.log([0.45, 0.25, 0.2, 0.1]),
    )
    bias = dose * table.features[:, 0]
    reward = table.truth + bias
    counts, weights = table.every_group(group)
    right = counts @ table.truth
    one_answer = counts.max(axis=1) == group
    truths = {
        "cov/z": table.expected_cov(reward, group)[0],
        "cov_truth/z": table.expected_cov(reward, group, part=table.truth)[0],
        "cov_bias/z": table.expected_cov(reward, group, part=bias)[0],
        "cov_bias_none/z": table.covariance(bias)[0],
        "tied": weights[((right == 0) | (right == group)) & ~one_answer].sum(),
        "dead": weights[one_answer].sum(),
    }
    return _over_runs(truths, lambda: _tabular_row(rng, table, reward, group), count, "ledger")


def coarse_columns(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The parts of the push under a judge of three levels, which finds many groups equal that are
    not: there neither part reaches the policy."""
    group = 4
    table = Tabular(
        truth=np.array([1.0, 0.6, 0.3, 0.0]),
        features=np.array([[0.0], [1.0], [-0.5], [2.0]]),
        logits=np.log([0.15, 0.4, 0.3, 0.15]),
    )
    reward = np.array([1.0, 0.5, 0.5, 0.0])
    counts, weights = table.every_group(group)
    dead = counts @ (reward == 0.5) == group
    dead |= counts.max(axis=1) == group
    truths = {
        "cov_truth/z": table.expected_cov(reward, group, part=table.truth)[0],
        "cov_bias/z": table.expected_cov(reward, group, part=reward - table.truth)[0],
        "dead": weights[dead].sum(),
    }
    return _over_runs(truths, lambda: _tabular_row(rng, table, reward, group), count, "coarse")


def noise_columns(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """phi, J and what each failure policy does, under a noisy judge that fails on long answers."""
    tpr, fpr, p, miss, slope = judges.TPR, judges.FPR, 0.4, 0.2, 0.15
    q = p * tpr + (1 - p) * fpr
    # E z clip(miss + slope z, 0, 1) is the slope times the chance of not being clipped (Stein).
    lost = slope * float(norm.cdf((1 - miss) / slope) - norm.cdf(-miss / slope))
    truths = {
        "phi": judges.planted_phi(p),
        "j": tpr - fpr,
        "zero/cov/z": -q * lost,
        "unscored/cov/z": 0.0,
    }
    fault = Fault(tpr=tpr, fpr=fpr, miss=miss, miss_slope=slope)

    def one_run() -> dict[str, float]:
        data = simulate(rng, 64, fault, p=p)
        failed_as_zero = {"zero": np.nan_to_num(data.judge)}
        return _row(data.judge, data.truth, data.features, scale="none", under=failed_as_zero)

    return _over_runs(truths, one_run, count, "noise")


def drift(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The shift of a behaviour over sampled GRPO runs, against the expected path."""
    steps, group, rate = 20, 8, 0.1
    truth = np.array([1.0, 0.0, 0.0, 0.5])
    start = Tabular(truth, np.array([[0.0], [1.0], [2.0], [3.0]]), np.zeros(4))
    reward = truth + 0.2 * start.features[:, 0]
    path, policy = [], start
    for _ in range(steps):
        path.append(policy.behaviour()[0])
        policy = policy.step(reward, group, rate)
    behaviour = sampled_runs(
        *(start, reward, rng),
        **{"runs": count * SEEDS, "steps": steps, "prompts": 16, "group": group, "rate": rate},
    )
    shifts = np.array([shift(values) for values in behaviour[..., 0]]).reshape(count, SEEDS)
    true = shift(np.array(path))
    return {"drift shift, tabular GRPO": trials(true, map(mean_interval, shifts))}


def failures(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Wilson's interval of a share of failures."""
    counts = rng.binomial(640, 0.07, count)
    return {"failure share, Wilson": trials(0.07, (wilson(failed, 640) for failed in counts))}


CHECKS: tuple[Check, ...] = (
    *(
        run_level,
        differences_of_arms,
        regression,
        ledger_columns,
        coarse_columns,
        noise_columns,
        drift,
        failures,
    ),
    *onset.CHECKS,
    *propagation.CHECKS,
    *judges.CHECKS,
    *mixture.CHECKS,
    *workflow.CHECKS,
    *field.CHECKS,
    *panel.CHECKS,
    *audit.CHECKS,
)


def coverage_table(replications: int = FEWEST) -> list[Row]:
    """One row per estimator, each over ``replications`` planted data sets."""
    return _table(CHECKS, replications)


def known_faults(replications: int = FEWEST) -> list[Row]:
    """The same of intervals that are known to be wrong where the row plants its data."""
    return _table((*judges.FAILING, *onset.FAILING, *field.FAILING), replications)


def trained_policies(replications: int = FEWEST) -> list[Row]:
    """Predicted shifts of policies that are trained and not of a formula: theory is first order,
    and the bias of the rows says where it stops."""
    return _table(trained.CHECKS, replications)


def _table(checks: Iterable[Check], replications: int) -> list[Row]:
    """The rows of some checks, each with random numbers of its own whatever stands beside it."""
    by_name: dict[str, Trials] = {}
    for check in checks:
        rng = np.random.default_rng([0, crc32(check.__qualname__.encode())])
        by_name |= check(rng, replications)
    return [judge_coverage(name, outcome, len(by_name)) for name, outcome in by_name.items()]


def _tabular_row(
    rng: np.random.Generator, table: Tabular, reward: np.ndarray, group: int
) -> dict[str, float]:
    """The ledger's row of one step of 64 sampled groups; ``reward`` is of every answer."""
    answers = table.sample(rng, 64, group)
    return _row(reward[answers], table.truth[answers], table.features[answers])


def _row(
    judge_P_G: np.ndarray, truth_P_G: np.ndarray, features_P_G_1: np.ndarray, **options: Any
) -> dict[str, float]:
    """The ledger's row of one step in which the judge's score is the reward."""
    nothing = np.full(judge_P_G.shape, np.nan)
    scores = (judge_P_G, nothing, truth_P_G, judge_P_G, features_P_G_1, ("z",))
    return step_row(Run("", "", 0, True, np.ones(len(judge_P_G), dtype=int), *scores, **options))


def _over_runs(
    truths: Mapping[str, float], one_run: Callable[[], Mapping[str, float]], count: int, name: str
) -> dict[str, Trials]:
    rows = [one_run() for _ in range(count * SEEDS)]
    out = {}
    for column, truth in truths.items():
        values = np.array([row[column] for row in rows]).reshape(count, SEEDS)
        out[f"{name} {column}, t over runs"] = trials(truth, map(mean_interval, values))
    return out
