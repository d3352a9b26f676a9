"""Metrics of a step by the domain of its rows: ``domain/<name>/...``.

How judge and rule saw the domain's rollouts, and four shares of the mixture: as weighted, as drawn,
as it reached the policy, and as it would have under the rule alone. A value that a step cannot give
is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.ledger.transmission import dead_groups, yes_no
from analysis.statistics.estimate import known_mean
from study.rewards.advantages import advantages
from study.tasks.mix import realised, shares


def domain_metrics(
    rollouts: Sequence[Mapping[str, Any]], group_size: int, scale: str, nominal: Mapping[str, float]
) -> dict[str, float]:
    """Metrics of every domain that is in the mixture or among the rollouts.

    Args:
        rollouts: P * ``group_size`` records in group order.
        group_size: G.
        scale: ``trainer.scale_rewards``, for the advantages that truths would have made.
        nominal: domain -> share; empty where that is not known.
    """
    domains_N = [row.get("domain") or "" for row in rollouts]
    domains_P = domains_N[::group_size]
    if not (present := {*nominal, *domains_P} - {""}):
        return {}
    names = ("truth", "judge_score", "reward", "advantage", "tokens")
    values = {
        name: np.array([row[name] for row in rollouts], dtype=float).reshape(-1, group_size)
        for name in names
    }
    mixes = {
        "nominal_share": nominal,
        "realised_share": realised(domains_N),
        "effective_share": shares(values["advantage"], domains_N),
        "rule_effective_share": shares(advantages(values["truth"], scale), domains_N),
    }
    metrics: dict[str, float] = {}
    for domain in sorted(present):
        here = np.array(domains_P) == domain
        measures = _of_domain({name: matrix[here] for name, matrix in values.items()})
        for name, mix in mixes.items():
            nothing = 0.0 if mix and np.isfinite(sum(mix.values())) else np.nan
            measures[name] = mix.get(domain, nothing)
        metrics |= {
            f"domain/{domain}/{name}": value
            for name, value in measures.items()
            if np.isfinite(value)
        }
    return metrics


def _of_domain(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What the rollouts of one domain say, each matrix (P, G); NaN where they say nothing."""
    truth, judge, reward = values["truth"], values["judge_score"], values["reward"]
    rates = yes_no(judge, truth)
    return {
        "n": float(truth.size),
        "truth": known_mean(truth),
        "judge": known_mean(judge),
        "gap": known_mean(judge - truth),
        "tpr": rates["tpr"],
        "fpr": rates["fpr"],
        "unscored_frac": float(np.isnan(judge).mean()) if judge.size else np.nan,
        "frac_zero_std": known_mean(dead_groups(reward)),
        "reward": known_mean(reward),
        "tokens": known_mean(values["tokens"]),
    }
