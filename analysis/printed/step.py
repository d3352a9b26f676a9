"""What ``python -m analysis.ledger`` prints: each judge's means over steps."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.records.runs import Run
from analysis.reports.markup import MISSING, bracket, number
from study.rewards.failure import REPLAY_POLICIES

_PER_FEATURE = ("bias", "cov", "cov_truth", "cov_bias", "cov_bias_none", "unique")
_PER_RUN = (
    *("unscored", "tied", "dead", "starved", "phi", "j", "gain", "gain_tied", "amplification"),
    *("bias_share", "bias_share_none", "bias_r2", "advantage_r2"),
)


def print_ledger(runs: Sequence[Run], table: pd.DataFrame) -> None:
    """One block per judge; the table is that of `analysis.step.ledger.judge_table`."""
    cells = table.assign(
        text=[
            f"{number(m)} {bracket(lo, hi)}".strip()
            for m, lo, hi in zip(table["mean"], table["low"], table["high"], strict=True)
        ]
    ).set_index(["arm", "metric"])
    for arm in dict.fromkeys(table["arm"]):
        own = cells.loc[arm]
        print(f"\n{arm}: {own['n'].max()} runs; mean over steps [95 % t interval over runs]")
        for metric in _PER_RUN:
            print(f"  {metric:<16} {own.loc[metric, 'text']}")
        others = [
            m for m in own.index if m.startswith("align/") and m.endswith(("cosine", "flips"))
        ]
        compared = [
            f"{policy}/{key}" for policy in REPLAY_POLICIES[1:] for key in ("cosine", "flips")
        ]
        for metric in [*others, *compared]:
            print(f"  {metric:<24} {own.loc[metric, 'text']}")
        print(f"  {'feature':<12}" + "".join(f"{key:<32}" for key in _PER_FEATURE))
        for name in runs[0].names:
            texts = [own.loc[f"{key}/{name}", "text"] for key in _PER_FEATURE]
            if set(texts) != {MISSING}:
                print(f"  {name:<12}" + "".join(f"{text:<32}" for text in texts))
