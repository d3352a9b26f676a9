"""Several looks at one study: how small a p must be at each, so that all together err as one would.

Whoever adds seeds in stages, looks after each and stops where p < .05, finds something in 7 to 11 %
of comparisons without an effect. The looks are declared before the first, by the numbers of seeds
at which they come (``sweep.looks=[3,4,6]``), and at each of them p has to be below one level. It is
that of Pocock (1977, Biometrika 64, 191), whose variance is known; here the runs tell theirs, and
the statistic is Student's t of the seeds there are::

    >>> round(level((3, 4, 6)), 3)
    0.021

Not to be trusted where seeds were looked at that no look was declared for, or where the looks were
chosen with results at hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import special

from analysis.statistics.power import ALPHA, POWER, smallest_difference
from study.screen import plural

DRAWS = 400_000
"""Drawn studies: the level of p is good to 1 % of itself."""


@cache
def level(looks: tuple[int, ...], alpha: float = ALPHA) -> float:
    """Level that p must be below at each of the looks, so that it is at any of them with
    probability ``alpha`` where differences of seeds are normal around 0.

    Args:
        looks: seeds at each, 2 or more, growing.
    """
    if len(looks) < 2:
        return alpha
    rng = np.random.default_rng(0)
    total_D, squares_D, smallest_D = np.zeros(DRAWS), np.zeros(DRAWS), np.ones(DRAWS)
    for seeds in range(1, looks[-1] + 1):
        difference_D = rng.standard_normal(DRAWS)
        total_D += difference_D
        squares_D += difference_D**2
        if seeds in looks:
            spread_D = np.sqrt((squares_D - total_D**2 / seeds) / (seeds - 1))
            t_D = np.abs(total_D) / (seeds**0.5 * spread_D)
            np.minimum(smallest_D, 2 * special.stdtr(seeds - 1, -t_D), out=smallest_D)
    return float(np.quantile(smallest_D, alpha))


@dataclass(frozen=True)
class Look:
    """Where ``seeds`` seeds stand among the looks that were declared; ``looks`` is empty where none
    was."""

    looks: Sequence[int]
    seeds: int

    @property
    def alpha(self) -> float:
        """What p must be below to be called clear: `ALPHA` where no looks were declared, and 0 at a
        number of seeds that is none of them."""
        if not self.looks:
            return ALPHA
        return level(tuple(self.looks)) if self.seeds in self.looks else 0.0

    @property
    def next(self) -> int | None:
        """Seeds of the first look that is to come; None where there is none."""
        return next((seeds for seeds in self.looks if seeds > self.seeds), None)

    def sentence(self) -> str:
        """Which look this is and what it takes to be clear; empty where no looks were declared."""
        if not self.looks:
            return ""
        declared = f"{', '.join(map(str, self.looks))} seeds"
        if self.seeds in self.looks:
            number = list(self.looks).index(self.seeds) + 1
            return (
                f"This is look {number} of {len(self.looks)}, declared at {declared}: a difference"
                f" is called clear below a p of {self.alpha:.2g}, so that all looks together err"
                f" in {100 * ALPHA:g} % of comparisons without an effect."
            )
        when = "any more" if self.next is None else f"before there are {self.next}"
        return (
            f"{plural(self.seeds, 'seed')} in every arm: that is none of the looks that were"
            f" declared, at {declared}, so no difference is called clear {when}."
        )


def look_lines(looks: Sequence[int], seeds: int) -> list[str]:
    """Sentences of a plan on the looks that are declared, the next of which is at ``seeds``."""
    if not looks:
        return []
    alpha = level(tuple(looks))
    lines = [
        f"Looks: at each of {', '.join(map(str, looks))} seeds a difference is called clear below a"
        f" p of {alpha:.2g}, so that all together err in {100 * ALPHA:g} % of comparisons without"
        " an effect. Seen with power"
        f" {POWER:g} at each: "
        + ", ".join(f"{smallest_difference(each, alpha=alpha):.2f}" for each in looks)
        + " SD of the differences by seed."
    ]
    if seeds not in looks:
        lines.append(
            f"Warning: {plural(seeds, 'seed')} per arm is none of the looks; nothing is called"
            " clear there."
        )
    return lines


def look_of(looks: Sequence[int], runs: Iterable[tuple[str, int]]) -> Look:
    """Where a study stands among its looks: by the seeds that every arm has. ``runs``: arm and seed
    of each."""
    seeds: dict[str, set[int]] = defaultdict(set)
    for arm, seed in runs:
        seeds[arm].add(seed)
    return Look(looks, len(set.intersection(*seeds.values())) if seeds else 0)
