"""The evidence of a study, its findings and limits, and each sentence that is made of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from analysis.drift import estimate as drift
from analysis.onset.estimate import Line, Onset, line
from analysis.onset.overopt import rows
from analysis.onset.threshold_grid import Grid
from analysis.propagation.calibration import Calibration, PushPrediction
from analysis.records.runs import Run, read_study
from analysis.report.evidence import Evidence, of_records
from analysis.report.words import findings, limits
from analysis.statistics.estimate import Estimate
from analysis.statistics.prediction import Scores
from study.features import FEATURES
from tests.analysis.conftest import changed, made_run, write_kl


def test_it_holds_the_runs_asked_for_and_no_other(real_evidence):
    trained = [("sim-fair", 3), ("sim-fair", 4), ("sim-flaky", 3), ("sim-flaky", 4)]
    assert [(run.arm, run.seed) for run in real_evidence.runs] == trained
    cell = real_evidence.runs[0].cell
    one = of_records(real_evidence.records, [cell])
    assert set(one.ledger["cell"]) == {line.cell for line in one.onsets} == {cell}
    assert "1 runs of two steps or more" in " ".join(limits(one))


def test_without_shadows_the_command_is_said(real_evidence):
    without = partial(dataclasses.replace, shadows={})
    bare = changed(real_evidence, partial(map, without))
    assert "type shadow=[NAME,NAME]" in " ".join(limits(bare))
    assert not any("gained" in line for line in findings(bare))


def test_a_replay_that_cannot_be_read_is_said(copied, real_evidence):
    study, cell = copied("again"), real_evidence.runs[0].cell
    part = study / "replays" / "sim-strict" / cell / "verdicts" / "step-000001.parquet"
    part.parent.mkdir(parents=True)
    part.write_text("no parquet")
    (problem,) = of_records(read_study(study), [cell]).problems
    assert f"replays/sim-strict/{cell}" in problem and "this replay is left out" in problem


def test_curves_over_kl_are_fitted_and_a_constant_truth_has_no_peak(make_study):
    study = make_study(judges=("sim-verbose",), seeds=1, steps=12)
    cell = write_kl(study, 12)
    found = of_records(read_study(study), [cell.name])
    assert [row["best"] is not None for row in found.overoptimisation] == [True, True]
    assert not any("peaks" in line for line in findings(found))
    assert not any("Over-optimisation" in line for line in limits(found))


def test_without_kl_over_optimisation_is_said_to_be_unknown(evidence):
    (line,) = [one for one in limits(evidence) if one.startswith("Over-optimisation")]
    assert "no KL was recorded" in line


def line_of(arm: str, seed: int, step: float) -> Line:
    nan, grid = float("nan"), Grid(None, None, None, 0, None)
    onset = Onset(Estimate(step, step, step), 0.01 if step == step else 0.5, 0.0, 0.1)
    return Line(f"{arm}{seed}", arm, seed, 9, 0.0, nan, onset, grid, grid, None, None, "")


def test_sentences_of_what_began_and_what_was_explained(real_evidence):
    """Three arms by hand: one rises at 4 and 6, one in one run of two, one never."""
    nan = float("nan")
    begun = {"a": (6.0, 4.0), "b": (nan, 5.0), "c": (nan, nan)}
    lines = [line_of(arm, seed, step) for arm, at in begun.items() for seed, step in enumerate(at)]

    def one(feature: str, r2: float) -> Calibration:
        return Calibration(feature, Scores(4, 2, r2), Scores(4, 2, 0.25), 0.75)

    names = real_evidence.runs[0].names
    spread = {name: float(np.nanstd(np.concatenate([r.features[..., k].ravel() for r in
              real_evidence.runs]))) for k, name in enumerate(names)}  # fmt: skip
    moved = sorted((name for name in names if spread[name] > 0), key=spread.__getitem__)[-3:]
    predicted = [
        PushPrediction(
            *("x", "a", name, Estimate(sds * spread[name]), Estimate(0.0)), *(0.0, 0.0, 1.0, 3)
        )
        for name, sds in zip(moved, (1.0, -1.0, 0.01), strict=True)
    ]
    found = dataclasses.replace(
        real_evidence,
        onsets=lines,
        predicted=predicted,
        moved={moved[0]: 0.001, moved[1]: 0.04, moved[2]: 0.06},
        same={},
        calibration=[one(moved[0], 0.93), one(moved[1], 0.2), one(moved[2], 0.99)],
        no_prediction="",
    )
    text = " ".join(findings(found))
    assert "rises under a" not in text
    assert (
        "Judge minus truth begins to rise beyond what the judge's calibration explains, the onset "
        "being the first step above the level before: under a at steps 4 to 6 (2 of 2 runs), 95 % "
        "intervals within steps 4 to 6, under b at step 5 (1 of 2 runs), 95 % intervals within "
        "step 5; nowhere else is it seen to (of 6 runs tested, chance alone would show a rise in "
        "0.3)." in text
    )
    assert (
        f"is consistent with what was learned for {moved[0]} (R2 0.93 over 4 runs, 0.25 with the "
        "step size from other arms; repeating the arm's other runs has 0.75), but is not seen"
        in text
    )
    assert f"Moved, but not as the advantages account for: {moved[1]} (R2 0.20)." in text
    assert moved[2] not in text.split("What was rewarded")[1].split("Judge minus truth")[0]


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
    one = replace(straight, overoptimisation=[*straight.overoptimisation, row])
    assert sentence(one, "The truth peaks") == "", "one of 16 may be chance"
    said = sentence(one, "Whether the truth peaks cannot be told: it is seen to in 1 run,")
    assert "(of 16 runs with a KL, chance alone would show a peak in 0.56)" in said
    three = replace(straight, overoptimisation=[*straight.overoptimisation, row, row, row])
    said = sentence(three, "The truth peaks at these square roots of KL: sim-verbose seed 0 ")
    assert said.endswith("(of 18 runs with a KL, chance alone would show a peak in 0.63).")
    assert "sim-fair" not in said


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
        return [start for line in findings(study) for start in said if line.startswith(start)]

    nan = float("nan")
    assert told(0.9, 0.8) == told(0.6, nan) == ["What was rewarded explains"]
    for unseen, repeated in ((0.8, 0.8), (0.7, 0.8), (0.4, 0.3), (0.4, nan), (nan, 0.2)):
        assert told(unseen, repeated) == ["What was rewarded is consistent"]
    assert told(0.9, 0.1, r2=0.4) == ["Moved, but"]
