"""Corrected scores in runs that were trained: on record, repeated by a resume, and made again."""

import dataclasses
import math
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from analysis.forecast.estimate import first_rollouts, rewards
from analysis.ledger.fitted_bias import regressed
from analysis.records.runs import Run, read_study
from experiments.plan.knockout import parts_of
from experiments.sweep import cells_of
from experiments.trainer.alarm import Alarm
from judges.replay import main as replay
from judges.simulated.bias import Bias
from study.cell import cells
from study.cell.folder import CellFolder, study_cells
from study.config.compose import load_judge, load_presets
from study.config.correction import Correction
from study.config.schema import Judge, Simulated, Study
from study.errors import UserError
from study.features import features
from study.rewards.corrections import behaviour
from study.rows import Truth
from tests.conftest import RECORDS_ONLY, Trained
from tests.faults import lives

WORDS = ("maybe", "a", "dog", "certainly", "not")
EVERYTHING = (
    *("judge=sim-noisy", "judge.grading.name=rubric_batch", "seed=3", "trainer.steps=3"),
    *("shadow=[sim-fair,sim-flattery]", "correction.panel=median", "correction.recheck=0.3"),
    *("correction.rubric_dropout=0.4", "correction.without=[length]", "correction.calibrate=12"),
    *("correction.debias=[bullets]", "correction.penalty.length=0.1"),
)
DRIFTING = (
    *("judge=sim-fair", "judge.simulated.drift_per_1000=20", "seed=0", "correction.stop=true"),
    *("trainer.steps=16", "trainer.prompts_per_step=4", "trainer.micro_batch=16"),
)


