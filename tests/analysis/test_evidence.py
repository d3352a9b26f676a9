"""What a report says of how the bias of a judge got into a policy, on a study trained for real."""

import dataclasses
from functools import partial

import numpy as np

from analysis.onset.estimate import Line, Onset
from analysis.onset.threshold_grid import Grid
from analysis.propagation.calibration import Calibration, PushPrediction
from analysis.records.runs import read_study
from analysis.report.evidence import of_records
from analysis.report.words import findings, limits
from analysis.statistics.estimate import Estimate
from analysis.statistics.prediction import Scores
from tests.analysis.conftest import evidence_of, write_kl


def test_it_holds_the_runs_asked_for_and_no_other(small_study, real_evidence):
    trained = [("sim-fair", 3), ("sim-fair", 4), ("sim-flaky", 3), ("sim-flaky", 4)]
    assert [(run.arm, run.seed) for run in real_evidence.runs] == trained
    cell = real_evidence.runs[0].cell
    one = of_records(read_study(small_study), [cell])
    assert set(one.ledger["cell"]) == {line.cell for line in one.onsets} == {cell}
    assert "1 runs of two steps or more" in " ".join(limits(one))


def test_without_shadows_the_command_is_said(small_study):
    without = partial(dataclasses.replace, shadows={})
    bare = evidence_of(small_study, partial(map, without))
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
        "Judge minus truth begins to rise beyond what the judge's calibration explains: under a at "
        "steps 4 to 6 (2 of 2 runs), under b at step 5 "
        "(1 of 2 runs); nowhere else is it seen to (of 6 runs tested, chance alone would show a "
        "rise in 0.3)." in text
    )
    assert (
        f"is consistent with what was learned for {moved[0]} (R2 0.93 over 4 runs, 0.25 with the "
        "step size from other arms; repeating the arm's other runs has 0.75), but is not seen"
        in text
    )
    assert f"Moved, but not as the advantages account for: {moved[1]} (R2 0.20)." in text
    assert moved[2] not in text.split("What was rewarded")[1].split("Judge minus truth")[0]
