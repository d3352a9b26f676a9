"""What ``python -m analysis.ledger`` prints: each judge's means over steps."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.printed import NO_RUN
from analysis.records.runs import Run
from analysis.reports.markup import MISSING, bracket, number
from study.rewards.failure import REPLAY_POLICIES

_PER_FEATURE = ("bias", "cov", "cov_truth", "cov_bias", "cov_bias_none", "unique")
_PER_RUN = (
    *("unscored", "tied", "dead", "starved", "phi", "j", "gain", "gain_tied", "amplification"),
    *("bias_share", "bias_share_none", "bias_r2", "advantage_r2"),
)


def ledger_text(runs: Sequence[Run], table: pd.DataFrame) -> list[str]:
    """One block per judge; the table is that of `analysis.step.ledger.judge_table`."""
    texts = [
        f"{number(mean)} {bracket(low, high)}".strip()
        for mean, low, high in zip(table["mean"], table["low"], table["high"], strict=True)
    ]
    cells = table.assign(text=texts).set_index(["arm", "metric"])
    lines = []
    for arm in dict.fromkeys(table["arm"]):
        count, text = cells.loc[arm, "n"].max(), cells.loc[arm, "text"]
        lines.append(f"\n{arm}: {count} runs; mean over steps [95 % t interval over runs]")
        lines += [f"  {metric:<16} {text[metric]}" for metric in _PER_RUN]
        compared = [name for name in text.index if name.startswith("align/")]
        compared = [name for name in compared if name.endswith(("cosine", "flips"))]
        compared += [f"{name}/{key}" for name in REPLAY_POLICIES[1:] for key in ("cosine", "flips")]
        lines += [f"  {metric:<24} {text[metric]}" for metric in compared]
        lines.append(f"  {'feature':<12}" + "".join(f"{key:<32}" for key in _PER_FEATURE))
        for name in runs[0].names:
            columns = [text[f"{key}/{name}"] for key in _PER_FEATURE]
            if set(columns) != {MISSING}:
                lines.append(f"  {name:<12}" + "".join(f"{column:<32}" for column in columns))
    return lines or [NO_RUN]
