"""Forecasts in units beside simple ones and what could be known: by hand, planted, and kept."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.forecast import units
from analysis.forecast.baselines import SIMPLER, simple
from analysis.forecast.candidates import Candidates, family, pushed
from analysis.forecast.display import figure, text
from analysis.forecast.estimate import Push, Pushes
from analysis.forecast.fit import drifts, replayed
from analysis.forecast.replay import Follows, Pay
from analysis.forecast.scores import ceiling, score, scored
from analysis.forecast.spread import spread_of
from analysis.forecast.start import bias_of, start_of
from analysis.forecast.study import InUnits
from analysis.forecast.units import Fitted, Trained, fitted
from analysis.statistics.agreement import icc_family
from analysis.statistics.estimate import NO_ESTIMATE, Estimate
from study.config.compose import load_judge
from study.config.schema import Trainer
from study.errors import UserError
from tests.analysis.test_interventions import STEPS, run_of
from tests.analysis.test_replay import EXPOSURE, PLANTED, TRAINER, drawn
from tests.recording import compare, of_document

NAN = float("nan")


class Base:
    """Stands for the rollouts of a study: its name, its policy and who its candidates are is all
    that is read here."""

    study, policy = "planted", "tiny"

    def __init__(self) -> None:
        self.candidates: dict[str, Any] = {}


STUDY = Base()
NOTHING_PUSHED = Pushes("planted", "base", prompts=8, rollouts=4, pushes=[], ranks=[])


def judged(doses_A_2: np.ndarray, seed: int = 0) -> Candidates:
    """Judges that pay the truth and so much for an SD of length and of tone."""
    made = drawn(seed=seed)
    truth = made.z[..., -1] * made.sd[-1]
    pays = tuple(Pay(truth + made.z[..., :-1] @ dose, TRAINER) for dose in doses_A_2)
    names = tuple(f"judge-{n}" for n in range(len(pays)))
    return Candidates(
        arms=names,
        start=made,
        pays=pays,
        bias=np.array([bias_of(made, pay.rewards, truth) for pay in pays]),
        push=np.array([pushed(made, pay) for pay in pays]),
        judges=names,
        families=tuple("length" if dose[0] else "tone" for dose in doses_A_2),
        dose=np.column_stack([doses_A_2, np.zeros(len(doses_A_2))]),
    )


def taught(judges: Candidates, seed: int, seeds: int = 2, noise: float = 0.08) -> Trained:
    """Runs of the planted policy under every judge, scattered."""
    rng = np.random.default_rng(seed)
    shapes = drifts(np.ones(len(judges.pays)), judges.pays)[..., None]
    courses = [replayed(judges.start, pay, PLANTED)[0] for pay in judges.pays]
    arm = np.repeat(np.arange(len(courses)), seeds)
    course = (courses + PLANTED.drift * shapes)[arm]
    course = course + rng.normal(0, noise, (*course.shape[:1], 1, course.shape[-1]))
    return Trained(tuple(map(str, range(len(arm)))), arm, course)


def doses(seed: int, arms: int = 12) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = np.zeros((arms, 2))
    made[np.arange(arms), rng.integers(0, 2, arms)] = rng.uniform(-0.3, 0.6, arms)
    return made


@pytest.fixture(scope="module")
def study() -> tuple[Candidates, Trained, Fitted]:
    judges = judged(doses(1))
    runs = taught(judges, 1)
    return judges, runs, fitted(STUDY, judges, runs)


def test_judges_that_were_not_seen_are_forecast_better_than_by_what_is_simple(study):
    judges, runs, of = study
    result = scored(of, STUDY, judges, runs)
    tops, lines = result.ceilings, result.methods
    by_name = {(line.method, line.feature): line for line in lines}
    ours = by_name["forecast", "length"]
    assert ours.r2 > 0.9 and ours.rho > 0.8 and ours.p < 0.01
    assert ours.slope.low < 1 < ours.slope.high
    assert ours.behind.value == 0
    for name in SIMPLER:
        other = by_name[name, "length"]
        assert np.isnan(other.r2) or other.r2 < ours.r2
        assert np.isnan(other.inside)
    apart = by_name["drift", "length"]
    assert apart.behind.value == pytest.approx(ours.r2 - apart.r2)
    inside = [by_name["forecast", name].inside for name in judges.start.names]
    assert 0.8 <= np.mean(inside) <= 1
    top = {each.feature: each for each in tops}["length"]
    assert top.moves and top.reliable
    assert ours.share == pytest.approx(ours.r2 / top.best.value)
    over = {each.method: each for each in result.pooled}
    assert over["forecast"].behind.value == over["forecast"].rho_behind.value == 0
    moved = [line for line in lines if line.moves and line.method == "drift"]
    assert over["drift"].behaviours == len(moved)
    assert over["drift"].r2 == pytest.approx(np.mean([line.r2 for line in moved]))
    gap = over["forecast"].r2 - over["drift"].r2
    assert over["drift"].behind.value == pytest.approx(gap) and over["drift"].behind.low > 0


def test_leaving_out_is_by_judge_with_its_family_beside_it(study):
    """Two rates of one judge are left out together; so are all judges of a family, in a second
    forecast; a judge of another study is forecast by all."""
    judges, runs, of = study
    assert of.left_out.keys() == {*judges.arms} == of.family_left_out.keys()
    assert {each.arms for each in of.left_out.values()} == {11}
    lengths = judges.families.count("length")
    assert of.family_left_out[judges.arms[judges.families.index("length")]].arms == 12 - lengths
    twice = replace(judges, judges=("same", "same", *judges.judges[2:]))
    together = fitted(STUDY, twice, runs)
    assert together.left_out["judge-0"].arms == 10
    assert together.left_out["judge-0"].follows.step == pytest.approx(
        together.left_out["judge-1"].follows.step
    )
    own = units.forecasts(of, STUDY, judges)
    seen = units.beside_observed(own, judges, runs)[0].observed
    assert seen.n == 2 and seen.value == pytest.approx(runs.shift[:2, 0].mean() * own[0].sd)
    elsewhere = Base()
    elsewhere.study = "another"
    others = units.forecasts(of, elsewhere, judges)
    assert len(own) == len(others) == 12 * 3
    assert [line.sds for line in own] != pytest.approx([line.sds for line in others])


def test_what_is_kept_is_what_is_read(study, tmp_path):
    judges, _, of = study
    units.save(tmp_path / "forecast.json", of)
    read = units.load(tmp_path / "forecast.json")
    elsewhere = Base()
    elsewhere.study = "another"
    lines, again = (units.forecasts(each, elsewhere, judges) for each in (of, read))
    assert str([line.row() for line in lines]) == str([line.row() for line in again])
    assert lines[0].predicted.value == pytest.approx(lines[0].sds * lines[0].sd)
    assert lines[0].predicted.level == 0.9 and lines[0].simpler["no change"] == 0.0
    with pytest.raises(UserError, match=r"python -m analysis\.forecast study=build"):
        units.load(tmp_path / "build" / "forecast.json")
    others = replace(of, names=("length", "emoji", "truth"))
    with pytest.raises(UserError, match="takes the same behaviours"):
        units.forecasts(others, STUDY, judges)
    with pytest.raises(UserError, match=r"policy=large.*how far it would move is not known"):
        units.forecasts(replace(of, policy="large"), STUDY, judges)
    few = Trained(("a", "b"), np.array([0, 1]), np.zeros((2, 6, 3)))
    with pytest.raises(UserError, match="the fit needs 4"):
        fitted(STUDY, judges, few)


def test_a_judge_that_says_nothing_or_leads_too_far_has_no_number(study):
    judges, _, of = study
    truth = judges.pays[0].rewards
    odd = replace(
        judges,
        arms=("silent", "judge-1", "far"),
        bias=judges.bias[:3],
        push=judges.push[:3],
        dose=judges.dose[:3],
        pays=(
            Pay(np.full(truth.shape, NAN), TRAINER),
            judges.pays[1],
            Pay(9 * judges.start.z[..., 0], replace(TRAINER, learning_rate=0.01)),
        ),
    )
    lines = units.forecasts(of, STUDY, odd)
    made = {(line.arm, line.feature): line.predicted for line in lines}
    for name in ("silent", "far"):
        none = made[name, "length"]
        assert np.isnan([none.value, none.low, none.high]).all()
    assert np.isfinite(made["judge-1", "length"].value)
    runs = Trained(("a", "b", "c"), np.arange(3), np.ones((3, 6, 3)))
    methods = {line.method: line for line in scored(of, STUDY, odd, runs).methods}
    assert methods["forecast"].judges == 1 and methods["drift"].judges == 3
    printed = text(NOTHING_PUSHED, InUnits("planted", shifts=lines))
    assert "No shift of silent: too few scores" in printed and "No shift of judge-1" not in printed
    assert "No shift of far: the judge leads beyond what the policy shows" in printed


def test_what_is_printed(study):
    judges, runs, of = study
    result = scored(of, STUDY, judges, runs)
    pushes = [
        Push(name, "length", Estimate(push, 0.0, 1.0), push, 8, 0.0)
        for name, push in zip(judges.arms, judges.push[:, 0].tolist(), strict=True)
    ]
    shown = units.forecasts(of, STUDY, judges)
    inputs = InUnits("planted", shifts=shown, scored=result)
    printed = text(replace(NOTHING_PUSHED, pushes=pushes), inputs)
    assert "Shift at the end of training [90 % of runs], forecast before training (8 prompts" in (
        printed
    )
    assert "r2 of every method" in printed and "another seed" in printed
    assert "is no better" not in printed
    numbers = of_document({"scored": result, "shown": shown})
    compare("forecast", [*printed.splitlines(), *numbers], near=1e-6)
    swapped = {"forecast": "one line", "one line": "forecast"}
    worse = [replace(each, method=swapped.get(each.method, each.method)) for each in result.pooled]
    said = text(NOTHING_PUSHED, replace(inputs, scored=replace(result, pooled=worse)))
    assert "The forecast is no better than one line, whose mean r2 is 0." in said


def test_the_figure_has_forecast_and_observed_of_each_judge(study):
    judges, runs, of = study
    lines = units.beside_observed(units.forecasts(of, STUDY, judges), judges, runs)
    lines[0] = replace(lines[0], predicted=NO_ESTIMATE)
    axes = figure([], lines).axes
    assert axes[0].get_title("left") == "truth" and axes[0].get_xlabel() == "shift (score)"
    known = {(line.arm, line.feature): line for line in lines[1:]}
    for panel in axes:
        labels = [label.get_text() for label in panel.get_yticklabels()]
        assert labels == sorted(judges.arms)
        shown = [line for line in panel.lines if line.get_marker() == "o"]
        points = [(line.get_xdata()[0], line.get_markerfacecolor() == "white") for line in shown]
        expected = [
            (estimate.value, estimate is line.observed)
            for judge in labels
            if (line := known.get((judge, panel.get_title("left"))))
            for estimate in (line.predicted, line.observed)
        ]
        assert points == [(pytest.approx(value), hollow) for value, hollow in expected]
    legend = [text.get_text() for text in axes[0].figure.legends[0].get_texts()]
    assert legend == ["forecast", "observed"]


def test_simple_forecasts_by_hand():
    """Shifts .2, .4 and 0 of length, 0, 0 and .6 of tone, twice the x that they go with."""
    x = np.array([[0.1, 0.0, 0.0], [0.2, 0.0, 0.0], [0.0, 0.3, 0.0]])
    moved = np.array([[0.2, 0.0, 0.1], [0.4, 0.0, -0.1], [0.0, 0.6, 0.3]])
    same = np.full(3, EXPOSURE)
    for method in ("bias", "covariance"):
        assert simple(method, x, same, moved).factor == pytest.approx([2.0] * 3)
        assert simple(method, x, same, -moved).factor.tolist() == [0.0] * 3
    drift = simple("drift", 0 * x, same, moved)
    assert drift.level == pytest.approx([0.2, 0.2, 0.1])
    assert simple("no change", 0 * x, same, moved).level.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("method", ["one line", "line by behaviour", "planted dose"])
def test_a_line_is_a_drift_and_a_factor_by_exposure(method):
    x = np.array([[0.1, 0.0, 0.3], [0.2, 0.1, 0.0], [0.0, 0.3, 0.1]])
    exposure = np.array([1.0, 2.0, 3.0])
    of_mean = np.array([-0.1, 0.2, 0.4]) + 2.5 * x
    moved = exposure[:, None] / 2 * of_mean
    fit = simple(method, x, exposure, moved)
    assert fit.factor == pytest.approx([2.5] * 3) and fit.level == pytest.approx([-0.1, 0.2, 0.4])
    assert fit.shifts(x, exposure) == pytest.approx(moved)
    lacking = np.column_stack([moved[:, :2], np.full(3, NAN)])  # no rule could tell the truth
    fit = simple(method, x, exposure, lacking)
    assert fit.factor[:2] == pytest.approx([2.5] * 2) and np.isnan(fit.level[2])


def test_a_factor_of_its_own_is_shrunk_to_the_common_one():
    """Factors 4 and 1 from equal squares: the common one is 2.5, half of the way is left."""
    x = np.array([[1.0, -1.0], [-1.0, 1.0]])
    moved = x * [4.0, 1.0]
    fit = simple("line by behaviour", x, np.ones(2), moved)
    assert fit.factor == pytest.approx([3.25, 1.75])
    assert simple("one line", x, np.ones(2), moved).factor == pytest.approx([2.5, 2.5])


def test_the_ceiling_is_the_agreement_of_seeds_without_the_exposure():
    rng = np.random.default_rng(4)
    own = np.repeat(rng.normal(0, 1, 20), 3)
    moved = own + rng.normal(0, 0.5, 60)
    judge, size = np.repeat(np.arange(20), 3), np.ones(60)
    top = ceiling("length", moved, judge, size)
    family = icc_family(moved.reshape(20, 3))
    assert top.seeds == family["ICC(1,1)"] and top.best == family["ICC(1,k)"]
    rho = top.seeds.value
    assert top.best.value == pytest.approx(3 * rho / (1 + 2 * rho)) and top.reliable
    longer = np.repeat(rng.permutation([1.0, 2.0] * 10), 3)
    exposed = ceiling("length", moved + 50 * longer, judge, longer)
    assert exposed.seeds.value == pytest.approx(rho, abs=0.05)
    alone = ceiling("length", moved[::3], judge[::3], size[::3])
    assert np.isnan(alone.seeds.value) and not alone.reliable and alone.moves


def test_scores_over_judges_by_hand():
    """Observed 2, 4, 6 for forecasts 1, 2, 3: R2 = 1 - (1 + 4 + 9) / 8; of a forecast that is right
    but for the last, by 2, it is 1 - 4 / 8."""
    top = ceiling("length", np.array([2.0, 4.0, 6.0]), np.arange(3), np.ones(3))
    seen, better = np.array([2.0, 4.0, 6.0]), np.array([2.0, 4.0, 4.0])
    made = score("one line", top, np.array([1.0, 2.0, 3.0]), seen, better, NAN, 3)
    assert (made.r2, made.slope.value, made.rho) == (1 - 14 / 8, pytest.approx(2.0), 1.0)
    assert made.behind.value == pytest.approx((1 - 4 / 8) - made.r2)
    each = np.array([1.0, 4.0, 9 - 4.0]) * 3 / 8
    half = stats.t.ppf(0.975, 2) * each.std(ddof=1) / 3**0.5
    assert made.behind.high - made.behind.value == pytest.approx(half)
    assert np.isnan(made.share) and made.judges == 3


@given(st.integers(0, 2**16))
def test_intervals_hold_their_share_of_what_they_were_made_of(seed):
    """By behaviour, also where residuals are not normal and grow with what was taught."""
    rng = np.random.default_rng(seed)
    taught_R_K1 = rng.normal(0, 1, (60, 3))
    residual = rng.standard_t(3, (60, 3)) * np.hypot([0.1, 0.5, 0.02], 0.2 * taught_R_K1)
    none = np.zeros((60, 3))
    spread = spread_of(residual, taught_R_K1, none, np.repeat(np.arange(30), 2), 0.9)
    inside = (abs(residual) <= spread.halves(taught_R_K1, none)).mean(axis=0)
    assert ((inside >= 0.9) & (inside <= 0.94)).all()


def test_intervals_of_few_runs_are_wide_and_what_was_never_told_has_none():
    residual = np.column_stack([[0.1, -0.1, 0.2, 0.1], [NAN] * 4])
    none = np.zeros((4, 2))
    spread = spread_of(residual, none, none, np.array([0, 0, 1, 1]), 0.9)
    assert spread.widths[0] >= stats.t.ppf(0.95, 1)
    assert np.isnan(spread.halves(none[:1], none[:1])[0, 1])
    assert spread.shared[1] == 0


def test_a_short_run_has_a_wider_interval_by_the_prompts_that_it_draws():
    """One step of eight prompts in each tenth against four: half of the variance is between
    prompts, and the rest is of eight answers to each."""
    rng = np.random.default_rng(0)
    level = rng.normal(0, 1, (2000, 1))
    features = (level + rng.normal(0, 1, (2000, 8)))[..., None]
    made = start_of(features, (rng.random((2000, 8)) < 0.5).astype(float), ("length",))
    assert made.sampling(8, 8) == pytest.approx([(0.5 + 0.5 / 8) / 8, 1 / 64], abs=0.005)
    pays = tuple(
        Pay(features[..., 0], Trainer(steps=steps, prompts_per_step=8, group_size=8))
        for steps in (10, 40)
    )
    judges = replace(judged(np.zeros((2, 2))), start=made, pays=pays)
    assert judges.sampling[0] == pytest.approx(4 * judges.sampling[1])
    assert judges.sampling[0] == pytest.approx(2 * made.sampling(8, 8))
    drawn_alone = rng.normal(0, np.sqrt(judges.sampling[0]), (400, 2))
    spread = spread_of(
        drawn_alone, np.zeros((400, 2)), np.tile(judges.sampling[0], (400, 1)), np.arange(400), 0.9
    )
    assert spread.widths == pytest.approx([1.645, 1.645], abs=0.3)
    assert spread.sd == pytest.approx([0.02, 0.02], abs=0.1)
    short, long = spread.halves(np.zeros((2, 2)), judges.sampling)
    assert (short > 1.4 * long).all()


def test_what_runs_of_a_judge_share_of_their_distance_is_told():
    rng = np.random.default_rng(1)
    judge = np.repeat(np.arange(300), 2)
    both = rng.normal(0, 1, 300)[judge]
    residual = np.column_stack([both + rng.normal(0, 1, 600), rng.normal(0, 1, 600)])
    none = np.zeros((600, 2))
    shared = spread_of(residual, none, none, judge, 0.9).shared
    assert shared == pytest.approx([0.5, 0.0], abs=0.12)


def test_a_run_that_an_alarm_ended_early_is_in_no_fit():
    """Its shift is that of fewer steps than those that its exposure is counted over."""
    judges = replace(judged(np.zeros((1, 2))), arms=("a",))
    stops = {"correction.stop": True, "trainer.steps": STEPS}
    whole, early = run_of("a", 0, stops), run_of("a", 1, stops | {"trainer.steps": 2 * STEPS})
    trained = units.trained([whole, early], judges)
    assert trained.cells == (whole.cell,) and trained.shift.shape == (1, 3)
    printed = text(NOTHING_PUSHED, InUnits("planted", ended_early=[early.cell]))
    assert printed.endswith(f"so in no fit and no score: {early.cell}")


@pytest.mark.parametrize(
    "name, neighbours",
    [("sim-verbose", "length"), ("sim-fair", "none"), ("qwen3-8b", "qwen3")],
)
def test_neighbours_are_judges_that_pay_for_the_same(name, neighbours):
    assert family(load_judge(name)) == neighbours


def test_a_shift_is_the_replay_and_the_drift_above_the_floor():
    judges = judged(np.array([[0.3, 0.0]]))
    of = Follows(np.ones(3), 1.0, np.array([0.5, -99.0, 0.0]), 2 * EXPOSURE)
    made = units.shifts(of, judges, 0)
    ends, support = replayed(judges.start, judges.pays[0], of)
    assert made.of_run[0] == pytest.approx(ends[-1, 0] + 0.25)  # half of the exposure
    assert made.of_run[1] == judges.start.floor[1]
    assert made.support == support and made.taught == pytest.approx(ends[-1])
