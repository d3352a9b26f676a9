"""How a policy answers to a bias: by hand, on planted responses, and from file to file."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from analysis.forecast import response
from analysis.forecast import units as forecast_units
from analysis.forecast.display import text
from analysis.forecast.estimate import Push, Pushes
from analysis.forecast.response import Response, Start
from analysis.forecast.study import InUnits
from analysis.forecast.units import Candidates, Trained, fitted, scored, simple
from analysis.statistics.estimate import Estimate
from study.errors import UserError
from tests.analysis.test_interventions import STEPS, run_of

NAN = float("nan")


def start(correlation, mean=(1.0, 2.0, 0.5), sd=(1.0, 1.0, 1.0)) -> Start:
    return Start(("length", "tone", "truth"), np.array(mean), np.array(sd), np.array(correlation))


ALONE = np.eye(3)


def answering(growth=1e-9, drift=(0.0, 0.0, 0.0), step=(1.0, 1.0), truth=1.0) -> Response:
    spread = np.full(3, 0.1)
    return Response(np.array(drift), np.array(step), growth, truth, 0.02, spread, arms=5)


def test_the_start_is_within_groups():
    """Two groups whose levels differ by 10: of the total spread only what is inside counts."""
    length = np.array([[0.0, 2.0], [10.0, 12.0]])
    truth = np.array([[0.0, 1.0], [1.0, 0.0]])
    made = response.start_of(length[..., None], truth, ("length",))
    assert made.names == ("length", "truth")
    assert made.mean == pytest.approx([6.0, 0.5]) and made.sd == pytest.approx([26**0.5, 0.5])
    # inside: length -1, 1, -1, 1 and truth -.5, .5, .5, -.5, over 4 - 2 degrees of freedom
    assert made.correlation == pytest.approx(np.array([[2 / 26, 0.0], [0.0, 2.0]]))
    assert made.floor == pytest.approx([-6 / 26**0.5, -1.0])


def test_rollouts_without_a_truth_or_runs_without_a_shift_are_left_out_or_refused():
    features = np.array([[[1.0, 5.0], [3.0, 5.0], [99.0, 5.0]]])
    made = response.start_of(features, np.array([[0.0, 1.0, NAN]]), ("length", "tone"))
    assert made.mean == pytest.approx([2.0, 5.0, 0.5])
    assert made.varies.tolist() == [True, False, True]
    made, bias, arm, shifts, exposure = planted(np.random.default_rng(0), arms=3)
    with pytest.raises(ValueError, match="the response fit needs 4"):
        response.leave_one_arm_out(made, bias, arm, shifts, exposure)
    with pytest.raises(ValueError, match="known shifts"):
        response.fit(made, bias, arm, np.full(shifts.shape, NAN), exposure)


def test_the_bias_is_the_dose_over_the_spread_of_the_score():
    rng = np.random.default_rng(0)
    features = rng.normal(0, [3.0, 1.0], (400, 8, 2))
    truth = (rng.random((400, 8)) < 0.5).astype(float)
    score = truth + 0.1 * features[..., 0] + rng.normal(0, 0.2, truth.shape)
    score += rng.normal(0, 5, (400, 1))  # what a group shares reaches no advantage
    made = response.start_of(features, truth, ("length", "tone"))
    spread = (0.25 + 0.3**2 + 0.2**2) ** 0.5
    bias = response.bias_of(made, score, truth, features)
    assert bias == pytest.approx([0.3 / spread, 0.0], abs=0.02)
    lost = np.where(rng.random(score.shape) < 0.2, NAN, score)
    assert response.bias_of(made, lost, truth, features) == pytest.approx(bias, abs=0.03)
    assert np.isnan(response.bias_of(made, np.ones(score.shape), truth, features)).all()


def test_to_first_order_behaviours_move_and_simple_forecasts_by_hand():
    made = start([[1.0, 0.5, -0.2], [0.5, 1.0, 0.0], [-0.2, 0.0, 1.0]])
    policy = answering(drift=(0.1, -0.2, 0.3), step=(2.0, 1.0), truth=3.0)
    bias = np.array([[0.1, 0.0]])
    # at the exposure that it was fitted on, then at half of it
    assert policy.shifts(made, bias, 0.02)[0] == pytest.approx([0.3, -0.1, 0.18])
    assert policy.shifts(made, bias, 0.01)[0] == pytest.approx([0.15, -0.05, 0.09])
    candidates = judged(np.array([[0.1, 0.0], [0.2, 0.0], [0.0, 0.3]]))
    shifts = np.array([[0.2, 0.0, 0.1], [0.4, 0.0, -0.1], [0.0, 0.6, 0.3]])
    runs = Trained(("a", "b", "c"), np.arange(3), shifts)
    first = np.array([True, False, False])
    assert simple("bias", candidates, runs, ALL).factor == pytest.approx(2.0)
    assert simple("covariance", candidates, runs, ALL).factor == pytest.approx(2.0)
    assert simple("drift", candidates, runs, ALL).level == pytest.approx([0.2, 0.2, 0.1])
    assert simple("no change", candidates, runs, first).level.tolist() == [0.0, 0.0, 0.0]
    against = Trained(runs.cells, runs.arm, -shifts)
    assert simple("bias", candidates, against, ALL).factor == 0.0


def test_the_one_line_is_a_drift_and_one_factor_times_the_covariance_by_exposure():
    candidates = replace(
        judged(np.array([[0.1, 0.0], [0.2, 0.0], [0.0, 0.3]])), exposure=np.array([1.0, 2.0, 3.0])
    )
    of_mean_exposure = np.array([-0.1, 0.2, 0.4]) + 2.5 * candidates.push
    shifts = np.array([[0.5], [1.0], [1.5]]) * of_mean_exposure
    fit = simple("one line", candidates, Trained(("a", "b", "c"), np.arange(3), shifts), ALL)
    assert fit.factor == pytest.approx(2.5) and fit.level == pytest.approx([-0.1, 0.2, 0.4])
    assert fit.spread == pytest.approx(np.zeros(3), abs=1e-12)
    assert fit.shifts(candidates.push, candidates.exposure) == pytest.approx(shifts)
    lacking = np.column_stack([shifts[:, :2], np.full(3, NAN)])  # no rule could tell the truth
    fit = simple("one line", candidates, Trained(("a", "b", "c"), np.arange(3), lacking), ALL)
    assert fit.factor == pytest.approx(2.5) and np.isnan(fit.level[2])
    opposed = Trained(("a", "b", "c"), np.arange(3), -shifts)
    assert simple("one line", candidates, opposed, ALL).factor == 0.0


def test_growth_is_the_exponential_s_and_no_count_falls_below_zero():
    policy = answering(growth=2.0)
    (moved,) = policy.shifts(start(ALONE), np.array([[0.5, 0.0]]), 0.02)
    assert moved == pytest.approx([0.5 * (np.e - 1), 0.0, 0.0])
    (fallen,) = policy.shifts(start(ALONE), np.array([[-3.0, 0.0]]), 0.02)
    assert fallen == pytest.approx([-1.0, 0.0, 0.0])
    intervals = policy.forecast(start(ALONE), np.array([-3.0, 0.0]), 0.02)
    assert intervals[0].low == -1.0
    assert intervals[1].low == pytest.approx(-0.1 * stats.t.ppf(0.975, 4))
    still = policy.forecast(start(ALONE, sd=(1.0, 0.0, 1.0)), np.zeros(2), 0.02)
    assert np.isnan(still[1].value) and "did not vary" in still[1].note


def planted(rng, arms=14, seeds=2):
    """Runs of a policy with a growth of its own, scattered by .1 SD and a tenth of what it was
    taught."""
    made = start([[1.0, 0.3, -0.4], [0.3, 1.0, 0.0], [-0.4, 0.0, 1.0]], mean=(9.0, 9.0, 0.5))
    policy = answering(growth=3.0, drift=(-0.4, 0.2, 0.1), step=(1.5, 1.0), truth=0.8)
    bias = rng.uniform(-0.2, 0.5, (arms, 2)) * (rng.random((arms, 2)) < 0.7)
    arm = np.repeat(np.arange(arms), seeds)
    taught = policy.taught(made, bias, 0.02)[arm]
    expected = policy.shifts(made, bias, 0.02)[arm]
    noise = rng.normal(0, 1, expected.shape) * np.hypot(0.1, 0.1 * taught)
    return made, bias, arm, np.maximum(expected + noise, made.floor), np.full(len(arm), 0.02)


def test_planted_responses_are_recovered_for_arms_that_were_not_seen():
    inside, apart, total = [], 0.0, 0.0
    for seed in range(6):
        made, bias, arm, shifts, exposure = planted(np.random.default_rng(seed))
        whole, others = response.leave_one_arm_out(made, bias, arm, shifts, exposure)
        assert whole.drift == pytest.approx([-0.4, 0.2, 0.1], abs=0.15)
        for run, row in enumerate(arm):
            forecasts = others[row].forecast(made, bias[row], 0.02)
            values = np.array([each.value for each in forecasts])
            inside += [t.low <= y <= t.high for t, y in zip(forecasts, shifts[run], strict=True)]
            apart += ((shifts[run] - values) ** 2).sum()
        total += ((shifts - shifts.mean(axis=0)) ** 2).sum()
    assert 0.9 < np.mean(inside) < 0.99
    assert 1 - apart / total > 0.9


def judged(bias, push=None) -> Candidates:
    names = tuple(f"judge-{n}" for n in range(len(bias)))
    push = np.column_stack([bias, np.zeros(len(bias))]) if push is None else push
    made = start([[1.0, 0.3, -0.4], [0.3, 1.0, 0.0], [-0.4, 0.0, 1.0]], mean=(9.0, 9.0, 0.5))
    return Candidates(names, made, bias, push, np.full(len(bias), 0.02))


ALL = np.full(3, True)
STUDY = SimpleNamespace(study="planted", steps=1)
NOTHING_PUSHED = Pushes("another", steps=1, groups=0, prompts=0, pushes=[], ranks=[])


def test_scores_of_a_study_forecast_from_itself_and_from_a_file(tmp_path):
    made, bias, arm, shifts, _ = planted(np.random.default_rng(3))
    candidates = judged(bias)
    runs = Trained(tuple(map(str, arm)), arm, shifts)
    of = fitted(STUDY, candidates, runs)
    lines = {(line.method, line.feature): line for line in scored(of, STUDY, candidates, runs)}
    ours, constant = lines["forecast", "length"], lines["drift", "length"]
    assert ours.scores.r2 > 0.8 > constant.scores.r2
    assert ours.rho > 0.8 and ours.crps < constant.crps
    assert ours.moves and ours.scores.slope.low < 1 < ours.scores.slope.high and ours.p < 0.01
    assert np.isnan(lines["repetition", "length"].crps)
    forecast_units.save(tmp_path / "response-1.json", of)
    read = forecast_units.load(tmp_path / "response-1.json")
    other = SimpleNamespace(study="another", steps=1)
    forecasts = forecast_units.forecasts(read, other, candidates)
    expected = of.response.shifts(made, bias, 0.02)
    assert [line.sds for line in forecasts] == pytest.approx(expected.ravel().tolist())
    assert forecasts[0].predicted.value == pytest.approx(forecasts[0].sds * forecasts[0].sd)
    assert forecasts[0].simpler["no change"] == 0.0
    pushes = [
        Push(name, "length", Estimate(push, 0.0, 1.0), push, 8, 0.0)
        for name, push in zip(candidates.arms, bias[:, 0], strict=True)
    ]
    units = InUnits("planted", shifts=forecasts, scores=list(lines.values()))
    printed = text(Pushes("another", steps=1, groups=8, prompts=8, pushes=pushes, ranks=[]), units)
    assert "from 1 step(s), by the runs of planted" in printed
    assert "r2 of every method" in printed and "repetition" in printed
    assert "is no better" not in printed
    swapped = {"forecast": "one line", "one line": "forecast"}
    worse = [replace(line, method=swapped.get(line.method, line.method)) for line in lines.values()]
    said = text(NOTHING_PUSHED, InUnits("planted", shifts=forecasts, scores=worse))
    assert "The forecast is no better than one line, whose mean r2 is 0." in said
    silent = replace(judged(np.array([bias[0], [NAN, NAN]])), arms=("judge-0", "silent"))
    shown = forecast_units.forecasts(read, other, silent)
    printed = text(NOTHING_PUSHED, InUnits("planted", shifts=shown))
    assert "No shift of silent: too few scores" in printed and "No shift of judge-0" not in printed
    # of its own study an arm is forecast by the others
    own = forecast_units.forecasts(of, STUDY, candidates)
    assert [line.sds for line in own] != pytest.approx(expected.ravel().tolist())


def test_an_arm_of_its_own_study_is_left_out_by_its_name_whoever_else_is_forecast():
    """Judges that were not trained, fewer or more than the arms, are forecast by all arms."""
    made, bias, arm, shifts, _ = planted(np.random.default_rng(3))
    every = judged(bias)
    of = fitted(STUDY, every, Trained(tuple(map(str, arm)), arm, shifts))
    forecasts = forecast_units.forecasts(of, STUDY, every)
    left_out = {(line.arm, line.feature): line.sds for line in forecasts}
    part = replace(judged(bias[[5, 9]]), arms=("judge-5", "untrained"))
    forecasts = forecast_units.forecasts(of, STUDY, part)
    assert [row.sds for row in forecasts[:3]] == [left_out["judge-5", name] for name in made.names]
    whole = of.response.shifts(made, bias[[9]], 0.02)[0]
    assert [line.sds for line in forecasts[3:]] == pytest.approx(whole.tolist())
    assert whole[0] != pytest.approx(left_out["judge-9", "length"])
    more = judged(np.concatenate([bias, bias]))
    assert len(forecast_units.forecasts(of, STUDY, more)) == 2 * len(bias) * 3


def test_a_run_that_an_alarm_ended_early_is_in_no_fit():
    """Its shift is that of fewer steps than those that its exposure is counted over."""
    candidates = replace(judged(np.zeros((1, 2))), arms=("a",))
    stops = {"correction.stop": True, "trainer.steps": STEPS}
    whole, early = run_of("a", 0, stops), run_of("a", 1, stops | {"trainer.steps": 2 * STEPS})
    trained = forecast_units.trained([whole, early], candidates)
    assert trained.cells == (whole.cell,) and trained.shift.shape == (1, 3)
    printed = text(NOTHING_PUSHED, InUnits("planted", ended_early=[early.cell]))
    assert printed.endswith(f"so in no fit and no score: {early.cell}")


def test_a_fit_that_is_not_there_and_other_behaviours_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"python -m analysis\.forecast study=build steps=2"):
        forecast_units.load(tmp_path / "build" / "response-2.json")
    _, bias, arm, shifts, _ = planted(np.random.default_rng(3))
    of = fitted(STUDY, judged(bias), Trained(tuple(map(str, arm)), arm, shifts))
    others = replace(of, names=("length", "emoji", "truth"))
    with pytest.raises(UserError, match="takes the same behaviours"):
        forecast_units.forecasts(others, STUDY, judged(bias))
    few = Trained(("a", "b"), np.array([0, 1]), shifts[:2])
    with pytest.raises(UserError, match="the response fit needs 4"):
        fitted(STUDY, judged(bias), few)
