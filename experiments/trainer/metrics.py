"""The metrics of a step: TRL's under our names, and means over its rollouts."""

from __future__ import annotations

from experiments.trainer.scorer import StepRecord
from study.cell.records import COMPONENT
from study.features import FEATURES, measured

TRL_METRICS = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "frac_reward_zero_std": "reward/frac_zero_std",
    "completions/mean_length": "policy/length_tokens",
    "completions/clipped_ratio": "policy/truncated_frac",
    "entropy": "policy/entropy",
    "kl": "policy/kl",
    "sampling/importance_sampling_ratio/mean": "policy/vllm_ratio",
    "grad_norm": "policy/grad_norm",
    "loss": "policy/loss",
    "learning_rate": "policy/learning_rate",
    "step_time": "time/step_s",
}
"""TRL's name -> ours; a metric that TRL reports as None has no scored sample and is left out."""


def step_metrics(record: StepRecord, keyword: str) -> dict[str, float]:
    """Means over the step's rollouts: truth, judge score, their gap, and the behaviour vector.

    Args:
        keyword: what the behaviour ``keyword`` counts; that of the acting judge, if it has one.
    """
    metrics = dict(record.metrics)
    rows = record.rollouts
    pairs = [
        (row["judge_score"], row["truth"])
        for row in rows
        if row["judge_score"] is not None and row["truth"] is not None
    ]
    for name, values in (
        ("truth/mean", [row["truth"] for row in rows if row["truth"] is not None]),
        ("judge/mean", [row["judge_score"] for row in rows if row["judge_score"] is not None]),
        ("bias/judge_minus_truth", [score - truth for score, truth in pairs]),
    ):
        if values:
            metrics[name] = sum(values) / len(values)
    for name in ("ratio", "gap"):
        values = [row[key] for row in rows if (key := f"{COMPONENT}scaffold_{name}") in row]
        if values:
            metrics[f"scaffold/{name}"] = sum(values) / len(values)
    n_items = [len(row["scaffold_items"]) for row in rows if "scaffold_items" in row]
    if n_items:
        metrics["scaffold/shown"] = sum(n_items) / len(n_items)
    metrics["policy/unanswered_frac"] = sum(row["answer"] is None for row in rows) / len(rows)
    values_N_K = measured([row["answer"] for row in rows if row["answer"] is not None], keyword)
    for name, column in zip(FEATURES, values_N_K.T.tolist(), strict=True):
        if column and (keyword or name != "keyword"):
            metrics[f"policy/{name}"] = sum(column) / len(column)
    return metrics
