"""What audits of some shares of the groups find of a planted study, beside all of its truth.

    python -m benchmarks.analysis.audits [runs=200]

Runs of 200 steps of 16 groups of 8 answers, whose gap grows by .2 and whose truth falls by .15
(`analysis.audit.planted`). Prints for each share the groups, bias, coverage and half width of the
gap of one run, coverage and half width of the truth beyond a fair arm's over three seeds, the
median step of the alarm, and how often it rings for a judge whose gap does not grow.
"""

from __future__ import annotations

import numpy as np

from analysis.audit.planted import (
    RISE,
    against_fair,
    audited,
    expected_fall,
    gap_of,
    planted,
)
from analysis.ledger import judge_error
from analysis.onset.estimate import alarmed, by_looks
from analysis.records.runs import Run
from analysis.statistics.estimate import Estimate
from benchmarks.race import read_sizes

STEPS, GROUPS, SEEDS = 200, 16, 3
ROUNDING = 1e-9
SHARES = (0.01, 0.02, 0.05, 0.10, 1.0)


def alarm_of(run: Run) -> float:
    """The step at which the alarm rings; inf for never."""
    seen = by_looks(run)
    known = judge_error.calibrated(seen, seen.judge)
    alarm = alarmed(seen, known, len(np.unique(seen.step_P)))[1]
    return float("inf") if alarm is None else alarm


def covers(estimate: Estimate, truth: float) -> bool:
    """Whether an interval holds the truth."""
    return bool(estimate.low - ROUNDING <= truth <= estimate.high + ROUNDING)


def main(count: int) -> None:
    """Print the table, ``count`` studies a row."""
    print("share  groups  gap: bias  covers  +-     truth beyond: covers  +-     alarm at  false")
    fall = expected_fall(STEPS)
    for share in SHARES:
        rows, groups = [], 0
        for number in range(count):
            rng = np.random.default_rng(number)
            runs = [
                planted(rng, rise=rise, steps=STEPS, groups=GROUPS, seed=seed, arm=arm)
                for arm, rise in (("biased", RISE), ("fair", 0.0))
                for seed in range(SEEDS * number, SEEDS * number + SEEDS)
            ]
            some = [audited(run, share, number) for run in runs]
            groups = int(some[0].reference.asked_P.sum())
            whole = float((runs[0].judge - runs[0].truth).mean())
            gap = gap_of(some[0])
            beyond = against_fair(some)
            rows.append(
                [
                    *(gap.value - whole, covers(gap, whole), (gap.high - gap.low) / 2),
                    *(covers(beyond, fall), (beyond.high - beyond.low) / 2),
                    *(alarm_of(some[0]), alarm_of(some[SEEDS]) < np.inf),
                ]
            )
        table = np.array(rows, dtype=float)
        bias, within, half, within_beyond, half_beyond, _, false = table.mean(axis=0)
        print(
            f"{share:5.2f}  {groups:6}  {bias:+9.4f}  {within:6.3f}  {half:.3f}"
            f"  {within_beyond:20.3f}  {half_beyond:.3f}  {np.median(table[:, 5]):8.0f}"
            f"  {false:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main(read_sizes(runs=200)["runs"])
