"""The ledger of a study: `analysis.step.transmission` applied to every run and step on record."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.command import study_command
from analysis.records.runs import Run, read_runs
from analysis.reports.markup import MISSING, bracket, number
from analysis.step.ledger import judge_table, ledger
from study.errors import UserError
from study.rewards.failure import REPLAY_POLICIES

if TYPE_CHECKING:
    import pandas as pd

USAGE = "python -m analysis.ledger study=quickstart [runs_dir=runs] [out=ledger.parquet]"


def main(arguments: Sequence[str]) -> int:
    """Command line. Exit codes: 0 printed, 2 a user's error."""
    try:
        given, folder = study_command(arguments, ("out",), USAGE)
        runs, problems = read_runs(folder)
        steps = ledger(runs)
        problems += steps.attrs["problems"]
        if given.get("out"):
            steps.to_parquet(given["out"])
        if runs:
            _print(runs, judge_table(runs, steps))
        else:
            print("No run of this study has recorded rollouts yet.")
        for line in problems:
            print(f"problem: {line}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


_PER_FEATURE = ("bias", "cov", "cov_truth", "cov_bias", "cov_bias_none", "unique")


_PER_RUN = (
    *("unscored", "tied", "dead", "starved", "phi", "j", "gain", "gain_tied", "amplification"),
    *("bias_share", "bias_share_none", "bias_r2", "advantage_r2"),
)


def _print(runs: Sequence[Run], table: pd.DataFrame) -> None:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
