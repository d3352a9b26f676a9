"""Bounds on a mean where most prompts stand at one value, so that their spread says little.

Rare changes are mostly not seen: 0 of n changed prompts leave room for up to 1 - alpha^(1/n) of all
prompts to change, each by as much as the scale has. Gaffke's bound puts that into one number with
the changes that were seen: Dirichlet(1, ..., 1) weights on the n values and one more at the end of
the scale. With nothing seen it is Clopper and Pearson's bound on the share times the room, with
changes to the end of the scale it is theirs too, and otherwise it knows how large the changes are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.statistics.estimate import LEVEL

STILL = 0.01
"""Score units within which a prompt stands where the middle prompt does."""
DRAWS = 20_000
"""Of the weights, with a fixed seed: a p of .05 is known to .0015."""
SEEN = 6
"""Fewest changes that an exact sign test can call one-sided: 2 / 2^6 is below .05."""


@dataclass(frozen=True)
class Rare:
    """``still`` prompts around one value and a few ``apart`` from it, on a scale with two ends."""

    value: float
    """Mean of the prompts that stand still."""
    still: int
    apart: tuple[float, ...]
    ends: tuple[float, float]

    def bounds(self) -> tuple[float, float]:
        """The mean of all prompts with two one-sided bounds, each at 97.5 %."""
        tail = (1 - LEVEL) / 2
        if not self.apart:
            share = 1 - tail ** (1 / self.still)
            low, high = (self.value + share * (end - self.value) for end in self.ends)
        else:
            quantiles = zip(self.ends, (tail, 1 - tail), strict=True)
            low, high = (float(np.quantile(self._means(end), at)) for end, at in quantiles)
        return low, high

    def at_least(self, mean: float) -> float:
        """One-sided p that the mean of all prompts is ``mean`` or more."""
        return self._one_sided_p(mean, self.ends[1], 1)

    def at_most(self, mean: float) -> float:
        """One-sided p that the mean of all prompts is ``mean`` or less."""
        return self._one_sided_p(mean, self.ends[0], -1)

    def smallest(self, power: float) -> float:
        """The mean that changes to one end, in as few prompts as may be, have with that power.

        A sign test sees them from `SEEN` on; NaN for fewer prompts than that.
        """
        prompts = self.still + len(self.apart)
        if prompts < SEEN:
            return float("nan")
        share = float(stats.beta.ppf(power, SEEN, prompts - SEEN + 1))
        return share * max(abs(end - self.value) for end in self.ends)

    def _one_sided_p(self, mean: float, end: float, sign: int) -> float:
        gap = sign * (mean - self.value)
        if not self.apart:
            if gap <= 0:
                return 1.0
            room = sign * (end - self.value)
            return max(0.0, 1 - gap / room) ** self.still if room > 0 else 0.0
        return float((sign * (self._means(end) - mean) >= 0).mean())

    def _means(self, end: float) -> np.ndarray:
        """Draws of the weighted mean with one more prompt at ``end``."""
        return _weights(self.still, len(self.apart)) @ np.array([self.value, *self.apart, end])


@functools.lru_cache(maxsize=4)
def _weights(still: int, apart: int) -> np.ndarray:
    """Dirichlet weights of those that stand still together, of each other one, and of the end."""
    return np.random.default_rng(0).dirichlet([still, *[1.0] * (apart + 1)], DRAWS)
