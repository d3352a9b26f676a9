"""Judges in the order of what they would teach, and how sure the order is.

Forecast pushes come per prompt, and the same prompts were scored by all judges: prompts are drawn
again for all of them at once, so what prompts share does not blur the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from analysis.statistics.estimate import Estimate

DRAWS = 2000


@dataclass(frozen=True)
class Ranked:
    """One judge's place on one behaviour, 1 pushes it up most, with its place in 95 % of the draws
    of prompts."""

    judge: str
    feature: str
    rank: Estimate


def rank(
    covariances: Mapping[str, np.ndarray], names: Sequence[str], seed: int = 0
) -> list[Ranked]:
    """Places of all judges on each behaviour; behaviours that a judge has no push on are left out.

    Args:
        covariances: judge -> Cov(advantage, feature) of each group, shape (P, K).
        names: the K features.
    """
    stacked = np.stack(list(covariances.values()))
    finite = np.isfinite(stacked)
    filled = np.where(finite, stacked, 0.0)
    prompts = stacked.shape[1]
    drawn = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), DRAWS)
    weights = np.concatenate([np.ones((1, prompts)), drawn])
    sums = np.einsum("bp,jpk->bjk", weights, filled)
    counts = np.einsum("bp,jpk->bjk", weights, finite.astype(float))
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    lines = []
    for k, name in enumerate(names):
        if not np.isfinite(means[0, :, k]).all() or np.ptp(means[0, :, k]) == 0:
            continue
        whole = means[:, :, k][np.isfinite(means[:, :, k]).all(axis=1)]
        places = rankdata(-whole, method="min", axis=1)
        low, high = np.quantile(places[1:], [0.025, 0.975], axis=0, method="closest_observation")
        by_judge = zip(places[0].tolist(), low.tolist(), high.tolist(), strict=True)
        lines += [
            Ranked(judge, name, Estimate(*ends, prompts, "prompt"))
            for judge, ends in zip(covariances, by_judge, strict=True)
        ]
    return lines
