"""What corrections make of scores: on arrays worked out by hand, and beside libraries."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.isotonic import IsotonicRegression
from statsmodels.api import OLS

from study.config.correction import Correction, Part
from study.config.schema import Grading, Judge, Reward, Simulated, Study, Task, Trainer
from study.errors import UserError
from study.programs.rewards import ExecutedProgram
from study.rewards.compose import RewardInputs
from study.rewards.corrections import behaviour, draws
from study.rewards.corrections.calibration import fitted
from study.rewards.corrections.checks import check_correction
from study.rewards.corrections.corrector import Corrector, StepVerdicts
from study.rewards.corrections.panel import together
from study.rows import Criterion, make_row
from study.verdict import Outcome, Verdict
from tests.study.test_verdict import verdict

NAN = float("nan")
SCORES = arrays(float, (3, 4), elements=st.one_of(st.floats(0, 1), st.just(NAN)))
FEATURES = arrays(float, (3, 4, 2), elements=st.integers(0, 9).map(float))


def test_a_known_part_is_taken_out_and_nothing_is_cut():
    scores = np.array([[0.9, 0.1], [NAN, 0.5]])
    words = np.array([[20.0, 5.0], [10.0, 30.0]])[..., None]
    left = behaviour.without(scores, words, [Part(b=0.2, mean=10.0, sd=5.0)])
    # z: 2, -1, 0, 4
    assert left == pytest.approx(np.array([[0.5, 0.3], [NAN, -0.3]]), nan_ok=True)
    rng = np.random.default_rng(0)
    fair, words = rng.uniform(0.3, 0.6, (5, 4)), rng.normal(size=(5, 4, 1))
    dosed = fair + 0.15 * (words[..., 0] - 2) / 3
    assert behaviour.without(dosed, words, [Part(0.15, 0.0, 2.0, 3.0)]) == pytest.approx(fair)


def test_a_penalty_counts_sds_within_the_groups_of_the_step():
    scores = np.array([[0.5, 0.5, 0.5], [0.2, NAN, 0.6]])
    words = np.array([[1.0, 2.0, 3.0], [4.0, 100.0, 8.0]])[..., None]
    # squares within groups 1 + 0 + 1, and 4 + 4 of the two that have a score, over 2 + 1
    sd = (10 / 3) ** 0.5
    taken = 0.1 * np.array([[-1.0, 0.0, 1.0], [-2.0, NAN, 2.0]]) / sd
    assert behaviour.penalised(scores, words, [0.1]) == pytest.approx(scores - taken, nan_ok=True)


def test_a_score_without_another_in_its_group_takes_no_part_in_a_regression():
    """Two scores that differ by .4 where the feature differs by 2, a group of three that the slope
    leaves a rest, and one score alone."""
    scores = np.array([[0.1, 0.5, NAN], [0.2, 0.3, 0.7], [0.9, NAN, NAN]])
    feature = np.array([[0.0, 2.0, 5.0], [1.0, 2.0, 3.0], [4.0, 8.0, 9.0]])[..., None]
    left = behaviour.debiased(scores, feature)
    # within groups: products .2 + .2 and .25 + .25, squares 1 + 1 and 1 + 1
    slope = (0.2 + 0.2 + 0.5 * 0.5 * 2) / 4
    assert left[0, :2] == pytest.approx([0.1 + slope, 0.5 - slope])
    assert left[1] == pytest.approx([0.2 + slope, 0.3, 0.7 - slope])
    assert left[2, 0] == 0.9
    pair = behaviour.debiased(scores[::2], feature[::2])
    assert pair == pytest.approx(scores[::2], nan_ok=True), "two scores less a mean and a slope"


@given(SCORES, FEATURES)
def test_a_penalty_leaves_the_mean_of_a_group(scores, features):
    again = behaviour.penalised(scores, features, [0.3, -0.2])
    assert np.array_equal(np.isnan(again), np.isnan(scores))
    assert np.nansum(again, axis=1) == pytest.approx(np.nansum(scores, axis=1), abs=1e-9)


@pytest.mark.parametrize("size", [3, 7, 12])
def test_a_feature_that_varies_in_no_group_takes_nothing_off(size):
    """The mean of equal fractions is not quite the fraction."""
    scores, repeated = np.full((2, size), 0.5), np.full((2, size, 1), 1 - 2 / 3)
    assert behaviour.penalised(scores, repeated, [0.15]).tolist() == scores.tolist()


@given(SCORES, FEATURES)
def test_debiased_scores_go_with_no_feature_within_groups(scores, features):
    again = behaviour.debiased(scores, features)
    assert np.array_equal(np.isnan(again), np.isnan(scores))
    if again is scores:  # too few scores for the coefficients
        return
    has_score = np.isfinite(scores)
    for row, of_row, here in zip(again, features, has_score, strict=True):
        row[here] -= row[here].mean() if here.any() else 0.0
        of_row[here] -= of_row[here].mean(axis=0) if here.any() else 0.0
    assert again[has_score] @ features[has_score] == pytest.approx(np.zeros(2), abs=1e-7)


def test_debiased_scores_are_residuals_where_there_are_enough():
    rng = np.random.default_rng(1)
    scores, features = rng.uniform(size=(6, 5)), rng.normal(size=(6, 5, 3))
    dummies = np.kron(np.eye(6), np.ones((5, 1)))
    fit = OLS(scores.ravel(), np.hstack([features.reshape(-1, 3), dummies])).fit()
    again = behaviour.debiased(scores, features)
    assert again - again.mean(axis=1, keepdims=True) == pytest.approx(fit.resid.reshape(6, 5))
    assert again.mean(axis=1) == pytest.approx(scores.mean(axis=1))
    scores, features = np.array([[0.1, 0.7]]), np.array([[[1.0], [2.0]]])
    assert behaviour.debiased(scores, features) is scores


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("mean", [0.5, 0.3, 0.7, NAN]),
        ("median", [0.6, 0.3, 0.7, NAN]),
        ("worst", [0.1, 0.2, 0.7, NAN]),
        # sd of .1, .6, .8 over three is sqrt(.26 / 3), that of .2 and .4 is .1
        ("disagreement", [0.5 - (0.26 / 3) ** 0.5, 0.2, 0.7, NAN]),
    ],
)
def test_a_panel_leaves_out_who_said_nothing(how, expected):
    scores = np.array([[[0.1, 0.2, NAN, NAN]], [[0.6, NAN, 0.7, NAN]], [[0.8, 0.4, NAN, NAN]]])
    assert together(scores, how) == pytest.approx(np.array([expected]), nan_ok=True)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=1, max_size=30),
    arrays(float, 5, elements=st.floats(-1, 8)),
)
def test_calibration_is_that_of_sklearn(pairs, queries):
    scores, truths = np.array(pairs, dtype=float).T
    oracle = IsotonicRegression(out_of_bounds="clip").fit(scores, truths)
    scale = fitted(scores, truths)
    assert scale(queries) == pytest.approx(oracle.predict(queries), abs=1e-9)
    assert np.isnan(scale(np.array([NAN, 1.0]))).tolist() == [True, False]


CRITERIA = tuple(Criterion(f"Item {k}.", points) for k, points in enumerate((1, 2, -1, 1, 3)))


def test_dropout_drops_its_share_anew_for_each_group():
    kept = {
        tuple(draws.kept(CRITERIA, 0.4, seed, step, prompt))
        for seed in range(3)
        for step in range(5)
        for prompt in ("a", "b")
    }
    assert {len(places) for places in kept} == {3} and len(kept) > 5
    assert draws.kept(CRITERIA, 0.4, 0, 1, "a") == draws.kept(CRITERIA, 0.4, 0, 1, "a")
    faults = [Criterion("Bad.", -1.0), Criterion("Worse.", -2.0), Criterion("Good.", 1.0)]
    for step in range(20):  # a score needs one that can be met
        assert 2 in draws.kept(faults, 0.6, 0, step, "a")
    assert draws.kept(faults, 0.99, 0, 0, "a") == [2]


ROW = make_row(({"role": "user", "content": "Write."},), CRITERIA)


def vote(score: float | None, labels: tuple[str, ...] = ()) -> Verdict:
    outcome = Outcome.unparsed if score is None else Outcome.scored
    return verdict(outcome=outcome, score=score, labels=labels)


def step_verdicts(
    scores: list[float | None],
    truths: list[float | None],
    answers: list[str] | None = None,
    step: int = 1,
    shadows: tuple[list[float | None], ...] = (),
    **settings: Any,
) -> StepVerdicts:
    config = Study(correction=Correction(**settings), trainer=Trainer(group_size=2))
    texts = answers or ["word"] * len(scores)
    inputs = [RewardInputs(ROW, ROW, text, 1, t, ()) for text, t in zip(texts, truths, strict=True)]
    return StepVerdicts(config, step, 2, inputs, [[vote(score)] for score in scores], shadows)


def test_a_score_is_the_mean_of_its_votes_or_of_a_panel():
    assert Corrector()(step_verdicts([0.25, None], [1.0, 0.0])) == ([0.25, None], [{}, {}])
    assert not Correction(stop=True).changes  # ends a run, and leaves its scores
    others = ([0.4, 0.6], [None, 0.9])
    step = step_verdicts([None, 0.3], [None, None], shadows=others, panel="mean")
    assert Corrector()(step)[0] == pytest.approx([0.4, 0.6])


def test_calibration_begins_with_its_last_label_and_goes_on_after_a_resume():
    first = step_verdicts([0.2, 0.8, None, 0.4], [0.0, 1.0, 1.0, None], calibrate=4)
    second = step_verdicts([0.2, 0.8, 0.5, 0.4], [0.5, 1.0, 0.0, 1.0], step=2, calibrate=4)
    straight = Corrector()
    assert straight(first)[0] == [0.2, 0.8, None, 0.4]  # two labels of four
    scores, columns = straight(second)
    # (.2 0) (.8 1) and of the second step (.2 .5) (.8 1): .2 stands for .25, .8 for 1
    assert scores == pytest.approx([0.25, 1.0, 0.625, 0.5])
    assert [row["uncalibrated"] for row in columns] == [0.2, 0.8, 0.5, 0.4]
    resumed = Corrector([(0.2, 0.0), (0.8, 1.0)])
    assert resumed(second) == (scores, columns)
    third = step_verdicts([0.1, 0.5], [1.0, 1.0], step=3, calibrate=4)
    assert straight(third)[0] == pytest.approx([0.25, 0.625])  # later labels change nothing


def test_all_missing_is_missing_and_a_program_without_an_answer_stays_unjudged():
    step = step_verdicts(
        [None, 0.3], [1.0, 1.0], shadows=([None, 0.5],), panel="worst", recheck=1.0
    )
    failed = dataclasses.replace(step.inputs[1], played=ExecutedProgram("timeout"))
    step = dataclasses.replace(step, inputs=[step.inputs[0], failed])
    assert Corrector()(step)[0] == [1.0, None]
    no_truth = step_verdicts([None, 0.3], [None, None], recheck=1.0)
    assert Corrector()(no_truth)[0] == [None, 0.3]


def test_settings_act_in_their_order_and_what_they_made_is_recorded():
    answers = ["one two three", "one"]
    parts = {"length": Part(0.1, 0.0, 1.0, 1.0)}
    step = step_verdicts(
        *([0.7, 0.4], [0.0, 1.0], answers),
        **{"without": ["length"], "parts": parts, "penalty": {"length": 0.2}},
    )
    scores, columns = Corrector()(step)
    # less .1 x 2 and .1 x 0: .5 and .4; then .2 x 1 / sqrt(2) each way
    assert scores == pytest.approx([0.5 - 0.2 / 2**0.5, 0.4 + 0.2 / 2**0.5])
    assert [row["corrected"] for row in columns] == scores


def test_dropout_scores_the_labels_that_are_left():
    met = ("met", "not_met", "met", "unknown", "met")
    step = step_verdicts([0.5, None], [None, None], rubric_dropout=0.4)
    votes = [[vote(0.5, met), vote(None, ("unknown",) * 5)], [vote(None)]]
    places = draws.kept(CRITERIA, 0.4, 0, 1, ROW.prompt_id)
    points = {k: CRITERIA[k].points for k in places if met[k] != "unknown"}
    possible = sum(value for value in points.values() if value > 0)
    expected = max(0.0, sum(v for k, v in points.items() if met[k] == "met") / possible)
    assert Corrector()(dataclasses.replace(step, votes_N=votes))[0] == [expected, None]
    unlabelled = dataclasses.replace(step, votes_N=[[vote(0.5)], [vote(None)]])
    assert Corrector()(unlabelled)[0] == [0.5, None]


SIMULATED = Judge(name="j", simulated=Simulated())
RUBRIC = Judge(grading=Grading("rubric_batch"))


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        ({"debias": ["lenght"]}, {}, "correction.debias.0=lenght is not legal"),
        ({"penalty": {"words": 0.1}}, {}, "a key of correction.penalty=words is not legal"),
        ({"without": ["length"] * 2}, {}, "names a feature twice"),
        ({"debias": ["keyword"]}, {}, "no judge of this cell has a keyword"),
        ({"fit": "quickstart"}, {}, "correction.without names no feature"),
        ({"penalty": {"length": 0.1}}, {"reward": Reward("rule")}, "reward=rule uses no"),
        ({"panel": "worst"}, {}, "shadow names none"),
        ({"rubric_dropout": 0.5}, {}, "judge.grading.name=likert labels no criteria"),
        ({"calibrate": 3000}, {}, "the 2560 of a run"),
        ({"stop": True}, {"trainer": Trainer(steps=7)}, "Type trainer.steps=8 trainer.prompts"),
        (
            {"stop": True},
            {"trainer": Trainer(steps=40, prompts_per_step=1)},
            "Type trainer.steps=40 trainer.prompts_per_step=2",
        ),
    ],
)
def test_corrections_that_cannot_be_had_are_user_errors(settings, more, message):
    config = Study(correction=Correction(**settings), judge=SIMULATED, **more)
    with pytest.raises(UserError, match=re.escape(message)):
        check_correction(config, has_truth=True)


@pytest.mark.parametrize("settings", [{"calibrate": 64}, {"recheck": 0.1}, {"stop": True}])
def test_a_task_without_truth_labels_nothing(settings):
    config = Study(correction=Correction(**settings), task=Task("researchqa"))
    with pytest.raises(UserError, match="no rule gives it in task=researchqa"):
        check_correction(config, has_truth=False)
    check_correction(config, has_truth=True)


def test_good_corrections_pass_and_rechecks_are_a_share_of_all():
    check_correction(Study(), has_truth=False)
    check_correction(Study(correction=Correction(rubric_dropout=0.5), judge=RUBRIC), False)
    panel = Correction(panel="mean", debias=["length"], penalty={"bold": 0.1})
    check_correction(Study(correction=panel, shadow_judges=[SIMULATED]), has_truth=False)
    drawn = [draws.rechecked(0.25, 0, step, "p", m) for step in range(500) for m in range(8)]
    assert 0.22 < np.mean(drawn) < 0.28
    assert drawn[:8] == [draws.rechecked(0.25, 0, 0, "p", m) for m in range(8)]
