"""Shares of the domains of a mixture: as weighted, as drawn, and as they reach the policy.

A policy learns from advantages, so the *effective* mix is the share of the sum of |advantage|: a
group whose rewards are all equal adds nothing to it, however often its domain is drawn. With the
advantages that the rule's truths would have made, it is the rule-effective mix.

>>> shares([1.0, -1.0, 0.5, -0.5], ["math", "math", "qa", "qa"])
{'math': 0.6666666666666666, 'qa': 0.3333333333333333}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def shares(
    advantages_N: Sequence[float] | np.ndarray, domains_N: Sequence[str]
) -> dict[str, float]:
    """Domain -> its share of the sum of |advantage|, by name; NaN where all advantages are 0.

    Args:
        advantages_N: of N rollouts, in any shape; NaN is a rollout without one, and adds nothing.
        domains_N: the domain of each; "" is one like the others.

    Raises:
        ValueError: not as many domains as advantages.
    """
    pushed = np.abs(np.asarray(advantages_N, dtype=float)).ravel()
    if len(pushed) != len(domains_N):
        raise ValueError(f"{len(domains_N)} domains for {len(pushed)} advantages")
    names, codes = np.unique(np.asarray(domains_N, dtype=str), return_inverse=True)
    return nominal(
        dict(zip(names.tolist(), np.bincount(codes, np.nan_to_num(pushed)).tolist(), strict=True))
    )


def realised(domains_N: Sequence[str]) -> dict[str, float]:
    """Domain -> its share of N rollouts, or of N prompts."""
    return shares(np.ones(len(domains_N)), domains_N)


def nominal(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights as shares that add up to 1; NaN where their sum is 0."""
    total = sum(weights.values())
    return {name: weight / total if total else float("nan") for name, weight in weights.items()}
