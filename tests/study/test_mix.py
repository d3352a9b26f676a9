"""Shares of domains: as weighted, as drawn, and of what reaches the policy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.rewards.advantages import advantages
from study.tasks.mix import nominal, realised, shares

DOMAINS = st.sampled_from(["math", "qa", "code", ""])
PAIRS = st.lists(st.tuples(st.floats(-10, 10), DOMAINS), max_size=30)


@given(PAIRS)
def test_shares_are_what_a_plain_sum_by_domain_says(pairs):
    sums: dict[str, float] = {}
    for advantage, domain in pairs:
        sums[domain] = sums.get(domain, 0.0) + abs(advantage)
    domain_shares = shares([advantage for advantage, _ in pairs], [domain for _, domain in pairs])
    assert list(domain_shares) == sorted(sums)
    total = math.fsum(sums.values())
    for domain, share in domain_shares.items():
        assert share == pytest.approx(sums[domain] / total) if total else math.isnan(share)


def test_shares_are_of_what_is_weighted_drawn_and_pushed():
    assert nominal({"math": 4.0, "qa": 3.0, "code": 3.0}) == {"math": 0.4, "qa": 0.3, "code": 0.3}
    assert realised(["qa", "qa", "math", "qa"]) == {"math": 0.25, "qa": 0.75}
    assert realised([]) == {}
    assert shares([1.0, math.nan, -1.0], ["math", "qa", "qa"]) == {"math": 0.5, "qa": 0.5}
    with pytest.raises(ValueError, match="1 domains for 2 advantages"):
        shares([1.0, 2.0], ["math"])
    tied = advantages(np.array([[1.0, 1.0], [math.nan, 1.0]]))
    assert all(math.isnan(share) for share in shares(tied, ["math", "math", "qa", "qa"]).values())


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_dead_group_has_no_share_in_the_effective_mix(scale):
    rewards = np.array([[0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    domain_shares = shares(
        advantages(rewards, scale), np.repeat(["math", "qa", "code"], 4).tolist()
    )
    pushed = np.abs(advantages(rewards, scale)).sum(axis=1)
    assert domain_shares["qa"] == 0.0
    assert domain_shares["math"] == pytest.approx(pushed[0] / pushed.sum())
    assert sum(domain_shares.values()) == pytest.approx(1.0)
