"""The positive control: a planted length bias moves the policy, a fair judge does not."""

from collections import Counter

import pytest

from analysis.records.runs import read_runs
from analysis.run.drift import feature_values, run_shifts
from analysis.statistics.intervals import mean_interval, paired_difference
from experiments.estimate import expected
from study.cells import load_cell, study_cells
from study.parts import parts, read_part
from study.records import EVALUATIONS, recorded

STEPS = 28


@pytest.fixture(scope="module")
def study(trained, tmp_path_factory):
    """The quickstart's length arm and fair arm, three seeds each, 28 of its 40 steps."""
    runs_dir = tmp_path_factory.mktemp("control")
    words = ("judge=sim-fair,sim-verbose", "seed=0,1,2", f"trainer.steps={STEPS}")
    done = trained(runs_dir, *words, "sweep.report=false")
    assert done.returncode == 0, done.stdout + done.stderr
    return runs_dir / "quickstart"


@pytest.fixture(scope="module")
def shifts(study):
    """How far each run moved, per metric."""
    runs, _ = read_runs(study)
    return {
        (arm, metric): group.set_index("seed")["shift"]
        for frame in (run_shifts(runs, feature_values), run_shifts(runs))
        for (arm, metric), group in frame.groupby(["arm", "metric"])
    }


@pytest.mark.slow
def test_the_length_biased_judge_lengthens_answers_beyond_the_fair_one(shifts):
    beyond = paired_difference(shifts["sim-verbose", "length"], shifts["sim-fair", "length"])
    assert beyond.n == 3
    assert beyond.low > 3, "words per answer, 95 % t interval over seed pairs"


@pytest.mark.slow
def test_the_fair_judge_does_not_lengthen_answers(shifts):
    drift = mean_interval(list(shifts["sim-fair", "length"]))
    assert drift.n == 3
    assert drift.high < 3, "words per answer, 95 % t interval over seeds"


@pytest.mark.slow
def test_the_drift_is_paid_for_with_truth_and_not_by_it(shifts):
    lost = paired_difference(shifts["sim-verbose", "truth"], shifts["sim-fair", "truth"])
    assert lost.high < 0
    judged = mean_interval(list(shifts["sim-verbose", "judge_score"]))
    assert judged.low > 0, "the biased judge believes that things went well"


@pytest.mark.slow
def test_the_fair_judge_teaches_the_truth(shifts):
    learned = mean_interval(list(shifts["sim-fair", "truth"]))
    assert learned.value > 0 and learned.high > 0


@pytest.mark.slow
def test_the_plan_foretold_what_the_study_used(study):
    """Calls and tokens of the whole sweep within 5 %; single cells differ with their answers."""
    found, used = Counter(), Counter()
    for folder in study_cells(study):
        found.update(expected(load_cell(folder)))
        for part in parts(folder / EVALUATIONS / "verdicts"):
            for row in read_part(part).to_pylist():
                used["calls"] += 1
                used["tokens_in"] += row["tokens_in"]
                used["tokens_out"] += row["tokens_out"]
        for line in recorded(folder)[1:]:  # step 0 is an evaluation alone
            metrics = line["metrics"]
            used["calls"] += metrics["cost/calls"] + metrics["cost/cache_hits"]
            used["tokens_in"] += metrics["cost/tokens_in"]
            used["tokens_out"] += metrics["cost/tokens_out"]
    assert found["calls"] == used["calls"] == 6 * (STEPS * 64 + 2 * 32 * 4)
    for name in ("tokens_in", "tokens_out"):
        assert found[name] == pytest.approx(used[name], rel=0.05), name
