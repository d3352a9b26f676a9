"""Metrics of a step's verdicts, truths and rewards, as the scorer has them before the update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from study.cell.records import COMPONENT
from study.programs.rewards import TERMS, effective_share
from study.rewards.compose import RewardInputs
from study.verdict import DIFFERENT, Outcome, Verdict


def component_shares(rollouts: Sequence[Mapping[str, Any]], group_size: int) -> dict[str, float]:
    """The effective share of each component of the rewards of programs."""
    terms = [
        None
        if row["reward"] is None
        else {name: row.get(f"{COMPONENT}workflow_{name}") or 0.0 for name in TERMS}
        for row in rollouts
    ]
    starts = range(0, len(terms), group_size)
    shares = effective_share([terms[start : start + group_size] for start in starts])
    return {f"workflow/share/{name}": share for name, share in shares.items() if share == share}


def penalty_metrics(terms: Sequence[dict[str, float | None]]) -> dict[str, float]:
    """Mean of each penalty that is switched on."""
    means = {}
    for name in ("overlong", "repetition"):
        values = [value for term in terms if (value := term.get(name)) is not None]
        if values:
            means[f"reward/{name}"] = sum(values) / len(values)
    return means


def missing_truths(inputs_N: Sequence[RewardInputs]) -> dict[str, float]:
    """The share of missing truths, where there is one."""
    missing = sum(rollout.truth_missing is not None for rollout in inputs_N)
    return {"truth/missing_frac": missing / len(inputs_N)} if missing else {}


def judge_metrics(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Failure shares by reason, latency, tokens and cost of one step's acting verdicts."""
    total = max(len(verdicts), 1)
    unscored = [v for v in verdicts if v.score is None]
    outcomes = Counter(v.outcome for v in verdicts)
    metrics = {
        f"judge/unscored/{outcome}": outcomes[outcome] / total
        for outcome in Outcome
        if outcome is not Outcome.scored
    }
    metrics["judge/unscored_frac"] = len(unscored) / total
    different = sum(DIFFERENT in v.reason for v in unscored)
    metrics["judge/different_verdicts_frac"] = different / total
    if fresh := [v for v in verdicts if not v.from_cache]:
        metrics["judge/latency_s"] = sum(v.latency_s for v in fresh) / len(fresh)
        metrics["cost/tokens_in"] = float(sum(v.tokens_in or 0 for v in fresh))
        metrics["cost/tokens_out"] = float(sum(v.tokens_out or 0 for v in fresh))
        metrics["cost/usd"] = sum(v.cost_usd or 0.0 for v in fresh)
    return metrics
