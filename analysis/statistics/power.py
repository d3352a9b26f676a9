"""The smallest effect that a declared design can see, before anything is launched.

Runs are the units: seeds per arm, compared two-sided by Student's t, paired by seed or not, and by
the exact tests whose smallest p is set by the number of seeds alone. Light to import: plan=true
prints this.
"""

from __future__ import annotations

from functools import cache
from itertools import count

from scipy import special

ALPHA = 0.05
POWER = 0.8


def power(effect: float, seeds: int, *, paired: bool, alpha: float = ALPHA) -> float:
    """Chance that a two-sided t test sees a true difference of ``effect``.

    T = difference / its standard error is noncentral t: paired with S - 1 degrees of freedom and
    noncentrality effect sqrt(S), unpaired with 2 S - 2 and effect sqrt(S / 2) (Cohen 1988, ch. 2).

    Args:
        effect: paired in SDs of the differences between the two runs of one seed, unpaired in
            SDs between the runs of one arm.
        seeds: S, runs per arm, two or more.
    """
    free = seeds - 1 if paired else 2 * seeds - 2
    shift = abs(effect) * (seeds if paired else seeds / 2) ** 0.5
    t = special.stdtrit(free, 1 - alpha / 2)
    # T < -t needs a standard normal below -shift; past 6 that is nothing, and nctdtr gives NaN.
    wrong_side = special.nctdtr(free, shift, -t) if shift < 6 else 0.0
    return float(1 - special.nctdtr(free, shift, t) + wrong_side)


@cache
def smallest_effect(seeds: int, *, paired: bool, alpha: float = ALPHA) -> float:
    """Effect that is seen with probability `POWER`, in the units of `power`; NaN for one seed.

    For 5 seeds: 1.68 paired, 2.02 unpaired.
    """
    if seeds < 2:
        return float("nan")
    low, high = 0.0, 1.0
    while power(high, seeds, paired=paired, alpha=alpha) < POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        enough = power(middle, seeds, paired=paired, alpha=alpha) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def smallest_p(seeds: int) -> float:
    """Smallest two-sided p of the exact sign-flip test on S pairs, whatever the data: 2 / 2^S."""
    return 2 / 2**seeds


def fewest_seeds(alpha: float = ALPHA) -> int:
    """Fewest pairs with which the sign-flip test can go below ``alpha``: 6 for .05."""
    return next(seeds for seeds in count(1) if smallest_p(seeds) < alpha)


def power_lines(seeds: int, arms: int) -> list[str]:
    """Sentences on what a sweep of ``arms`` arms with ``seeds`` runs each can see.

    Each arm is compared with the first, paired by seed.
    """
    if seeds == 1:
        return [
            "Power: one seed per arm gives no interval and no test, whatever the effect; a judge "
            f"is applied to a run, and its prompts are not replicates. Type {_enough()}."
        ]
    if arms == 1:
        alone = smallest_effect(seeds, paired=True)
        lines = [
            f"Power: one arm of {seeds} seeds sees a shift from its own start of {alone:.2f} SD "
            f"between runs ({_SAID}); there is no other arm to compare it with."
        ]
        return [*lines, *_floor(seeds, 1)]
    paired, unpaired = (smallest_effect(seeds, paired=by_seed) for by_seed in (True, False))
    lines = [
        f"Power: with {seeds} seeds per arm, the smallest difference between two arms that is seen "
        f"({_SAID}) is {paired:.2f} SD of the differences by seed, paired, "
        f"or {unpaired:.2f} SD between runs, unpaired."
    ]
    if arms > 2:
        strict = smallest_effect(seeds, paired=True, alpha=ALPHA / (arms - 1))
        lines.append(
            f"Power: each of {arms - 1} arms against the first, corrected for {arms - 1} "
            f"comparisons (p < {ALPHA / (arms - 1):.2g}): {strict:.2f} SD of the "
            "differences by seed."
        )
    return [*lines, *_floor(seeds, arms)]


_SAID = f"two-sided t, p < {ALPHA:g}, power {POWER:g}"


def _floor(seeds: int, arms: int) -> list[str]:
    """What the exact test can reach, as a warning where that is not enough."""
    floor = smallest_p(seeds)
    if floor >= ALPHA:
        return [
            f"Warning: {seeds} seeds cannot reach p < {ALPHA:g} in the exact sign-flip test: "
            f"its smallest p is 2/2^{seeds} = {floor:.3g}. Take {_enough()}; the t test can, if "
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
