"""How often does an interval of trained arms that do not differ leave 0 out?

One judge without bias, whose noise is drawn anew in each arm: arms of a seed share their prompts
and first rollouts, and differ in nothing that a judge teaches. Six arms of 24 seeds each::

    python -m experiments.sweep judge=sim-noisy judge.simulated.seed=1,2,3,4,5,6 \\
        seed="$(seq -s, 0 23)" study=null-runs
    python -m tests.claims.null_runs study=null-runs

The runs are cut into studies of three arms and of 3, 4 and 6 seeds, each of which is read as the
report reads it. A row for each: the share of intervals that leave 0 out, with a t interval over
studies, and the share of studies in which any does after Holm's correction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.drift.estimate import one_behaviour, shift_table
from analysis.frozen.effects import effects_of
from analysis.records.runs import Run, read_runs
from analysis.statistics.intervals import mean_interval
from study.cli import command, option

ARMS = 3
"""Of a study: the base and two that are compared with it."""
SEEDS = (3, 4, 6)
ALPHA = 0.05


@dataclass(frozen=True)
class Options:
    """The command line; see the module."""

    study: str = option("name of the study of null runs", "null-runs")
    runs_dir: Path = option("folder that holds the studies", Path("runs"))


def null_studies(runs: Sequence[Run], seeds: int) -> Iterator[list[Run]]:
    """Studies of `ARMS` arms and so many seeds, no run in two of them."""
    by_arm: dict[str, dict[int, Run]] = {}
    for run in runs:
        by_arm.setdefault(run.arm, {})[run.seed] = run
    arms = sorted(by_arm)
    shared = sorted(set.intersection(*(set(of_arm) for of_arm in by_arm.values())))
    for first in range(0, len(arms) - ARMS + 1, ARMS):
        for begin in range(0, len(shared) - seeds + 1, seeds):
            yield [
                replace(by_arm[arm][seed], arm=f"arm-{place}")
                for place, arm in enumerate(arms[first : first + ARMS])
                for seed in shared[begin : begin + seeds]
            ]


def false_findings(study: Sequence[Run]) -> tuple[float, bool]:
    """The share of intervals of differences that leave 0 out, and whether any effect is a finding
    after Holm's correction. Measures in which no arm differs at all are left out, and those that
    cannot be told from another."""
    effects = effects_of(study, "arm-0")
    shifts = pd.concat([effects.scores, effects.behaviours])
    same = one_behaviour(study, study[0].names)
    table = shift_table(shifts, "arm-0", same, effects.variances)
    differ = table[(table["diff_high"] > table["diff_low"]) & ~table["metric"].isin([*same])]
    leaves_0_out = (differ["diff_low"] > 0) | (differ["diff_high"] < 0)
    return float(leaves_0_out.mean()), bool((differ["p_holm"] < ALPHA).any())


@command("tests.claims.null_runs study=null-runs", __doc__, Options)
def main(options: Options) -> int:
    runs, _ = read_runs(options.runs_dir / options.study)
    done = [run for run in runs if run.done]
    print(f"{len(done)} trained runs")
    for seeds in SEEDS:
        of_studies = [false_findings(study) for study in null_studies(done, seeds)]
        if not of_studies:
            print(f"{seeds} seeds: no study, as too few arms have so many runs of the same seeds")
            continue
        shares, findings = np.array(of_studies, dtype=float).T
        rate = mean_interval(shares)
        print(
            f"{seeds} seeds, {len(shares)} studies: {rate.value:.3f} [{rate.low:.3f},"
            f" {rate.high:.3f}] leave 0 out, {findings.mean():.3f} of studies have a finding"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
