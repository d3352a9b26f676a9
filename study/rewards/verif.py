"""VerIF's reward: the part that code can check times the part that needs a judge."""

from __future__ import annotations

from study.rewards.parts import Parts, rule_part
from study.schema import Reward


def verif(reward: Reward, parts: Parts) -> float | None:
    """Rule part x judge part; a row without rules that are run has the rule part 1.

    None where either part is missing, even where the other one is 0 and the product would be known:
    to keep such rollouts only would leave a group with its failures and without its successes.

    Source: VerIF, arXiv 2506.09942; its code takes the mean of the rules, its text all or nothing
    (``reward.rule_part``).
    """
    rules = rule_part(parts.rules, reward.rule_part) if parts.rules else 1.0
    return None if rules is None or parts.judge is None else rules * parts.judge
