"""Slopes on a bias measured with error: hand-made cases, planted truth, and a real study."""

import math
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis.dose.errors_in_variables import (
    deming,
    moments,
    plain,
    reliability,
    simex,
    slopes,
)
from analysis.natural import main
from study.config.identity import digest
from study.features import features
from tests.analysis.conftest import config_of
from tests.conftest import in_parts


def planted(seed, judges, other=0.0):
    """Slope 2 on biases of SD 1 measured with error .5, mean shifts with error .4."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=judges)
    error, spread = np.full(judges, 0.5), np.full(judges, 0.4)
    shift = 2 * true + rng.normal(0, spread) + other * rng.normal(size=judges)
    return true + rng.normal(0, error), error, shift, spread


def test_the_error_flattens_the_plain_slope_and_comes_out_again():
    """Reliability 1 / 1.25 = .8: plain 1.6, corrected 2; SIMEX stays a little below."""
    given = planted(0, 20_000)
    assert reliability(given[0], given[1]) == pytest.approx(0.8, abs=0.01)
    assert plain(*given) == pytest.approx(1.6, abs=0.03)
    assert moments(*given) == pytest.approx(2.0, abs=0.04)
    assert deming(*given) == pytest.approx(2.0, abs=0.04)
    assert 1.85 < simex(*given) < 2.02


def test_judges_that_differ_otherwise_fool_deming_and_not_the_moments():
    given = planted(1, 20_000, other=1.0)
    assert moments(*given) == pytest.approx(2.0, abs=0.05)
    assert deming(*given) > 2.2


def test_deming_is_the_major_axis_for_equal_errors():
    """With equal errors the line is the first principal axis, whichever way it is turned."""
    points = np.random.default_rng(2).normal(size=(2, 30))
    points[1] += 0.7 * points[0]
    same = np.ones(30)
    axes = np.linalg.svd(points - points.mean(axis=1, keepdims=True))[0]
    found = deming(points[0], same, points[1], same)
    assert found == pytest.approx(axes[1, 0] / axes[0, 0])
    assert deming(points[1], same, points[0], same) == pytest.approx(1 / found)


def test_without_error_all_slopes_are_the_plain_one():
    bias, _, shift, spread = planted(3, 12)
    by_method = slopes(bias, np.full(12, 1e-9), shift, spread)
    for name in ("moments", "simex"):
        assert by_method[name].value == pytest.approx(by_method["plain"].value, rel=1e-6)
    assert by_method["moments"].low < by_method["plain"].value < by_method["moments"].high


def test_what_cannot_be_corrected_is_nan_or_refused():
    bias, error, shift, spread = planted(4, 6)
    assert math.isnan(moments(bias, 9 * error, shift, spread))
    three = slopes(bias[:3], error[:3], shift[:3], spread[:3]).values()
    assert all(math.isfinite(slope.value) and math.isnan(slope.low) for slope in three)
    for wrong in (
        (bias[:2], error[:2], shift[:2], spread[:2]),
        (bias * 0, error, shift, spread),
        (bias, error * 0, shift, spread),
    ):
        with pytest.raises(ValueError, match="three judges"):
            slopes(*wrong)


def test_a_study_of_three_judges_is_read(copied, answered):
    """Copies of a real study's runs under the name of a third judge, whose scores favour length."""
    study = copied("three")
    for cell in sorted(in_parts(study).glob("sim-fair-*")):
        copy = shutil.copytree(cell, study / "copy")
        with config_of(copy) as config:
            config["judge"]["name"] = "sim-long"
        other = copy.rename(study / f"sim-long-s{config['seed']}-{digest(config)}")
        for part in (other / "rollouts").glob("*.parquet"):
            table = pq.read_table(part)
            pairs = zip(table["truth"].to_pylist(), table["answer"].to_pylist(), strict=True)
            scores = [truth + 0.01 * features(answer or "")["length"] for truth, answer in pairs]
            place = table.column_names.index("judge_score")
            pq.write_table(table.set_column(place, "judge_score", [scores]), part)
    found, said = answered(main, study, "steps=2")
    biases = {judge["arm"]: judge["bias"] for judge in found["judges"]}
    assert biases["sim-long"] == pytest.approx(0.01, abs=1e-9)
    assert [line["method"] for line in found["slopes"]] == ["plain", "moments", "deming", "simex"]
    assert "per unit of measured bias" in said
