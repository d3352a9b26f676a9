"""The self-internalisation gap: how far a policy still needs to be shown the rubric.

After Mahmoud et al. (2605.12474, sec. 3.3): of answers that the policy gave with the rubric in its
prompt, the log-probability per token without it minus the one with it. It is 0 or less on average
(minus a divergence), and rises towards 0 as the policy comes to do unasked what the rubric asks.
No judge is needed: where it stops rising, training has stopped teaching the rubric's content.

`self_gaps` has it of every arm whose policy was shown the rubric by a scaffold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.onset.threshold_grid import RADIUS
from analysis.records.frames import rollouts_frame, runs_frame
from analysis.records.runs import Run, tenths
from analysis.statistics.bootstrap import step_noise
from analysis.statistics.estimate import LEVEL, NAN, Estimate, around, ratio, ratio_se
from analysis.statistics.intervals import mean_interval, student
from study.cell.records import COMPONENT

REPLICATES = 1000
FEWEST_STEPS = 8


def self_gap(
    plain_N: np.ndarray, shown_N: np.ndarray, tokens_N: np.ndarray, prompt_N: np.ndarray
) -> Estimate:
    """Mean gap per token of N answers, with a t interval clustered by prompt.

    Args:
        plain_N: log-probability of each answer under the plain prompt, in nats; NaN is unknown.
        shown_N: under the prompt that shows the rubric, with which it was sampled.
        tokens_N: its length.
        prompt_N: labels of the prompts, whole numbers from 0.
    """
    gaps = (np.asarray(plain_N) - np.asarray(shown_N)) / np.asarray(tokens_N, dtype=float)
    has_gap = np.isfinite(gaps)
    counts = np.bincount(prompt_N[has_gap])
    sums = np.stack([np.bincount(prompt_N[has_gap], gaps[has_gap]), counts], axis=1)[counts > 0]
    prompts = len(sums)
    if not prompts:
        return Estimate(
            NAN, unit="prompt", note="no answer was sampled with the whole rubric shown"
        )
    value = float(ratio(sums.sum(axis=0)))
    if prompts == 1:
        return Estimate(value, n=1, unit="prompt", note="one prompt, no interval")
    return around(value, float(student(prompts - 1)) * ratio_se(sums), prompts, "prompt")


def peak(
    step_P: np.ndarray, sums_P_2: np.ndarray, seed: int = 0, replicates: int = REPLICATES
) -> Estimate:
    """The step at which the gap, a mean over five steps, is largest.

    The interval holds the middle 95 % of the steps at which it is largest when the groups of each
    step are drawn anew; NaN for fewer than eight steps.

    Args:
        step_P: the step of every group.
        sums_P_2: sum of the gaps over a group's answers, and how many they are.
    """
    has_gap = sums_P_2[:, 1] > 0
    rng = np.random.default_rng(seed)
    steps, means, errors, noise = step_noise(step_P[has_gap], sums_P_2[has_gap], replicates, rng)
    if len(steps) < FEWEST_STEPS:
        few = f"{len(steps)} steps with a gap, at least {FEWEST_STEPS} are needed"
        return Estimate(NAN, unit="step", note=few)
    near = abs(np.subtract.outer(np.arange(len(steps)), np.arange(len(steps)))) <= RADIUS
    smooth = near / near.sum(axis=1, keepdims=True)
    best = steps[int((smooth @ means).argmax())]
    if not np.isfinite(errors).all():
        return Estimate(float(best), n=len(steps), unit="step", note="steps of one group")
    drawn = ((means + noise) @ smooth.T).argmax(axis=1)
    low, high = np.quantile(steps[drawn], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    return Estimate(float(best), float(low), float(high), len(steps), "step")


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
