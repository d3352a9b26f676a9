"""The positive control: a planted length bias moves the policy, a fair judge does not."""

import pytest

from analysis.behaviour import feature_frame, run_shift, step_means
from analysis.drift import run_curves
from analysis.frames import rollouts_frame
from analysis.intervals import mean_interval, paired_difference
from tests.conftest import sweep


@pytest.fixture(scope="module")
def shifts(tmp_path_factory):
    """How far each run of the quickstart's length arm and of its fair arm moved, per metric."""
    runs_dir = tmp_path_factory.mktemp("control")
    done = sweep(runs_dir, "judge=sim-fair,sim-verbose", "seed=0,1,2", "sweep.report=false")
    assert done.returncode == 0, done.stdout + done.stderr
    rollouts = rollouts_frame(runs_dir / "quickstart")
    lengths = run_shift(step_means(feature_frame(rollouts), ["length"]))
    scores = run_shift(run_curves(rollouts))
    return {
        (arm, metric): group.set_index("seed")["shift"]
        for frame in (lengths, scores)
        for (arm, metric), group in frame.groupby(["arm", "metric"], observed=True)
    }


@pytest.mark.slow
def test_the_length_biased_judge_lengthens_answers_beyond_the_fair_one(shifts):
    beyond = paired_difference(shifts["sim-verbose", "length"], shifts["sim-fair", "length"])
    assert beyond.n == 3
    assert beyond.low > 8, "words per answer, 95 % t interval over seed pairs"


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
    assert learned.mean > 0 and learned.high > 0
