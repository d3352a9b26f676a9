"""Each sentence of the findings: absent where it would be false, there where it is true."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from analysis.drift import estimate as drift
from analysis.onset.estimate import line
from analysis.onset.overopt import rows
from analysis.propagation.calibration import Calibration
from analysis.records.runs import Run
from analysis.report.evidence import Evidence
from analysis.report.words import findings
from analysis.statistics.prediction import Scores
from study.features import FEATURES
from tests.analysis.conftest import made_run

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
    return made_run(
        judge, truth, cell=f"{arm}{seed}", arm=arm, seed=seed, step_P=step_P, logged=kl,
        features=np.zeros((*shape, 1)), config={"trainer.steps": STEPS},
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
    rng = np.random.default_rng(4)  # of these runs two rise by chance
    flat = [planted(rng, "sim-fair", seed, np.full(STEPS, 0.5)) for seed in range(24)]
    still = [line(run, []) for run in flat]
    assert sum(np.isfinite(row.onset.step.value) for row in still) == 2
    begins = "Judge minus truth begins to rise"
    assert sentence(replace(evidence, onsets=still), begins) == ""
    said = sentence(replace(evidence, onsets=still), "Whether judge minus truth rises")
    assert "seen to in 2 runs" in said and "chance alone would show a rise in 1.2)" in said
    ramp = np.clip((np.arange(1, STEPS + 1) - 8) * 0.03, 0, None)
    rising = [planted(rng, "sim-verbose", seed, np.full(STEPS, 0.5), ramp) for seed in range(3)]
    both = replace(evidence, onsets=[*still, *(line(run, []) for run in rising)])
    said = sentence(both, begins)
    assert "under sim-verbose at step" in said and "(3 of 3 runs)" in said
    assert "of 27 runs tested, chance alone would show a rise in 1.35)" in said


def behaving(
    rng: np.random.Generator, arm: str, seed: int, by_sd: Mapping[str, float], twins: bool = False
) -> Run:
    """A run of two steps that moves each behaviour; exclamation marks may be those of flattery."""
    features = rng.normal(size=(2 * GROUPS, MEMBERS, len(FEATURES)))
    features[GROUPS:] += [by_sd.get(name, 0.0) for name in FEATURES]
    if twins:
        flattery = features[..., FEATURES.index("flattery")]
        noise = 0.1 * rng.normal(size=flattery.shape)
        features[..., FEATURES.index("exclamation")] = flattery + noise
    return made_run(
        np.full(features.shape[:2], np.nan), cell=f"{arm}{seed}", arm=arm, seed=seed,
        step_P=np.repeat([1, 2], GROUPS), features=features, names=FEATURES,
    )  # fmt: skip


def of_behaviours(evidence: Evidence, runs: Sequence[Run]) -> Evidence:
    """The evidence with what these runs' behaviours say; a prediction fits each of them well."""
    shifts = drift.run_shifts(runs, drift.feature_values)
    same = drift.one_behaviour(runs, FEATURES)
    fitted = [Calibration(name, Scores(4, 2, 0.9), Scores(4, 2, 0.25), 0.75) for name in FEATURES]
    return replace(
        evidence,
        feature_shifts=drift.shift_table(shifts, "sim-fair", same),
        spread=dict.fromkeys(FEATURES, 1.0),
        same=same,
        moved=drift.moved(shifts[~shifts["metric"].isin(list(same))]),
        calibration=fitted,
    )


def test_a_behaviour_moved_only_where_it_moved_more_than_sampling_allows(evidence):
    rng = np.random.default_rng(4)
    arms = ("sim-fair", "sim-verbose")
    still = [behaving(rng, arm, seed, {}) for arm in arms for seed in range(13)]
    largest = drift.run_shifts(still, drift.feature_values)["shift"].abs().max()
    assert largest > 0.5  # SDs, the largest of many shifts that are all noise
    told = of_behaviours(evidence, still)
    assert sentence(told, "What was rewarded") == "" == sentence(told, "Moved, but")
    dosed = [behaving(rng, "sim-verbose", seed, {"length": 0.4}) for seed in range(13)]
    told = of_behaviours(evidence, [*still[:13], *dosed])
    assert [name for name, p in told.moved.items() if p < 0.05] == ["length"]


def test_exclamation_marks_and_flattery_are_counted_once_where_they_are_one(evidence):
    rng = np.random.default_rng(5)
    moves = {"flattery": 3.0, "exclamation": 3.0}

    def told(twins: bool) -> tuple[str, Evidence]:
        runs = [
            behaving(rng, arm, seed, moves if arm == "sim-verbose" else {}, twins)
            for arm in ("sim-fair", "sim-verbose")
            for seed in range(8)
        ]
        study = of_behaviours(evidence, runs)
        return sentence(study, "sim-verbose beyond sim-fair"), study

    once, one = told(twins=True)
    assert one.same == {"exclamation": "flattery"}
    assert f"1 of {len(FEATURES) - 1} behaviours differ" in once
    assert "flattery (and exclamation with it) +" in once
    twice, two = told(twins=False)
    assert two.same == {} and f"2 of {len(FEATURES)} behaviours differ" in twice
    assert "with it" not in twice


def test_explained_only_where_other_arms_tell_more_than_repetition(evidence):
    def told(unseen: float, repeated: float, r2: float = 0.9) -> list[str]:
        fitted = Calibration("length", Scores(8, 4, r2), Scores(8, 4, unseen), repeated)
        study = replace(evidence, calibration=[fitted], moved={"length": 0.01}, no_prediction="")
        said = ("What was rewarded explains", "What was rewarded is consistent", "Moved, but")
        return [start for start in said if sentence(study, start)]

    nan = float("nan")
    assert told(0.9, 0.8) == told(0.6, nan) == ["What was rewarded explains"]
    for unseen, repeated in ((0.8, 0.8), (0.7, 0.8), (0.4, 0.3), (0.4, nan), (nan, 0.2)):
        assert told(unseen, repeated) == ["What was rewarded is consistent"]
    assert told(0.9, 0.1, r2=0.4) == ["Moved, but"]
