"""The smallest effect that a declared design can see, before anything is launched.

Runs are the units: seeds per arm, compared two-sided by Student's t, paired by seed or not, and by
the exact tests whose smallest p is set by the number of seeds alone. Light to import: plan=true
prints this.
"""

from __future__ import annotations

from itertools import count
from math import comb

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
        seeds: S, runs per arm.

    Raises:
        ValueError: fewer than two seeds, which have no spread to test against.
    """
    if seeds < 2:
        raise ValueError(f"a t test needs two seeds per arm or more, not {seeds}")
    free = seeds - 1 if paired else 2 * seeds - 2
    shift = abs(effect) * (seeds if paired else seeds / 2) ** 0.5
    t = special.stdtrit(free, 1 - alpha / 2)
    # T < -t needs a standard normal below -shift; past 6 that is nothing, and nctdtr gives NaN.
    wrong_side = special.nctdtr(free, shift, -t) if shift < 6 else 0.0
    return float(1 - special.nctdtr(free, shift, t) + wrong_side)


def smallest_effect(
    seeds: int, *, paired: bool, alpha: float = ALPHA, wanted: float = POWER
) -> float:
    """Effect that is seen with probability ``wanted``, in the units of `power`; NaN for one seed.

    For 5 seeds: 1.68 paired, 2.02 unpaired.
    """
    if seeds < 2:
        return float("nan")
    low, high = 0.0, 1.0
    while power(high, seeds, paired=paired, alpha=alpha) < wanted:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        enough = power(middle, seeds, paired=paired, alpha=alpha) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return high


def smallest_p(seeds: int, *, paired: bool) -> float:
    """Smallest two-sided p of the exact test, whatever the data.

    2 / 2^S over the sign flips of S pairs, 2 / C(2 S, S) over the permutations of two arms of S
    runs; 1 for a single pair or run, where both orders are alike.
    """
    return min(1.0, 2 / (2**seeds if paired else comb(2 * seeds, seeds)))


def fewest_seeds(*, paired: bool, alpha: float = ALPHA) -> int:
    """Fewest seeds per arm with which the exact test can go below ``alpha``: 6 paired, 4 not."""
    return next(seeds for seeds in count(1) if smallest_p(seeds, paired=paired) < alpha)


def power_lines(seeds: int, arms: int, sd: float | None = None, unit: str = "score") -> list[str]:
    """Sentences on what a sweep of ``arms`` arms with ``seeds`` runs each can see.

    Each arm is compared with the first, paired by seed.

    Args:
        sd: between runs of one arm in ``unit``, where an earlier study tells; the paired effect is
            then given for runs of one seed that have nothing in common, which is its largest.

    Raises:
        ValueError: no seed, no arm, or an sd that is not above 0.
    """
    if seeds < 1 or arms < 1 or (sd is not None and not sd > 0):
        raise ValueError(f"seeds={seeds}, arms={arms}, sd={sd}: each must be above 0")
    if seeds == 1:
        return [
            "Power: one seed per arm gives no interval and no test, whatever the effect; a judge "
            f"is applied to a run, and its prompts are not replicates. Take {_enough()}."
        ]
    if arms == 1:
        alone = smallest_effect(seeds, paired=True)
        lines = [
            f"Power: one arm of {seeds} seeds sees a shift from its own start of {alone:.2f} SD "
            f"between runs{_in_units(alone, sd, unit)} ({_SAID}); there is no other arm to "
            "compare it with."
        ]
        return [*lines, *_floor(seeds, 1)]
    paired, unpaired = (smallest_effect(seeds, paired=by_seed) for by_seed in (True, False))
    lines = [
        f"Power: with {seeds} seeds per arm, the smallest difference between two arms that is seen "
        f"({_SAID}) is {paired:.2f} SD of the differences by seed, paired"
        f"{_in_units(paired * 2**0.5, sd, unit, 'at most ')}, or {unpaired:.2f} SD between runs, "
        f"unpaired{_in_units(unpaired, sd, unit)}."
    ]
    if arms > 2:
        strict = smallest_effect(seeds, paired=True, alpha=ALPHA / (arms - 1))
        lines.append(
            f"Power: each of {arms - 1} arms against the first, corrected for {arms - 1} "
            f"comparisons (p < {ALPHA / (arms - 1):.2g}): {strict:.2f} SD of the differences by "
            f"seed{_in_units(strict * 2**0.5, sd, unit, 'at most ')}."
        )
    return [*lines, *_floor(seeds, arms)]


_SAID = f"two-sided t, p < {ALPHA:g}, power {POWER:g}"


def _floor(seeds: int, arms: int) -> list[str]:
    """What the exact test can reach, as a warning where that is not enough."""
    floor = smallest_p(seeds, paired=True)
    if floor >= ALPHA:
        return [
            f"Warning: {seeds} seeds can never reach p < {ALPHA:g} in the exact sign-flip test: "
            f"its smallest p is 2/2^{seeds} = {floor:.3g}. Take {_enough()}; the t test can, if "
            "the differences between runs are normal."
        ]
    corrected = ALPHA / max(1, arms - 1)
    if floor >= corrected:
        needed = fewest_seeds(paired=True, alpha=corrected)
        return [
            f"Warning: {seeds} seeds reach an exact sign-flip p of {floor:.3g} at best, which is "
            f"not below {corrected:.2g}, p < {ALPHA:g} corrected for {arms - 1} comparisons; "
            f"{needed} seeds could."
        ]
    return [f"Power: the exact sign-flip test on {seeds} seeds can reach p = {floor:.2g}."]


def _in_units(effect: float, sd: float | None, unit: str, at_most: str = "") -> str:
    return "" if sd is None else f" ({at_most}{effect * sd:.3g} {unit})"


def _enough() -> str:
    return f"seed={','.join(str(seed) for seed in range(fewest_seeds(paired=True)))} or more"
