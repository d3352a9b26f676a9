"""Judges in the order of what they would teach: how sure the order is, and how it came out.

Forecast pushes come per prompt, and the same prompts were scored by all judges: prompts are drawn
again for all of them at once, so what prompts share does not blur the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from scipy.stats import rankdata

from analysis.arm.dose import trend_p
from analysis.records.behaviour import shift
from analysis.records.runs import read_runs, step_means
from analysis.statistics.estimate import Estimate
from analysis.step.transmission import known_mean

DRAWS = 2000
SHOWN = 4
"""Behaviours told in full: those that the judges differ on most."""


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


def moved_most(pushes: Iterable[Mapping[str, Any]]) -> list[str]:
    """The behaviours on which judges differ most, in SDs, the widest first."""
    by_feature: dict[str, list[float]] = {}
    for push in pushes:
        by_feature.setdefault(push["feature"], []).append(push["in_sds"])
    spread = {name: float(np.ptp(v)) for name, v in by_feature.items() if np.isfinite(v).all()}
    return sorted(spread, key=lambda name: -spread[name])[:SHOWN]


def validate(study_dir: Path, forecast: dict[str, Any]) -> list[dict[str, Any]]:
    """Rank correlation of forecast push and observed shift over arms, per behaviour.

    The observed shift of an arm is the mean over its finished runs. Spearman's rho with its
    two-sided permutation p (exact up to seven arms) and Kendall's tau; NaN where fewer than three
    arms have both. ``forecast`` is what `analysis.arm.forecast.forecast` gives.
    """
    moved: dict[tuple[str, str], list[float]] = {}
    for run in read_runs(study_dir)[0]:
        for k, name in enumerate(run.names if run.done else ()):
            level = step_means(run, run.features[..., k])
            moved.setdefault((run.arm, name), []).append(shift(level))
    lines = []
    for feature in dict.fromkeys(push["feature"] for push in forecast["pushes"]):
        pairs = [
            (push["push"], known_mean(np.array(moved[push["judge"], feature])))
            for push in forecast["pushes"]
            if push["feature"] == feature and (push["judge"], feature) in moved
        ]
        x, y = np.array([p for p in pairs if np.isfinite(p).all()]).reshape(-1, 2).T
        nan = float("nan")
        line = {"feature": feature, "arms": len(x), "rho": nan, "p": nan, "tau": nan}
        if len(x) >= 3 and np.ptp(x) > 0 and np.ptp(y) > 0:
            places = stats.rankdata(x), stats.rankdata(y)
            line |= {"rho": float(np.corrcoef(*places)[0, 1]), "p": trend_p(*places)}
            line |= {"tau": float(stats.kendalltau(x, y).statistic)}
        lines.append(line)
    return lines
