"""The smallest effect that a declared design can see, before anything is launched.

Runs are compared by the interval of the report (`analysis.statistics.run_variance`), so what a
plan says is seen is what the report then tells from 0; prompts by Student's t. Beside it stand the
exact tests, whose smallest p is set by the number of seeds alone. Light to import: plan=true prints
this.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count

import numpy as np
from scipy import special

from analysis.statistics.run_variance import BEFORE_DATA, RunVariance

ALPHA = 0.05
POWER = 0.8
NODES, DRAWS = 48, 200
"""Observed ratios at which an interval is computed, and quantiles of what is observed."""


def power(effect: float, units: int, alpha: float = ALPHA) -> float:
    """Chance that a two-sided t test over ``units``, two or more, sees a true mean of ``effect``,
    in SDs between units.

    T = mean / its standard error is noncentral t with n - 1 degrees of freedom and noncentrality
    effect sqrt(n) (Cohen 1988, ch. 2).
    """
    free, shift = units - 1, abs(effect) * units**0.5
    t = special.stdtrit(free, 1 - alpha / 2)
    # T < -t needs a standard normal below -shift; past 6 that is nothing, and nctdtr gives NaN.
    wrong_side = special.nctdtr(free, shift, -t) if shift < 6 else 0.0
    return float(1 - special.nctdtr(free, shift, t) + wrong_side)


@cache
def smallest_effect(units: int, alpha: float = ALPHA) -> float:
    """Effect that is seen with probability `POWER`, in the units of `power`; NaN for one unit.

    For 5 units: 1.68.
    """
    if units < 2:
        return float("nan")
    return _smallest(lambda effect: power(effect, units, alpha))


def smallest_difference(
    seeds: int, ratios: RunVariance = BEFORE_DATA, alpha: float = ALPHA
) -> float:
    """True difference of two arms that their interval tells from 0 with probability `POWER`, in SDs
    of the differences by seed; NaN for one seed.

    The chance is the mean over the weights of ``ratios``: of a variance between runs r times that
    of their sampling, s^2 / r is chi square over its degrees of freedom, and the interval is
    `RunVariance.half` of s^2. By the prior it is 2.23 for 3 seeds, 1.74 for 4 and 1.30 for 6.

    Args:
        seeds: pairs of runs.
        ratios: learnt from a study; by default the prior's, before there is one.
    """
    if seeds < 2:
        return float("nan")
    free = seeds - 1
    node = np.geomspace(1e-2, ratios.reach, NODES)
    half = np.array([ratios.half(observed, free, alpha=alpha) for observed in node])
    quantile = (np.arange(DRAWS) + 0.5) / DRAWS
    observed_R_D = np.outer(ratios.ratio_R, 2 * special.gammaincinv(free / 2, quantile) / free)
    t = -special.stdtrit(free, alpha / 2)
    half_R_D = np.where(
        observed_R_D <= ratios.reach,
        np.interp(np.log(observed_R_D), np.log(node), half),
        t * np.sqrt(observed_R_D),
    )
    limit_R_D = half_R_D / np.sqrt(ratios.ratio_R)[:, None]

    def seen(effect: float) -> float:
        shift = effect * seeds**0.5
        chance = special.ndtr(shift - limit_R_D) + special.ndtr(-shift - limit_R_D)
        return float(ratios.weight_R @ chance.mean(axis=1))

    return _smallest(seen)


def _smallest(chance: Callable[[float], float]) -> float:
    """The effect of which ``chance``, which grows with it, is `POWER`."""
    low, high = 0.0, 1.0
    while chance(high) < POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if chance(middle) >= POWER else (middle, high)
    return high


def smallest_p(seeds: int) -> float:
    """Smallest two-sided p of the exact sign-flip test on S pairs, whatever the data: 2 / 2^S."""
    return 2 / 2**seeds


def fewest_seeds(alpha: float = ALPHA) -> int:
    """Fewest pairs with which the sign-flip test can go below ``alpha``: 6 for .05."""
    return next(seeds for seeds in count(1) if smallest_p(seeds) < alpha)


def power_lines(seeds: int, arms: int) -> list[str]:
    """Sentences on what a sweep of ``arms`` arms with ``seeds`` runs each can see at one look.

    Each arm is compared with the first, paired by seed.
    """
    if seeds == 1:
        return [
            "Power: one seed per arm gives no interval and no test, whatever the effect; a judge "
            f"is applied to a run, and its prompts are not replicates. Type {_enough()}."
        ]
    smallest = f"{smallest_difference(seeds):.2f} SD"
    if arms == 1:
        lines = [
            f"Power: one arm of {seeds} seeds sees a shift from its own start of {smallest} "
            f"between runs ({_SAID}); there is no other arm to compare it with. {_BEFORE}"
        ]
        return [*lines, *_floor(seeds, 1)]
    lines = [
        f"Power: with {seeds} seeds per arm, the smallest difference between two arms that is seen "
        f"({_SAID}) is {smallest} of the differences by seed. {_BEFORE}"
    ]
    if arms > 2:
        strict = smallest_difference(seeds, alpha=ALPHA / (arms - 1))
        lines.append(
            f"Power: each of {arms - 1} arms against the first, corrected for {arms - 1} "
            f"comparisons (p < {ALPHA / (arms - 1):.2g}): {strict:.2f} SD of the "
            "differences by seed."
        )
    return [*lines, *_floor(seeds, arms)]


_SAID = f"the report's 95 % interval leaves 0 out, power {POWER:g}"
_BEFORE = (
    "Before there are runs, how much they vary beyond sampling is a prior's (docs/statistics.md)."
)


def _floor(seeds: int, arms: int) -> list[str]:
    """What the exact test can reach, as a warning where that is not enough."""
    floor = smallest_p(seeds)
    if floor >= ALPHA:
        return [
            f"Warning: {seeds} seeds cannot reach p < {ALPHA:g} in the exact sign-flip test: "
            f"its smallest p is 2/2^{seeds} = {floor:.3g}. Take {_enough()}; the interval can, if "
            "the differences between runs are normal."
        ]
    corrected = ALPHA / max(1, arms - 1)
    if floor >= corrected:
        needed = fewest_seeds(corrected)
        return [
            f"Warning: {seeds} seeds reach an exact sign-flip p of {floor:.3g} at best, which is "
            f"not below {corrected:.2g}, p < {ALPHA:g} corrected for {arms - 1} comparisons; "
            f"{needed} seeds could."
        ]
    return [f"Power: the exact sign-flip test on {seeds} seeds can reach p = {floor:.2g}."]


def _enough() -> str:
    return f"seed={','.join(str(seed) for seed in range(fewest_seeds()))} or more"
