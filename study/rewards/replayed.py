"""What another judge or failure policy changes in recorded scores, rewards and advantages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

import numpy as np

from study.rewards.advantages import alignment, rank_change, sign_flips, silenced


class Replayed(TypedDict):
    """A row of `study.cell.records.REPLAYED`."""

    rollout_id: str
    step: int
    prompt_id: str
    group: int
    member: int
    judge_score: float | None
    reward: float | None
    advantage: float | None
    original_score: float | None
    original_reward: float | None
    original_advantage: float | None


class RuleRow(TypedDict, total=False):
    """What of a recorded rollout says what its rules know."""

    truth: float | None
    domain: str | None
    outcome: str | None


class Changed(TypedDict):
    """What a replay changed, over all rollouts; see `compare`."""

    n: int
    unscored: float | None
    score: float | None
    original_score: float | None
    correlation: float | None
    sign_flips: float | None
    silenced: float | None
    alignment: float | None
    rank_change: float | None


class Gap(TypedDict):
    """Mean new and recorded score minus truth over ``n`` rollouts."""

    n: int
    gap: float
    original_gap: float


class Gaps(TypedDict, total=False):
    """Mean new and recorded score minus truth, in all and by domain."""

    gap: float
    original_gap: float
    domains: dict[str, Gap]


def compare(replayed: Sequence[Replayed], has_answer: Sequence[bool] | None = None) -> Changed:
    """What changed: n, unscored share, scores, and how the advantages moved; None where undefined.
    ``has_answer`` says of which of the N rollouts a judge is asked, of all where it is None.

    ``correlation`` is Pearson's of new and old scores over the rollouts that have both;
    ``sign_flips``, ``silenced``, ``alignment`` and ``rank_change`` are those of
    `study.rewards.advantages`, over all rollouts; rank changes only where groups have one size.
    """

    new = np.array([row["judge_score"] for row in replayed], dtype=float)
    old = np.array([row["original_score"] for row in replayed], dtype=float)
    after = np.array([row["advantage"] for row in replayed], dtype=float)
    before = np.array([row["original_advantage"] for row in replayed], dtype=float)
    both = np.isfinite(new) & np.isfinite(old)
    varied = both.sum() > 1 and new[both].std() > 0 and old[both].std() > 0
    has_advantage = np.isfinite(before)
    old_advantages, new_advantages = before[has_advantage], after[has_advantage]
    members = 1 + max((row["member"] for row in replayed), default=0)
    numbers: dict[str, float] = {
        "unscored": _mean(
            np.isnan(new)[slice(None) if has_answer is None else np.array(has_answer)]
        ),
        "score": _mean(new[np.isfinite(new)]),
        "original_score": _mean(old[np.isfinite(old)]),
        "correlation": float(np.corrcoef(new[both], old[both])[0, 1]) if varied else float("nan"),
        "sign_flips": sign_flips(old_advantages, new_advantages),
        "silenced": silenced(old_advantages, new_advantages),
        "alignment": alignment(old_advantages, new_advantages),
        "rank_change": rank_change(before.reshape(-1, members), after.reshape(-1, members))
        if len(replayed) % members == 0 and has_advantage.all()
        else float("nan"),
    }
    defined = {name: None if np.isnan(value) else value for name, value in numbers.items()}
    return cast(Changed, {"n": len(replayed), **defined})


def gaps(replayed: Sequence[Replayed], truths: Mapping[str, RuleRow]) -> Gaps:
    """Mean new and recorded score minus truth over the rollouts that have all three, in all and by
    domain; {} where no truth is on record."""
    pairs_of: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in replayed:
        truth_row = truths.get(row["rollout_id"], {})
        new, old, truth = row["judge_score"], row["original_score"], truth_row.get("truth")
        if new is not None and old is not None and truth is not None:
            for name in dict.fromkeys(("", truth_row.get("domain") or "")):
                pairs_of[name].append((new - truth, old - truth))
    means = {name: np.mean(pairs, axis=0).tolist() for name, pairs in pairs_of.items()}
    by_domain = {
        name: Gap(n=len(pairs_of[name]), gap=new, original_gap=old)
        for name, (new, old) in means.items()
    }
    if not by_domain:
        return {}
    whole = by_domain.pop("")
    return {"gap": whole["gap"], "original_gap": whole["original_gap"], "domains": by_domain}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
