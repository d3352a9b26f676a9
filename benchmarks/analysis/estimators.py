"""Our estimators against those of statsmodels, at the sizes that a study has.

    python -m benchmarks.analysis.estimators [rounds=9]

Equality first, to 1e-9 or as said beside it; then both take turns. Lines, mixed models, survival
and kappas are statsmodels' already; docs/statistics.md has the table, and why the others are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import statsmodels.api as sm
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from analysis.probes.effects import clustered_mean, tost
from analysis.statistics.corrections import holm
from analysis.statistics.fixed_effects import fixed_effects
from analysis.statistics.intervals import mean_interval
from analysis.statistics.power import power, smallest_effect
from analysis.statistics.proportions import wilson
from benchmarks.race import race, read_sizes

RUNS, COMPARISONS, PROMPTS = 9, 33, 60
GROUPS, ROLLOUTS, BEHAVIOURS = 240, 8, 10
MARGIN = 0.05


@dataclass(frozen=True)
class Pair:
    """One estimate by both, each called to give the numbers that are compared."""

    what: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    tolerance: float = 1e-9
    calls: int = 100
    """Calls of each that are timed together."""


def pairs() -> list[Pair]:
    """Every estimator of ours that statsmodels has too, on planted numbers."""
    rng = np.random.default_rng(0)
    runs, p = rng.normal(size=RUNS), rng.random(COMPARISONS)
    edits = rng.normal(0.02, 0.1, PROMPTS)
    prompts = np.arange(PROMPTS)
    group = np.repeat(np.arange(GROUPS), ROLLOUTS)
    x = rng.normal(size=(len(group), BEHAVIOURS))
    y = x @ rng.normal(size=BEHAVIOURS) + rng.normal(size=GROUPS)[group] + rng.normal(size=len(x))

    def ends(estimate: Any) -> list[float]:
        return [estimate.low, estimate.high]

    def within() -> np.ndarray:
        fit = fixed_effects(y, x, group)
        return np.concatenate([fit.coef_K, fit.se_K])

    def by_ols() -> np.ndarray:
        counts = np.bincount(group)
        columns = np.column_stack([y, x])
        means = np.stack([np.bincount(group, column) / counts for column in columns.T], axis=1)
        centred = columns - means[group]
        fit = sm.OLS(centred[:, 0], centred[:, 1:]).fit(
            cov_type="cluster", cov_kwds={"groups": group}
        )
        return np.concatenate([fit.params, fit.bse])

    return [
        Pair(
            "Wilson's interval of a share",
            lambda: ends(wilson(13, 40)),
            lambda: proportion_confint(13, 40, method="wilson"),
        ),
        Pair(
            f"Holm's correction of {COMPARISONS} p",
            lambda: holm(p),
            lambda: multipletests(p, method="holm")[1],
            calls=5,
        ),
        Pair(
            f"t interval over {RUNS} runs",
            lambda: ends(mean_interval(runs.tolist())),
            lambda: DescrStatsW(runs).tconfint_mean(),
        ),
        Pair("power of a t test", lambda: power(1.2, 5), lambda: TTestPower().power(1.2, 5, 0.05)),
        Pair(
            "smallest effect that a t test sees",
            lambda: smallest_effect.__wrapped__(5),
            lambda: TTestPower().solve_power(nobs=5, alpha=0.05, power=0.8),
            tolerance=1e-6,
            calls=10,
        ),
        Pair(
            f"equivalence of {PROMPTS} pairs (TOST)",
            lambda: tost(clustered_mean(edits, prompts), MARGIN),
            lambda: ttost_paired(edits, np.zeros(PROMPTS), -MARGIN, MARGIN)[0],
        ),
        Pair(
            f"{BEHAVIOURS} slopes within {GROUPS} groups of {ROLLOUTS}, errors by group",
            within,
            by_ols,
            tolerance=1e-6,
            calls=10,
        ),
    ]


def repeated(call: Callable[[], Any], calls: int) -> Callable[[], None]:
    """So many calls of it as one."""

    def many() -> None:
        for _ in range(calls):
            call()

    return many


def main() -> None:
    """Equality of all, then the races; seconds are of all calls of a line."""
    rounds = read_sizes(rounds=9)["rounds"]
    every = pairs()
    for pair in every:
        np.testing.assert_allclose(pair.ours(), pair.peer(), rtol=pair.tolerance, err_msg=pair.what)
    print(f"all {len(every)} are equal")
    for pair in every:
        print(f"{pair.what}, {pair.calls} calls")
        race(
            repeated(pair.ours, pair.calls),
            {"statsmodels": repeated(pair.peer, pair.calls)},
            rounds,
            repeats=1,
        )


if __name__ == "__main__":
    main()