def only_cell(trained: Trained, runs_dir: Path, *words: str) -> Path:
    done = trained(runs_dir, *RECORDS_ONLY, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return study_cells(runs_dir / "debug")[0].path


@pytest.fixture(scope="module")
def corrected(trained, tmp_path_factory) -> Path:
    """A cell with every correction of scores."""
    return only_cell(trained, tmp_path_factory.mktemp("corrected"), *EVERYTHING)


@pytest.fixture(scope="module")
def stopped(trained, tmp_path_factory) -> Path:
    """A cell whose judge leaves the truth, so that its alarm ends it."""
    return only_cell(trained, tmp_path_factory.mktemp("stopped"), *DRIFTING)


def again(whole: Path, tmp_path: Path) -> Path:
    """A copy of a finished cell that does not say that it is done."""
    folder = lives.lay(tmp_path / "runs", whole)
    shutil.rmtree(folder)
    shutil.copytree(whole, folder)
    (folder / "DONE").unlink()
    return folder


def test_verdicts_stay_as_they_were_given_and_rewards_are_of_the_corrected(corrected):
    verdicts, rollouts = (lives.parts(corrected, kind) for kind in ("verdicts", "rollouts"))
    acting = {row["rollout_id"]: row["score"] for row in verdicts if row["role"] == "acting"}
    assert len(rollouts) == 24 and [row["role"] for row in verdicts].count("shadow") == 48
    for row in rollouts:
        assert row["judge_score"] == acting[row["rollout_id"]]
        assert row["reward"] == row["component/corrected"]
        if row["component/rechecked"]:
            assert row["reward"] == row["truth"]
    assert 0 < sum(row["component/rechecked"] for row in rollouts) < 24
    assert any(row["reward"] != row["judge_score"] for row in rollouts)


def test_a_resumed_run_has_the_same_labels_draws_and_rewards(corrected, tmp_path):
    folder = again(corrected, tmp_path)
    os.truncate(folder / "checkpoints" / "checkpoint-3" / "optimizer.pt", 1000)
    assert lives.run(folder) == 0
    log = (folder / "log.txt").read_text().rpartition("---\n")[2]
    assert "step 3/3" in log and "step 2/3" not in log
    assert lives.differences(folder, corrected) == []


def test_a_replay_goes_the_same_way(corrected):
    study = corrected.parent
    for _ in range(2):  # a replay that is there already is made anew where earlier steps count
        assert replay([f"study={study.name}", f"runs_dir={study.parent}", "out=own"]) == 0
        replayed = lives.parts(study / "replays" / "own" / corrected.name, "rollouts")
        assert len(replayed) == 24
        for row in replayed:
            assert row["reward"] == row["original_reward"]


def test_the_records_say_what_was_corrected_and_a_forecast_pays_as_training_did(corrected):
    (run,) = read_study(corrected.parent).runs
    assert run.corrected is not None
    assert np.array_equal(run.corrected, run.reward, equal_nan=True)
    first = run.at(1)
    assert first.corrected is not None and first.corrected.shape == first.judge.shape
    for made in run.under.values():
        assert np.array_equal(made, run.reward, equal_nan=True)
    cell = cells.load_cell(CellFolder(corrected))
    told = first_rollouts([cell])
    _, paid = rewards(cell.config.judge, cell.config, told, corrected.parent.parent)
    order = [record["rollout_id"] for group in told.records for record in group]
    by_id = {row["rollout_id"]: row["reward"] for row in lives.parts(corrected, "rollouts")}
    assert paid.ravel().tolist() == [by_id[name] for name in order]


def test_an_alarm_ends_a_run_and_the_run_is_done(stopped):
    last = CellFolder(stopped).status()["stopped_at"]
    steps = sorted({row["step"] for row in lives.parts(stopped, "rollouts")})
    assert 3 < last < 16 and steps == list(range(1, last + 1))
    assert (
        CellFolder(stopped).is_done()
        and (stopped / "policy" / "adapter_model.safetensors").exists()
    )
    (run,) = read_study(stopped.parent).runs
    assert run.done and run.steps.tolist() == steps
    assert Alarm(cells.load_cell(CellFolder(stopped)).config, CellFolder(stopped)).step == last


def test_a_run_that_was_killed_after_its_alarm_is_brought_to_its_end(stopped, tmp_path):
    folder = again(stopped, tmp_path)
    shutil.rmtree(folder / "policy")
    CellFolder(folder).set_status(state="running")
    assert lives.run(folder) == 0
    assert lives.differences(folder, stopped) == []
    assert "step " not in (folder / "log.txt").read_text().rpartition("---\n")[2]


def test_a_planted_part_is_the_dose_in_the_judge_s_own_units():
    settings = Correction(without=["length", "bold"])
    part = parts_of(Study(judge=load_judge("sim-verbose"), correction=settings))
    assert (part["length"].b, part["length"].error) == (0.15, 0.0)
    assert part["length"].sd == 6.201 and "sim-verbose" in part["length"].source
    assert part["bold"].b == 0.0


@given(st.floats(-0.3, 0.3), st.lists(st.sampled_from(WORDS), max_size=20), st.integers(0, 99))
def test_what_is_left_is_what_the_judge_says_without_its_dose(dose, words, seed):
    """The same noise, the same truth: exact wherever nothing was cut off."""
    answer, truth = " ".join(words), Truth(0.5)
    says = {}
    for given_dose in (dose, 0.0):
        settings = Simulated(doses={"length": given_dose}, noise_sd=0.02, scale=0.6, leniency=0.2)
        says[given_dose], _ = Bias(settings).decide(answer, truth, random.Random(seed), 0)
    assume(0 < says[dose] < 1)
    judge = Judge(simulated=Simulated(doses={"length": dose}))
    part = parts_of(Study(judge=judge, correction=Correction(without=["length"])))["length"]
    measured = np.array([[[features(answer)["length"]]]])
    (left,) = behaviour.without(np.array([[says[dose]]]), measured, [part]).ravel()
    assert left == pytest.approx(says[0.0])


def test_a_fitted_part_is_read_from_rollouts_that_the_judge_scored(small_study, tmp_path):
    judge, runs_dir = load_judge("sim-fair"), str(small_study.parent)
    settings = Correction(without=["length"], fit=small_study.name)
    part = parts_of(Study(judge=judge, runs_dir=runs_dir, correction=settings))["length"]
    assert part.b == pytest.approx(0.0, abs=1e-9)  # a fair judge errs in nothing
    assert part.sd > 0 and math.isfinite(part.mean) and part.source.count("sim-fair") == 2


def planted(scale: float) -> Run:
    """A judge that pays .03 a word, and spreads its scores by ``scale`` of the truth; longer
    answers are the worse ones."""
    rng = np.random.default_rng(0)
    words = rng.normal(10, 4, (300, 8))
    truth = 0.5 - 0.02 * (words - 10) + rng.normal(0, 0.1, words.shape)
    judge = 0.2 + scale * truth + 0.03 * words + rng.normal(0, 0.05, words.shape)
    nothing = np.full(words.shape, np.nan)
    return Run(
        *("c", "a", 0, True, np.arange(300), nothing, nothing, truth, judge),
        *(words[..., None], ("length",)),
    )


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_fitted_part_is_that_of_the_feature_alone(scale):
    """A compressing judge's error goes with length through the truth; that is no pay for length."""
    part = regressed([planted(scale), planted(scale)], ["length"], "s")["length"]
    assert part.b / part.sd == pytest.approx(0.03, abs=0.001)
    assert 0 < part.error / part.sd < 0.001
    assert (part.mean, part.sd) == (pytest.approx(10, abs=0.3), pytest.approx(4, abs=0.2))


def test_without_truth_or_variation_nothing_is_fitted():
    """Nor with one group, for its error is unknown."""
    run = planted(1.0)
    flat = np.ones_like(run.features)
    one = np.where(np.arange(len(run.truth))[:, None] == 0, run.truth, np.nan)
    for changed, said in (
        ({"truth": np.full(run.truth.shape, np.nan)}, "the fit needs judge - truth"),
        ({"features": flat}, r"in correction\.fit=s it does not vary within groups"),
        ({"truth": one}, "too few groups of rollouts"),
    ):
        with pytest.raises(UserError, match=said):
            regressed([dataclasses.replace(run, **changed)], ["length"], "s")


def test_parts_that_cannot_be_had_are_user_errors(small_study):
    runs_dir, name = str(small_study.parent), small_study.name
    another = ["judge.simulated.domains.qa.doses.length=0.3"]
    for judge, said in (
        (load_judge("smollm2-135m"), "has no planted one"),
        (load_judge("sim-verbose", "judge.grading.name=pairwise"), "adds no dose to a score"),
        (load_presets("sim-verbose", "mixed-mini", another)[0], "has another in qa"),
    ):
        with pytest.raises(UserError, match=said):
            parts_of(Study(judge=judge, correction=Correction(without=["length"])))
    for fit, said in (
        ("nothing", "is not a study in"),
        ("../debug", "correction.fit=.. is not legal"),
        (name, "trained with the same settings"),
    ):
        settings = Correction(without=["length"], fit=fit)
        with pytest.raises(UserError, match=said):
            parts_of(Study(judge=judge, runs_dir=runs_dir, correction=settings))


def test_a_correction_that_cannot_be_had_stops_the_plan(trained, tmp_path):
    done = trained(tmp_path, "debug=tiny", "plan=true", "correction.panel=mean")
    assert done.returncode == 2 and "shadow names none" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "without"),
    [
        ("judge.without=length", [["length"]]),
        ("judge.without=length,bullets", [["length"], ["bullets"]]),
        ("judge.without=[length,bullets]", [["length", "bullets"]]),
    ],
)
def test_what_a_judge_goes_without_is_a_correction(typed, without):
    doses = ("+judge.simulated.doses.bullets=0.1", "judge.simulated.doses.length=0.1")
    laid = cells_of(["debug=tiny", "judge=sim-dose", "seed=0", *doses, typed])
    assert [cell.config.correction.without for cell in laid] == without
