"""Each sentence of the findings: absent where it would be false, there where it is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.records.runs import Run
from analysis.reports.evidence import Evidence
from analysis.reports.words import findings
from analysis.run.onset import line
from analysis.run.overopt import rows

STEPS, GROUPS, MEMBERS = 24, 8, 4


def sentence(evidence: Evidence, start: str) -> str:
    """The finding that begins so; empty where there is none."""
    return next((line for line in findings(evidence) if line.startswith(start)), "")


def planted(
    rng: np.random.Generator,
    arm: str,
    seed: int,
    truth_T: Sequence[float] | np.ndarray,
    gap_T: Sequence[float] | np.ndarray = (0.0,) * STEPS,
) -> Run:
    """A run whose truth and gap follow a path, with noise in every rollout; d grows from 0 to 4."""
    step_P = np.repeat(np.arange(1, STEPS + 1), GROUPS)
    shape = (len(step_P), MEMBERS)
    truth = np.asarray(truth_T)[step_P - 1, None] + rng.normal(0, 0.1, shape)
    judge = truth + np.asarray(gap_T)[step_P - 1, None] + rng.normal(0, 0.1, shape)
    kl = {"policy/kl": np.linspace(0, 4, STEPS) ** 2, "policy/length_tokens": np.ones(STEPS)}
    return Run(
        f"{arm}{seed}", arm, seed, True, step_P, reward=judge, advantage=judge, truth=truth,
        judge=judge, features=np.zeros((*shape, 1)), names=("length",), rollouts=truth.size,
        config={"trainer.steps": STEPS}, logged=kl,
    )  # fmt: skip


def test_the_truth_peaks_only_where_a_straight_line_fits_worse(evidence):
    rng, d = np.random.default_rng(0), np.linspace(0, 4, STEPS)
    lines = [
        planted(rng, "sim-fair", seed, 0.4 + slope * d)
        for seed, slope in enumerate(np.repeat([0.0, 0.05, -0.05], 5))
    ]
    straight = replace(evidence, overoptimisation=[row for run in lines for row in rows(run)])
    assert sentence(straight, "The truth peaks") == ""
    bent = planted(rng, "sim-verbose", 0, 0.4 + d * (0.2 - 0.05 * d))  # peak at .2 / (2 * .05)
    (row, _) = rows(bent)
    assert row["low"] <= 2 <= row["high"]
    both = replace(straight, overoptimisation=[*straight.overoptimisation, row])
    said = sentence(both, "The truth peaks at sqrt KL: sim-verbose seed 0 ")
    assert said.endswith("(1 of 16 runs with a KL).") and "sim-fair" not in said


def test_the_gap_begins_to_rise_only_in_more_runs_than_by_chance(evidence):
    rng = np.random.default_rng(2)  # of these runs two rise by chance
    flat = [planted(rng, "sim-fair", seed, np.full(STEPS, 0.5)) for seed in range(24)]
    still = [line(run, []) for run in flat]
    seen = sum(np.isfinite(row.onset.step.value) for row in still)
    assert seen == 2
    begins = "Judge minus truth begins to rise"
    assert sentence(replace(evidence, onsets=still), begins) == ""
    said = sentence(replace(evidence, onsets=still), "Whether judge minus truth rises")
    assert "seen to in 2 runs" in said and "of 24 runs tested, 1.2 would" in said
    ramp = np.clip((np.arange(1, STEPS + 1) - 8) * 0.03, 0, None)
    rising = [planted(rng, "sim-verbose", seed, np.full(STEPS, 0.5), ramp) for seed in range(3)]
    both = replace(evidence, onsets=[*still, *(line(run, []) for run in rising)])
    said = sentence(both, begins)
    assert "under sim-verbose at step" in said and "(3 of 3 runs)" in said
    assert "of 27 runs tested, 1.35 would be expected by chance" in said
