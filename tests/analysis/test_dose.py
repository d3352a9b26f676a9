"""Dose-response fits against planted curves, and the correction for a bias measured with error."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.dose import emax, figure, line, main, steps, trend_p

DOSES = np.repeat([-0.2, -0.1, 0.0, 0.1, 0.2], 4)


def test_a_line_covers_its_slope():
    """200 planted studies of 20 runs: 95 % intervals hold the slope of 30 in their band."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        fit = line(DOSES, 1.0 + 30 * DOSES + rng.normal(0, 2, 20))
        held += fit.low <= 30 <= fit.high
    assert 181 <= held <= 198  # 190 +- 3 SD of a binomial


def test_a_line_by_hand():
    fit = line(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
    assert (fit.slope, fit.intercept, fit.r2, fit.runs) == (2.0, 1.0, 1.0, 3)
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
    straight = emax(dose, 3 * dose + rng.normal(0, 0.1, 36))
    assert straight.note or straight.aic > straight.aic_line - 4


def test_three_doses_bend_nothing():
    found = emax(np.repeat([0.0, 1.0, 2.0], 3), np.repeat([0.0, 1.0, 2.0], 3))
    assert math.isnan(found.emax) and "too few" in found.note


def test_the_trend_test_keeps_its_level_and_finds_a_trend():
    rng = np.random.default_rng(2)
    null = [trend_p(DOSES, rng.normal(size=20), seed) for seed in range(60)]
    assert np.mean(np.array(null) <= 0.05) <= 0.15
    assert trend_p(DOSES, 10 * DOSES + rng.normal(size=20)) < 0.01
    assert math.isnan(trend_p(DOSES, np.ones(20)))


@given(st.integers(0, 20))
def test_a_trend_is_the_same_in_other_units(seed):
    rng = np.random.default_rng(seed)
    response = rng.normal(size=20)
    assert trend_p(DOSES, response) == trend_p(3 * DOSES + 1, -2 * response + 5)


def test_few_runs_are_counted_and_not_drawn():
    """Of the 24 orders of four runs two are as extreme as a perfect one, of 6 two, both ways."""
    rising = np.array([1.0, 2.0, 3.0, 4.0])
    assert trend_p(rising, rising**2) == pytest.approx(2 / 24)
    assert trend_p(rising[:3], -rising[:3]) == pytest.approx(2 / 6)
    # 3! x 3! x 2 of the 6! orders keep three equal doses and responses together
    two = np.repeat([0.0, 1.0], 3)
    assert trend_p(two, 5 * two) == pytest.approx(72 / 720)


def test_drawn_and_counted_p_agree():
    """Seven runs: counted over 5,040 orders, and drawn where fewer draws are asked for."""
    rng = np.random.default_rng(4)
    dose, response = np.arange(7.0), np.arange(7.0) / 2 + rng.normal(size=7)
    drawn = trend_p(dose, response, draws=5000)
    assert trend_p(dose, response) == pytest.approx(drawn, abs=0.02)


def test_the_command_line_refuses_too_few_doses(small_study, capsys):
    words = [f"study={small_study.name}", f"runs_dir={small_study.parent}"]
    assert main(words) == 2
    assert "experiment=dose-response" in capsys.readouterr().err
    assert main(["study=nothing"]) == 2
    assert main(["dose=1"]) == 2


def test_a_study_of_doses_is_read(small_study, tmp_path, capsys):
    """The runs of a real study, told apart by the doses written into copies of their configs."""
    import shutil

    import yaml

    study = tmp_path / "doses"
    shutil.copytree(small_study, study)
    for dose, cell in enumerate(sorted(study.glob("sim-*"))):
        config = yaml.safe_load((cell / "config.yaml").read_text())
        config["judge"]["simulated"]["doses"] = {"length": 0.1 * dose}
        (cell / "config.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "d.json"
    assert main(["study=doses", f"runs_dir={tmp_path}", f"out={out}"]) == 0
    found = json.loads(out.read_text())
    assert sorted(run["dose"] for run in found["runs"]) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert found["line"]["runs"] == 4 and "trend p" in capsys.readouterr().out
    made = figure(found)
    assert made.axes[0].get_xlabel() == "dose (score per SD of length)"
