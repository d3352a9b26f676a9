"""The positive control: a planted length bias moves the policy, a fair judge does not."""

from collections import Counter

import pytest

from analysis.drift.estimate import feature_values, run_shifts
from analysis.records.runs import read_runs
from analysis.statistics.intervals import mean_interval, paired_difference
from experiments.plan.rates import expected
from study.cell.cells import load_cell
from study.cell.folder import study_cells
from study.cell.parts import parts, read_part
from study.cell.records import EVALUATIONS
from tests.experiments import test_policies

FAIR, VERBOSE = "fair", "verbose"
SHORT = (
    *("judge=sim-dose", "judge.simulated.doses.length=0.0,0.3", "trainer.steps=12"),
    *("trainer.learning_rate=0.0012", "tracking=none"),
    *("task.eval_rows=8", "trainer.eval_samples=1"),
    *(f"policy.warmup.{name}={value}" for name, value in test_policies.SHORT.items()),
)
"""Twice the dose and twice the rate show in 12 steps of three seeds: answers are 12.4 words longer
than under a fair judge, with a standard error of 1.0; truth is .16 lower, of .011; the score that
the biased judge gives rises by .33, of .005."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SHORT, id="short"),
        pytest.param((), id="quickstart", marks=pytest.mark.long),
    ],
)
def study(request, trained, tmp_path_factory):
    """The quickstart, or its length arm and fair arm of fewer steps; three seeds each."""
    if not request.param:
        return request.getfixturevalue("quickstart")
    runs_dir = tmp_path_factory.mktemp("control")
    done = trained(runs_dir, *request.param, "seed=0,1,2", "sweep.report=false")
    assert done.returncode == 0, done.stdout + done.stderr
    return runs_dir / "quickstart"


@pytest.fixture(scope="module")
def shifts(study):
    """How far each run moved, per metric."""
    runs, _ = read_runs(study)
    return {
        (name_of(arm), metric): group.set_index("seed")["shift"]
        for frame in (run_shifts(runs, feature_values), run_shifts(runs))
        for (arm, metric), group in frame.groupby(["arm", "metric"])
    }


def name_of(arm):
    names = {"sim-fair": FAIR, "length=0": FAIR, "sim-verbose": VERBOSE, "length=0.3": VERBOSE}
    return next((name for end, name in names.items() if arm.endswith(end)), arm)


@pytest.mark.slow
def test_the_length_biased_judge_lengthens_answers_beyond_the_fair_one(shifts):
    beyond = paired_difference(shifts[VERBOSE, "length"], shifts[FAIR, "length"])
    assert beyond.n == 3 and beyond.low > 3, "words per answer, 95 % t interval over seed pairs"


@pytest.mark.slow
def test_the_fair_judge_does_not_lengthen_answers(shifts):
    drift = mean_interval(list(shifts[FAIR, "length"]))
    assert drift.n == 3 and drift.high < 3, "words per answer, 95 % t interval over seeds"


@pytest.mark.slow
def test_the_drift_is_paid_for_with_truth_and_not_by_it(shifts):
    assert paired_difference(shifts[VERBOSE, "truth"], shifts[FAIR, "truth"]).high < 0
    judged = mean_interval(list(shifts[VERBOSE, "judge_score"]))
    assert judged.low > 0, "the biased judge believes that things went well"


@pytest.mark.slow
def test_the_fair_judge_teaches_the_truth(shifts):
    assert mean_interval(list(shifts[FAIR, "truth"])).value > 0


@pytest.mark.slow
def test_the_plan_foretold_what_the_study_used(study):
    """Calls and tokens of the whole sweep within 5 %; single cells differ with their answers."""
    found, used, rollouts = Counter(), Counter(), 0
    for folder in study_cells(study):
        cell = load_cell(folder)
        found.update(expected(cell))
        held_out = cell.config.task.eval_rows * (1 + cell.config.trainer.eval_samples)
        rollouts += cell.config.trainer.steps * 64 + 2 * held_out
        for part in parts(folder / EVALUATIONS / "verdicts"):
            for row in read_part(part).to_pylist():
                used["calls"] += 1
                used["tokens_in"] += row["tokens_in"]
                used["tokens_out"] += row["tokens_out"]
        for line in folder.lines()[1:]:  # step 0 is an evaluation alone
            metrics = line["metrics"]
            used["calls"] += metrics["cost/calls"] + metrics["cost/cache_hits"]
            used["tokens_in"] += metrics["cost/tokens_in"]
            used["tokens_out"] += metrics["cost/tokens_out"]
    assert found["calls"] == used["calls"] == rollouts > 6 * 12 * 64
    for name in ("tokens_in", "tokens_out"):
        assert found[name] == pytest.approx(used[name], rel=0.05), name
