"""Orders of judges by the truth to expect: by hand, planted, and where there is nothing to know."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate, stats

from analysis.forecast.candidates import Candidates
from analysis.forecast.display import text
from analysis.forecast.order import best_of_group, order, order_scores
from analysis.forecast.replay import Pay
from analysis.forecast.start import start_of
from analysis.forecast.study import InUnits
from analysis.forecast.units import Fitted, Trained, beside_observed, fitted, forecasts
from study.config.schema import Judge, Sampling
from tests.analysis.test_forecast_units import (
    NOTHING_PUSHED,
    STUDY,
    Base,
    doses,
    judged,
    taught,
)
from tests.analysis.test_replay import TRAINER

NAN = float("nan")


def runs_of(truth_R: list[float], arm_R: list[int]) -> Trained:
    course = np.zeros((len(arm_R), 6, 3))
    course[:, -1, -1] = truth_R
    return Trained(tuple(map(str, range(len(arm_R)))), np.array(arm_R), course)


def test_scores_by_hand():
    """Three judges, one run each, .3, .2 and .1: of the pairs 0-1, 0-2 and 1-2 the forecast has the
    first and the last right, by .8 and .6, and the second wrong, by .7."""
    chance = np.array([[0.5, 0.8, 0.3], [0.2, 0.5, 0.6], [0.7, 0.4, 0.5]])
    judges = judged(doses(1, 3))
    ours, *_, none = order_scores(judges, runs_of([0.3, 0.2, 0.1], [0, 1, 2]), chance)
    assert (ours.pairs, ours.judges) == (3, 3)
    assert ours.tau.value == pytest.approx(1 / 3)
    assert ours.brier == pytest.approx((0.2**2 + 0.7**2 + 0.4**2) / 3)
    assert none.method == "chance" and none.brier == 0.25 and np.isnan(none.tau.value)


def test_only_runs_of_two_judges_in_one_training_are_compared():
    judges = judged(doses(1, 4))
    longer = replace(TRAINER, steps=80)
    pays = (*judges.pays[:2], *(replace(pay, trainer=longer) for pay in judges.pays[2:]))
    chance = np.full((4, 4), 0.7)
    runs = runs_of([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0, 0, 1, 1, 2, 3])
    assert {each.pairs for each in order_scores(replace(judges, pays=pays), runs, chance)} == {5}
    unknown = np.full((4, 4), NAN)
    assert order_scores(judges, runs, unknown) == []
    same = replace(judges, judges=("one",) * 4)
    assert order_scores(same, runs, chance) == []


def test_a_run_whose_updates_are_seen_is_in_no_score():
    """Of the pairs of runs of two judges only the one of their second runs is left."""
    judges, chance = judged(doses(1, 3)), np.full((3, 3), 0.7)
    runs = runs_of([0.1, 0.9, 0.3, 0.2, 0.5], [0, 0, 1, 1, 2])
    ours, *_ = order_scores(judges, runs, chance, 1)
    assert ours.pairs == 1 and ours.tau.value == 1
    assert order_scores(judges, runs, chance, 0)[0].pairs == 8


def test_the_best_of_a_group_is_what_the_judge_pays_the_most():
    """Of two groups of two one pick is right and one is not; equal pay is the mean of both."""
    truth = np.array([[1.0, 0.0, 0.0, 1.0]])
    start = start_of(np.arange(4.0).reshape(1, 4, 1), truth, ("length",))
    trainer = replace(TRAINER, group_size=2)
    for paid, expected in (([1, 0, 1, 0], 0), ([1, 0, 0, 1], 1), ([1, 0, 1, 1], 0.5)):
        pay = Pay(np.array([paid], dtype=float), trainer)
        assert best_of_group(start, pay) == pytest.approx(expected)
    assert best_of_group(start, Pay(np.array([[NAN, NAN, 0, 1]]), trainer)) == pytest.approx(1)


@pytest.fixture(scope="module")
def study() -> tuple[Candidates, Trained, Fitted]:
    judges = judged(doses(1))
    runs = taught(judges, 1, noise=0.02)
    return judges, runs, fitted(STUDY, judges, runs)


def test_a_planted_policy_is_ordered_better_than_by_chance(study):
    judges, runs, of = study
    made = order(of, STUDY, judges, runs)
    by_method = {each.method: each for each in made.scores}
    ours = by_method["forecast"]
    assert ours.tau.low > 0 and ours.brier < by_method["chance"].brier == 0.25
    assert ours.pairs == 12 * 11 // 2 * 4
    values = [line.truth.value for line in made.standings]
    assert values == sorted(values, reverse=True)
    assert {line.verdicts for line in made.standings} == {40 * 8 * 4}
    first, last = made.standings[0], made.standings[-1]
    assert first.harm < last.harm
    chances = {(each.judge, each.other): each.chance for each in made.better}
    assert chances[first.judge, last.judge] > 0.5 and len(chances) == 66


def test_the_run_whose_updates_are_seen_is_not_beside_its_forecast(study):
    judges, runs, of = study
    lines = forecasts(of, STUDY, judges, runs)
    first = lines[0]
    at = judges.start.names.index(first.feature)
    every, others = (beside_observed(lines, judges, runs, count)[0] for count in (0, 1))
    shifts = runs.shift[np.flatnonzero(runs.arm == judges.arms.index(first.arm)), at] * first.sd
    assert len(shifts) == 2
    assert every.observed.value == pytest.approx(shifts.mean())
    assert others.observed.value == pytest.approx(shifts[1])


def test_a_judge_of_several_votes_is_asked_for_as_many_verdicts(study):
    judges, runs, of = study
    judge = Judge(sampling=Sampling(votes=5))
    voting = Base()
    voting.candidates = {"judge-0": SimpleNamespace(judge=judge)}
    asked = {each.judge: each.verdicts for each in order(of, voting, judges, runs).standings}
    assert asked["judge-0"] == 5 * asked["judge-1"] == 5 * 40 * 8 * 4


def test_chance_and_harm_are_those_of_normal_runs(study):
    judges, runs, of = study
    made = order(of, STUDY, judges, runs)
    a, b = made.standings[0], made.standings[-1]
    z = stats.norm.ppf(0.95)
    sd_a, sd_b = ((line.truth.high - line.truth.value) / z for line in (a, b))
    rng = np.random.default_rng(0)
    draws_a, draws_b = (
        rng.normal(line.truth.value, sd, 100_000) for line, sd in ((a, sd_a), (b, sd_b))
    )
    chances = {(each.judge, each.other): each.chance for each in made.better}
    assert (draws_a > draws_b).mean() == pytest.approx(chances[a.judge, b.judge], abs=0.01)
    before = float(judges.start.mean[-1])
    levels = np.linspace(b.truth.value - 9 * sd_b, before, 20_001)
    lost = integrate.simpson(
        (before - levels) * stats.norm.pdf(levels, b.truth.value, sd_b), levels
    )
    assert b.harm == pytest.approx(lost, rel=1e-4)


def test_runs_whose_signs_are_drawn_tell_nothing(study):
    """Whatever the forecast knows, no order of coin flips can be known: over 40 draws tau is 0."""
    judges, runs, of = study
    rng = np.random.default_rng(0)
    taus, briers = [], []
    chance = np.full((12, 12), NAN)
    for each in order(of, STUDY, judges, runs).better:
        a, b = judges.arms.index(each.judge), judges.arms.index(each.other)
        chance[a, b], chance[b, a] = each.chance, 1 - each.chance
    for _ in range(40):
        course = runs.course.copy()
        course[..., -1] *= np.repeat(rng.choice([-1.0, 1.0], 12), 2)[:, None]
        course[..., -1] += rng.normal(0, 1, 12)[runs.arm][:, None]
        ours = order_scores(judges, replace(runs, course=course), chance)[0]
        taus.append(ours.tau.value)
        briers.append(ours.brier)
    assert abs(np.mean(taus)) < 4 * np.std(taus) / 40**0.5
    assert np.mean(briers) > 0.25


def test_judges_that_pay_alike_are_no_better_than_each_other():
    judges = judged(np.tile([[0.2, 0.0]], (6, 1)))
    runs = taught(judges, 1)
    of = fitted(STUDY, judges, runs)
    elsewhere = type(STUDY)()
    elsewhere.study = "another"
    made = order(of, elsewhere, judges, runs)
    assert {each.chance for each in made.better} == {0.5}
    ours = made.scores[0]
    assert ours.brier == 0.25 and np.isnan(ours.tau.value)


def test_what_is_printed(study):
    judges, runs, of = study
    made = order(of, STUDY, judges, runs)
    printed = text(NOTHING_PUSHED, InUnits("planted", order=made))
    assert "Truth after training [90 % of runs]" in printed and "Kendall's tau" in printed
    assert f"{made.standings[0].judge}  " in printed
    assert made.numbers()["order_scores"][0]["method"] == "forecast"
