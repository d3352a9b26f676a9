"""Runs whose gap grows by a planted amount, and audits of a share of their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import norm

from analysis.audit.estimate import mean_of_run, strata_of
from analysis.drift.estimate import difference as paired
from analysis.drift.estimate import run_shifts, run_variances
from analysis.planted.trials import replicated
from analysis.records.audited import Reference
from analysis.records.runs import Run, shift
from analysis.statistics.estimate import Estimate
from study.cell.audit import Frame, draw

STEPS, GROUPS, MEMBERS = 60, 12, 8
RISE, FALL = 0.2, 0.15
"""By how much judge - truth grows, and the truth falls, from the first step to the last."""
BETWEEN, ERROR = 0.25, 0.3
"""SD of prompts' difficulty, and of a judge's error of one answer."""


def planted(
    rng: np.random.Generator,
    *,
    rise: float = RISE,
    steps: int = STEPS,
    groups: int = GROUPS,
    seed: int = 0,
    arm: str = "biased",
) -> Run:
    """A run under a judge whose mean error grows by ``rise``: prompts are more or less difficult,
    answers right or wrong, and the score is the truth with an error within [0, 1]."""
    step_P = np.repeat(np.arange(1, steps + 1), groups)
    prompts = np.random.default_rng(seed)  # runs of a seed have the same prompts
    time_P = (step_P - 1) / max(steps - 1, 1)
    level_P = 0.6 + BETWEEN * prompts.standard_normal(len(step_P)) - FALL * time_P * (rise != 0)
    right = rng.random((len(step_P), MEMBERS)) < np.clip(level_P, 0.05, 0.95)[:, None]
    truth = right.astype(float)
    flipped = rng.random(truth.shape) < ERROR * rng.random(truth.shape)
    score = np.where(flipped, 1 - truth, truth)
    paid = rng.random(truth.shape) < rise * time_P[:, None] / 0.5
    score = np.where(paid & (score < 0.5), 1.0, score)
    return Run(
        cell=f"{arm}-{seed}",
        arm=arm,
        seed=seed,
        done=True,
        step_P=step_P,
        reward=score,
        advantage=score - score.mean(axis=1, keepdims=True),
        truth=truth,
        judge=score,
        features=rng.standard_normal((*truth.shape, 1)),
        names=("length",),
        scale="none",
        rollouts=truth.size,
        config={"judge.name": arm, "trainer.steps": steps},
        prompt_P=np.array([f"{seed}-{place}" for place in range(len(step_P))], dtype=object),
    )


def audited(
    run: Run,
    share: float,
    draw_seed: int,
    *,
    missing: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Run:
    """A run of which only a drawn share of the groups has a truth. The reference is right, and
    gives nothing for ``missing`` of its answers."""
    step_P = run.step_P
    group_P = np.concatenate([np.arange(n) for n in np.unique(step_P, return_counts=True)[1]])
    frame = Frame(run.cell, run.seed, int(step_P.max()), step_P, group_P)
    drawn, sizes = draw([frame], share, draw_seed)
    places = {(each.step, each.group) for each in drawn}
    asked_P = np.array([place in places for place in zip(step_P, group_P, strict=True)])
    score = np.where(asked_P[:, None], run.truth, np.nan)
    if rng is not None:
        score[rng.random(score.shape) < missing] = np.nan
    reference = Reference(score, asked_P, asked_P, frame.stretch_P, sizes[run.cell])
    return replace(run, truth=score, reference=reference)


def gap_of(run: Run) -> Estimate:
    """The mean gap of one run with its interval over draws."""
    assert run.reference is not None
    return mean_of_run(strata_of(run, run.judge - run.reference.score), run.reference.sizes)


def expected_fall(steps: int = STEPS) -> float:
    """What the truth of a biased arm moves more than that of a fair one, from the first tenth of
    the steps to the last: the mean of a normal that is cut at .05 and .95, at each step's level."""
    level_T = 0.6 - FALL * np.arange(steps) / (steps - 1)
    low, high = ((end - level_T) / BETWEEN for end in (0.05, 0.95))
    inside = norm.cdf(high) - norm.cdf(low)
    mean_T = level_T * inside + BETWEEN * (norm.pdf(low) - norm.pdf(high))
    mean_T += 0.05 * norm.cdf(low) + 0.95 * norm.sf(high)
    return shift(mean_T)


def against_fair(runs: Sequence[Run]) -> Estimate:
    """The fall of the truth in the biased arm beyond the fair one, as a report has it."""
    shifts = run_shifts(runs)
    shifts = shifts[shifts["metric"] == "truth"].set_index("seed")
    by_arm = dict(tuple(shifts.groupby("arm")))
    return paired(by_arm["biased"], by_arm["fair"], run_variances(shifts.reset_index(), "fair"))


SHARE, SEEDS = 0.05, 3


@replicated({"audit of 5 %, gap of a run": 0.0, "audit of 5 %, truth beyond": expected_fall()})
def audit_of_some(rng: np.random.Generator, number: int) -> list[Estimate]:
    """One run's gap less that of all its groups, over draws; the truth of two arms, t over runs."""
    runs = [
        planted(rng, rise=rise, seed=SEEDS * number + seed, arm=arm)
        for arm, rise in (("biased", RISE), ("fair", 0.0))
        for seed in range(SEEDS)
    ]
    some = [audited(run, SHARE, number) for run in runs]
    gap, whole = gap_of(some[0]), float((runs[0].judge - runs[0].truth).mean())
    apart = replace(gap, value=gap.value - whole, low=gap.low - whole, high=gap.high - whole)
    return [apart, against_fair(some)]


CHECKS = (audit_of_some,)
