"""Dose-response fits against planted curves, and the correction for a bias measured with error."""

import dataclasses
import math
import shutil
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.dose.__main__ import main
from analysis.dose.display import dose_caption, dose_response
from analysis.dose.estimate import (
    complete,
    doses_of,
    emax,
    lack_of_fit,
    left_out,
    line,
    response,
    slope_by_seed,
    steps,
    straight,
    study,
    theory,
    trend_p,
)
from analysis.records.runs import read_runs, read_study
from analysis.report import sections
from analysis.report.evidence import dose_responses, of_records
from tests.analysis.conftest import config_of, following
from tests.rewritten import unsigned

DOSES = np.repeat([-0.2, -0.1, 0.0, 0.1, 0.2], 4)


def test_a_line_by_hand():
    fit = line(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
    assert (fit.slope.value, fit.intercept, fit.r2) == pytest.approx((2.0, 1.0, 1.0))
    assert fit.runs == 3 and line(np.arange(3.0), np.ones(3)).r2 == 0
    response = 1.0 + 30 * DOSES + np.random.default_rng(0).normal(0, 2, 20)
    fit, oracle = line(DOSES, response), stats.linregress(DOSES, response)
    half = stats.t.ppf(0.975, 18) * oracle.stderr
    ends = (oracle.slope, oracle.slope - half, oracle.slope + half)
    assert (fit.slope.value, fit.slope.low, fit.slope.high) == pytest.approx(ends)
    near = 1 + 1e-9 * DOSES  # a dose that hardly varies is one all the same
    assert line(near, response).slope.value == pytest.approx(
        stats.linregress(near, response).slope, rel=1e-4
    )
    with pytest.raises(ValueError, match="three runs"):
        line(np.array([0.0, 1.0]), np.array([0.0, 1.0]))


def test_the_monotone_fit_pools_what_falls_back():
    """Means 0, 4, 2, 6 with equal counts: the middle two become 3."""
    dose = np.repeat([0.0, 1.0, 2.0, 3.0], 2)
    response = np.repeat([0.0, 4.0, 2.0, 6.0], 2)
    assert steps(dose, response) == [(0.0, 0.0), (1.0, 3.0), (2.0, 3.0), (3.0, 6.0)]
    assert steps(dose, -response)[1] == (1.0, -3.0)


def test_a_bent_response_is_an_emax_curve_and_a_straight_one_is_not():
    rng = np.random.default_rng(1)
    dose = np.repeat(np.linspace(0, 1, 6), 6)
    bent = emax(dose, 2 + 10 * dose / (0.1 + dose) + rng.normal(0, 0.1, 36))
    assert (bent.e0, bent.emax) == (pytest.approx(2, abs=0.3), pytest.approx(10, rel=0.1))
    assert bent.ed50 == pytest.approx(0.1, rel=0.25)
    assert bent.aic < bent.aic_line - 10
    flat = emax(dose, 3 * dose + rng.normal(0, 0.1, 36))
    # a fit without a bend has no parameters to show
    assert math.isnan(flat.ed50) == bool(flat.note)
    assert flat.note or flat.aic > flat.aic_line - 4
    degenerate = emax(dose, 3 * dose)
    assert degenerate.note and math.isnan(degenerate.emax)
    three = emax(np.repeat([0.0, 1.0, 2.0], 3), np.repeat([0.0, 1.0, 2.0], 3))
    assert math.isnan(three.emax) and "too few" in three.note


SEEDS = np.tile(np.arange(4), 5)


def test_slopes_of_seeds_leave_out_what_seeds_differ_in():
    """Two seeds 100 apart, with slopes 2 and 4: 3 +- t(1) x 1, while the pooled line is lost."""
    dose = np.array([0.0, 1.0, 2.0] * 2)
    seed = np.repeat([0, 1], 3)
    response = np.where(seed == 0, 2 * dose, 100 + 4 * dose)
    found = slope_by_seed(dose, response, seed)
    assert (found.value, found.n, found.unit) == (pytest.approx(3.0), 2, "seed")
    assert found.high - 3 == pytest.approx(stats.t.ppf(0.975, 1) * 1.0)
    pooled = line(dose, response).slope
    assert pooled.value == pytest.approx(3.0) and pooled.high - 3 > 50
    some = slope_by_seed(dose[:-1], response[:-1], seed[:-1])
    assert (some.unit, some.n) == ("run", 5) and "did not all run" in some.note


def test_lines_that_cannot_be_tested_and_blocks_that_are_not_complete():
    assert complete(DOSES, SEEDS)
    assert not complete(DOSES[:-1], SEEDS[:-1])
    assert not complete(np.array([0.0, 1.0]), np.zeros(2)), "one seed"
    assert not complete(DOSES, np.zeros(20)) and not complete(np.zeros(2), np.array([0, 0]))
    assert math.isnan(lack_of_fit(DOSES, 3 * DOSES, SEEDS))  # nothing is left to compare with
    assert straight(math.nan) == "whether it is straight cannot be tested"
    assert straight(0.001).startswith("a straight line does not hold")


@pytest.mark.parametrize("blocked", [True, False])
def test_lack_of_fit_is_the_analysis_of_variance(blocked):
    rng = np.random.default_rng(5)
    response = 10 * DOSES + 60 * DOSES**2 + rng.normal(0, 1, 4)[SEEDS] + rng.normal(0, 0.5, 20)
    frame = pd.DataFrame({"y": response, "d": DOSES, "s": SEEDS})
    extra = " + C(s)" if blocked else ""
    models = [smf.ols(f"y ~ {term}{extra}", frame).fit() for term in ("d", "C(d)")]
    seeds = SEEDS if blocked else np.arange(20)  # no two runs share a seed: no blocks
    expected = float(models[1].compare_f_test(models[0])[1])
    assert lack_of_fit(DOSES, response, seeds) == pytest.approx(expected)


def test_a_trend_within_seeds_is_counted_drawn_or_left():
    """Two seeds of three doses: 36 orders, of which all rising and all falling are as extreme."""
    dose, seed = np.array([0.0, 1.0, 2.0] * 2), np.repeat([0, 1], 3)
    response = dose + 100 * seed
    assert trend_p(dose, response, blocks=seed) == pytest.approx(2 / 36)
    # the seeds' levels hide it from orders over all runs
    assert trend_p(dose, response) > 0.5
    assert trend_p(DOSES, DOSES + 9 * SEEDS, blocks=SEEDS, draws=999) == pytest.approx(1 / 1000)
    # Seven runs: counted over 5,040 orders, and drawn where fewer draws are asked for.
    rng = np.random.default_rng(4)
    dose, response = np.arange(7.0), np.arange(7.0) / 2 + rng.normal(size=7)
    drawn = trend_p(dose, response, draws=5000)
    assert trend_p(dose, response) == pytest.approx(drawn, abs=0.02)
    # Of the 24 orders of four runs two are as extreme as a perfect one, of 6 two, both ways.
    rising = np.array([1.0, 2.0, 3.0, 4.0])
    assert trend_p(rising, rising**2) == pytest.approx(2 / 24)
    assert trend_p(rising[:3], -rising[:3]) == pytest.approx(2 / 6)
    # 3! x 3! x 2 of the 6! orders keep three equal doses and responses together
    two = np.repeat([0.0, 1.0], 3)
    assert trend_p(two, 5 * two) == pytest.approx(72 / 720)
    assert math.isnan(trend_p(DOSES, np.ones(20)))


@given(st.integers(0, 20))
def test_a_trend_is_the_same_in_other_units(seed):
    response = np.random.default_rng(seed).normal(size=20)
    assert trend_p(DOSES, response) == trend_p(3 * DOSES + 1, -2 * response + 5)


def row(dose, shift, first_order, beta=0.0):
    facts = {"dose": dose, "shift": shift, "first_order": first_order, "beta": beta}
    return {**facts, "unpredicted": ""}


def only_theory(*lines):
    return SimpleNamespace(feature="length", theory=lines)


def test_the_theory_is_a_line_for_each_beta():
    """At beta 0 the mean of 2 and 4 at dose 1; at beta .5 a slope of 10 of which half is seen."""
    free = [row(0.0, 0.0, 0.0), row(1.0, 3.0, 2.0), row(1.0, 3.0, 4.0), row(2.0, 6.0, 6.0)]
    held = [row(dose, 5 * dose, 10 * dose + 1, 0.5) for dose in (0.0, 1.0, 2.0)]
    first, second = theory(pd.DataFrame([*held, *free]))
    assert (first.beta, first.points) == (0.0, [(0.0, 0.0), (1.0, 3.0), (2.0, 6.0)])
    assert (first.slope, first.amplification) == (pytest.approx(3.0), pytest.approx(1.0))
    assert (second.beta, second.points[0]) == (0.5, (0.0, 1.0))
    assert (second.slope, second.amplification) == (pytest.approx(10), pytest.approx(0.5))
    said = dose_caption(only_theory(first, second))
    assert "fitted on the other runs; observed / predicted slope 1.00" in said
    assert "hold length in the end, Cov(A, z) / beta" in said and "slope 0.50." in said


def test_runs_that_theory_knows_nothing_of_are_left_out_and_said():
    """Two known runs make points and no line; none makes a sentence."""
    nan = math.nan
    (some,) = theory(pd.DataFrame([row(0.0, 1.0, 2.0), row(0.0, 1.0, nan), row(1.0, 2.0, 3.0)]))
    assert some.points == [(0.0, 2.0), (1.0, 3.0)] and math.isnan(some.amplification)
    assert "observed / predicted" not in dose_caption(only_theory(some))
    free, held = theory(
        pd.DataFrame([row(0.0, 1.0, nan), row(1.0, 1.0, nan), row(0.0, 1.0, nan, 0.1)])
    )
    assert free.points == held.points == []
    said = dose_caption(only_theory(free, held))
    assert "at least 3 with a logged gradient norm, but there are 1." in said
    assert "at beta = 0.1: the first step has no two rewards" in said


def dosed_copy(study, small_study, betas=(0.0,) * 4):
    """A copy of a real study whose judges differ in their doses alone, and its runs in betas."""
    shutil.copytree(small_study, study)
    judge = None
    for number, (cell, beta) in enumerate(zip(sorted(study.glob("sim-*")), betas, strict=True)):
        with config_of(cell) as config:
            judge = judge or config["judge"]
            simulated = judge["simulated"] | {"doses": {"length": 0.1 * number}}
            config["judge"] = judge | {"name": cell.name, "simulated": simulated}
            config["trainer"]["beta"] = beta
        unsigned(cell, judge=cell.name)
    return study


@pytest.fixture(scope="module")
def doses(small_study, tmp_path_factory):
    """The records of four doses whose runs follow their rewards. Not to be changed."""
    records = read_study(dosed_copy(tmp_path_factory.mktemp("runs") / "doses", small_study))
    return dataclasses.replace(records, runs=following(records.runs, 3.0))


def test_first_order_is_the_limit_under_a_penalty_and_the_push_without(
    doses, small_study, tmp_path
):
    """Against Cov(A, z) / beta written out, and against the step size that was planted."""
    for one in response(doses.runs, "length").runs.to_dict("records"):
        assert one["first_order"] == pytest.approx(one["shift"]) and one["unpredicted"] == ""
    betas = (0.5, 0.5, 0.25, 0.25)
    held, _ = study(dosed_copy(tmp_path / "held", small_study, betas), "length")
    runs = {run.cell: run.at(1) for run in read_runs(tmp_path / "held")[0]}
    known = 0
    for one in held.runs.to_dict("records"):
        run = runs[one["cell"]]
        length = run.features[..., run.names.index("length")]
        if np.isfinite(run.reward).all():  # no rollout of the first step went unscored
            known += 1
            scaled = run.reward / (run.reward.std(axis=1, ddof=1, keepdims=True) + 1e-4)
            covariances = [np.cov(a, z)[0, 1] for a, z in zip(scaled, length, strict=True)]
            assert one["first_order"] == pytest.approx(np.mean(covariances) / one["beta"], rel=1e-6)
    assert known >= 2
    assert [one.beta for one in held.theory] == [0.25, 0.5]


def test_the_figure_names_the_theory_or_says_why_there_is_none(doses, small_study, tmp_path):
    free = dose_response(response(doses.runs, "length"))
    assert "first order" in {text.get_text() for text in free.legends[0].get_texts()}
    found, _ = study(dosed_copy(tmp_path / "mixed", small_study, (0.0, 0.0, 0.5, 0.5)), "length")
    mixed = dose_response(found)
    named = {text.get_text() for text in mixed.legends[0].get_texts()}
    assert "first order, beta = 0.5" in named and "first order" not in named
    said = " ".join(mixed.get_supxlabel().split())
    assert said.startswith(dose_caption(found)) and "there are 1." in said
    plt.close("all")


def test_a_theory_far_off_is_cut_and_the_runs_stay_in_view(doses):
    found = response(doses.runs, "length")
    far = [
        dataclasses.replace(one, points=[(dose, 1e6 * dose) for dose, _ in one.points])
        for one in found.theory
    ]
    made = dose_response(dataclasses.replace(found, theory=far))
    low, high = made.axes[0].get_ylim()
    assert low <= found.runs["shift"].min() and found.runs["shift"].max() <= high < 1e4
    assert made.get_supxlabel().endswith("A line leaves the panel.")
    plt.close(made)


def test_a_study_of_doses_is_read(small_study, tmp_path, answered):
    """The runs of a real study, told apart by the doses written into copies of their configs."""
    doses = dosed_copy(tmp_path / "doses", small_study)
    found, said = answered(main, doses, f"figure={tmp_path / 'd.png'}")
    assert sorted(run["dose"] for run in found["runs"]) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert found["line"]["runs"] == 4 and "trend p" in said
    assert "No first-order prediction at beta = 0: the other runs moved against" in said
    assert found["left_out"] == 0 and "left out" not in said
    made = dose_response(study(tmp_path / "doses", "length")[0])
    assert made.axes[0].get_xlabel() == "dose (score per SD of length)"
    assert (tmp_path / "d.png").stat().st_size > 0
    plt.close("all")


def test_a_dose_study_has_its_section_and_others_have_none(doses, small_study):
    evidence = of_records(doses)
    before = plt.get_fignums()
    text = "".join(sections.doses(evidence))
    assert "How much behaviour does a dose buy?" in text and text.count("<figure>") == 1
    assert "runs are treated as independent" in text and "First order" in text
    assert plt.get_fignums() == before
    assert dose_responses(read_runs(small_study)[0]) == dose_responses([]) == []
    assert sections.doses(dataclasses.replace(evidence, doses=[])) == []


def test_a_config_that_cannot_be_read_is_a_problem_and_no_dose(small_study, tmp_path):
    folder = dosed_copy(tmp_path / "doses", small_study)
    sorted(folder.glob("sim-*/config.yaml"))[0].write_text("judge: [unclosed")
    found, problems = study(folder, "length")
    assert len(found.runs) == 3 and any("is left out" in problem for problem in problems)


def under(runs, number, **simulated):
    """The run under a fair judge that is simulated with other settings, under a name of its own."""
    run = runs[number % len(runs)]
    settings = {f"judge.simulated.{key.replace('__', '.')}": v for key, v in simulated.items()}
    named = {"judge.name": f"j{number}", "judge.simulated.leniency": 0.0, **settings}
    identity = {key: value for key, value in run.identity.items() if "simulated" not in key}
    others = {key: value for key, value in run.config.items() if "simulated" not in key}
    facts = {"config": others | named, "identity": identity | named}
    return dataclasses.replace(run, cell=f"c{number}", **facts)


def test_only_judges_that_differ_in_this_dose_alone_are_on_its_curve(small_study):
    """A noisy judge with and without doses of length, beside ones that were dosed otherwise."""
    runs = following(read_runs(small_study)[0], 3.0)
    noisy = [{}, {"doses__length": 0.03}, {"doses__length": 0.08}, {"doses__length": 0.0}]
    curve = [under(runs, n, noise_sd=0.2, **doses) for n, doses in enumerate(noisy)]
    zero = under(runs, 4, noise_sd=0.2, doses__flattery=0.0)
    others = [
        under(runs, 5, noise_sd=0.2, doses__flattery=0.08),
        under(runs, 6),
        under(runs, 7, doses__length=0.12),
        under(runs, 8, noise_sd=0.2, doses__length=0.12, doses__exclamation=-0.15),
        under(runs, 9, noise_sd=0.2, domains__math__doses__length=0.2),
    ]
    every = [*others, *curve, zero]
    doses = {"c0": 0.0, "c1": 0.03, "c2": 0.08, "c3": 0.0, "c4": 0.0}
    assert doses_of(every, "length") == doses
    assert doses_of(others[1:3], "length") == {"c6": 0.0, "c7": 0.12}
    assert doses_of(every, "flattery") == {"c0": 0.0, "c3": 0.0, "c4": 0.0, "c5": 0.08}
    mixed, alone = response(every, "length"), response([*curve, zero], "length")
    assert mixed.left_out == 5 and alone.left_out == 0
    assert {**mixed.numbers(), "left_out": 0} == alone.numbers()
    assert left_out(5).startswith("5 runs are left out: ") and left_out(0) == ""


def test_a_dose_curve_names_the_runs_that_it_leaves_out(small_study, tmp_path, printed):
    """A fifth run pays for flattery too: it is no point of the curve of length."""
    folder = dosed_copy(tmp_path / "doses", small_study)
    cell = sorted(folder.glob("sim-*"))[0]
    other = shutil.copytree(cell, folder / f"{cell.name[:-10]}0123456789")
    with config_of(other) as config:
        config["judge"]["simulated"]["doses"] = {"flattery": 0.2}
    unsigned(other)
    said = printed(main, folder)
    assert "length: 4 runs" in said and "1 run is left out: " in said
