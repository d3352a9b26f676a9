"""The ledger of a study: `analysis.ledger.transmission` applied to every run and step on record."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.display.markup import MISSING, TEXTS, estimate
from analysis.display.printed import NO_RUN, with_problems
from analysis.ledger.estimate import ERRORS, SHARES, judge_table, ledger
from analysis.records.runs import read_runs
from study.cli import StudyOptions, command, output
from study.rewards.failure import REPLAY_POLICIES

_PER_FEATURE = ("bias", "cov", "cov_truth", "cov_bias", "cov_bias_none", "unique", *ERRORS)
_AT_EQUAL_TRUTH = tuple(f"given_truth/{level}" for level in TEXTS["levels"])
_LOST = ("truth_push", "lost", "lost_share", "lost_low", "lost_high")
"""Of an arm that misses a verdict."""
_PER_RUN = (
    *("unscored", "tied", "dead", "too_few", "phi", "j", "gain", "gain_tied", "amplification"),
    *("slope", *SHARES, "bias_share_none"),
    *("bias_r2", "advantage_r2"),
)
_PER_POLICY = tuple(f"{name}/{key}" for name in REPLAY_POLICIES[1:] for key in ("cosine", "flips"))


@dataclass(frozen=True)
class Options(StudyOptions):
    """Options of `analysis.ledger`: the study, and the file for its steps."""

    out: Path | None = output("Parquet file for the steps")


@command("analysis.ledger study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    runs, problems = read_runs(options.folder)
    steps = ledger(runs)
    if options.out:
        steps.to_parquet(options.out)
    lines = []
    for arm, rows in judge_table(runs, steps).set_index("metric").groupby("arm", sort=False):
        text = {m: estimate(*r, sign=False) for m, r in rows[["mean", "low", "high"]].T.items()}
        aligned = [m for m in text if m.startswith("align/") and m.endswith(("cosine", "flips"))]
        lines.append(
            f"\n{arm}: {rows['n'].max()} runs; mean over steps [95 % t interval over runs]"
        )
        lines += [f"  {metric:<18} {text[metric]}" for metric in _PER_RUN]
        lines += [f"  {metric:<24} {text[metric]}" for metric in (*aligned, *_PER_POLICY)]
        width = 2 + max(map(len, (*runs[0].names, "repetition")))
        keys = (*_PER_FEATURE, *_AT_EQUAL_TRUTH, *(_LOST if rows["mean"]["unscored"] else ()))
        known = {key for key in keys for name in runs[0].names if f"{key}/{name}" in text}
        keys = [key for key in keys if key in known]
        lines.append(f"  {'feature':<{width}}" + "".join(f"{key:<32}" for key in keys))
        for name in runs[0].names:
            columns = [text.get(f"{key}/{name}", MISSING) for key in keys]
            if set(columns) != {MISSING}:
                lines.append(f"  {name:<{width}}" + "".join(f"{column:<32}" for column in columns))
    print(with_problems(lines or [NO_RUN], [*problems, *steps.attrs["problems"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
