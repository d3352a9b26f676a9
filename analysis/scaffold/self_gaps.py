"""The self-internalisation gap of every arm whose policy was shown the rubric by a scaffold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records.behaviour import tenths
from analysis.records.frames import rollouts_frame, runs_frame
from analysis.records.runs import Run
from analysis.scaffold.self_gap import peak, self_gap
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import mean_interval
from study.cell.records import COMPONENT

WHOLE = 0.95
"""Share of a rubric shown from which it counts as the whole: that of ten criteria rounds to ten."""
SHOWN, RATIO = f"{COMPONENT}scaffold_logprob", f"{COMPONENT}scaffold_ratio"


@dataclass(frozen=True)
class SelfGaps:
    """The gap of one arm in nats per token, over runs."""

    arm: str
    start: Estimate
    """In the first tenth of the steps that have one."""
    end: Estimate
    peak: Estimate
    """The step of the largest gap, mean over runs."""
    tracks: Estimate
    """Correlation of the gap with the truth over the steps of a run, mean over runs."""
    by_run: list[tuple[Estimate, Estimate, Estimate]]
    """Start, end and peak of each run; its intervals are over prompts and groups."""


def self_gaps(runs: Sequence[Run], study_dir: Path) -> list[SelfGaps]:
    """A row for each arm with answers that were given with the whole rubric in the prompt."""
    with_scaffold = [run for run in runs if run.config.get("scaffold.name", "none") != "none"]
    if not with_scaffold:
        return []
    table = runs_frame(study_dir)
    by_arm: dict[str, list[tuple[Estimate, Estimate, Estimate, float]]] = {}
    for run in with_scaffold:
        columns = ["step", "group", "prompt_id", "tokens", "logprob_sum", "truth", SHOWN, RATIO]
        answers = rollouts_frame(study_dir, columns, table[table["cell"] == run.cell])
        has_logprob = answers[SHOWN].notna() & answers["tokens"].gt(0)
        whole = answers[has_logprob & answers[RATIO].ge(WHOLE)]
        if len(whole):
            by_arm.setdefault(run.arm, []).append(_of_run(whole, answers))
    rows = []
    for arm, run_estimates in sorted(by_arm.items()):
        starts, ends, peaks, tracks = zip(*run_estimates, strict=True)
        means = (mean_interval([each.value for each in part]) for part in (starts, ends, peaks))
        by_run = list(zip(starts, ends, peaks, strict=True))
        rows.append(SelfGaps(arm, *means, mean_interval(tracks), by_run))
    return rows


def _of_run(
    whole: pd.DataFrame, answers: pd.DataFrame
) -> tuple[Estimate, Estimate, Estimate, float]:
    """Start, end and peak of one run, and the correlation of its gap with the truth."""
    start, end = (
        self_gap(
            *(part["logprob_sum"].to_numpy(), part[SHOWN].to_numpy(), part["tokens"].to_numpy()),
            pd.factorize(part["prompt_id"])[0],
        )
        for part in (whole[whole["step"].isin(steps)] for steps in tenths(np.unique(whole["step"])))
    )
    gaps = whole.assign(gap=(whole["logprob_sum"] - whole[SHOWN]) / whole["tokens"])
    sums = gaps.groupby(["step", "group"])["gap"].agg(["sum", "count"])
    highest = peak(sums.index.get_level_values("step").to_numpy(), sums.to_numpy(dtype=float))
    by_step = gaps.groupby("step")["gap"].mean()
    truth = answers.groupby("step")["truth"].mean().reindex(by_step.index)
    varies = len(by_step) > 2 and by_step.std() > 0 and truth.std() > 0
    return start, end, highest, float(by_step.corr(truth)) if varies else float("nan")
