"""Two studies side by side: planted differences of config and shift; one forecast by another."""

import json
import math
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.compare import display as printed
from analysis.compare.__main__ import main
from analysis.compare.estimate import CrossForecast, ShiftPair
from analysis.statistics.estimate import Estimate
from analysis.statistics.prediction import Prediction
from study.cell.study_file import write_study as describe
from tests.analysis.conftest import arms_of_presets, config_of, write_study
from tests.recording import compare, of_document


def two_studies(folder, steps=(6, 9), seeds=(3, 2)):
    """Two studies; the second has another judge, longer runs, fewer seeds and another setting."""
    judges = ("sim-fair", "sim-verbose"), ("sim-verbose", "sim-flaky")
    settings = None, {"on_failure": "zero"}
    for name, *given in zip("ab", judges, seeds, settings, strict=True):
        write_study(folder / name, *given, steps=steps["ab".index(name)])
    return folder


@pytest.fixture
def pair(tmp_path):
    """Two such studies of few records."""
    return two_studies(tmp_path, steps=(2, 3), seeds=(2, 1))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """What the command writes and prints of the two."""
    folder = two_studies(tmp_path_factory.mktemp("pair"))
    with redirect_stdout(StringIO()) as printed_text:
        assert main(words(folder, "forecast=false")) == 0
    return told(folder), printed_text.getvalue()


def words(runs_dir, *more):
    return ["study=a,b", f"runs_dir={runs_dir}", f"out={runs_dir / 'out.json'}", *more]


def told(runs_dir):
    return json.loads((runs_dir / "out.json").read_text())


def test_what_differs_in_config_is_told(compared):
    result, said = compared
    assert result["arms"] == {"both": ["sim-verbose"], "only": [["sim-fair"], ["sim-flaky"]]}
    rows = {(row["key"], row["arm"]): row["values"] for row in result["config"]}
    assert rows == {
        ("trainer.steps", ""): [[6], [9]],
        ("seed", ""): [[0, 1, 2], [0, 1]],
        ("judge.on_failure", "sim-verbose"): [["unscored"], ["zero"]],
    }
    assert "trainer.steps     all          6         9" in said
    assert "Arms in both: sim-verbose (3 and 2 runs)" in said
    assert "Arms in a alone: sim-fair (3 runs)" in said
    assert "Arms in b alone: sim-flaky (2 runs)" in said


def test_what_is_printed_and_written_is_what_it_was(compared):
    result, printed_text = compared
    compare("compare", [*printed_text.splitlines(), *of_document(result)])


def test_shifts_stand_side_by_side_and_differ_by_seed(compared):
    """sim-verbose pays .01 a word, of which its runs add 8 + seed a step: 5 steps in a, 8 in b."""
    result, said = compared
    rows = {(row["metric"], row["arm"]): row for row in result["shifts"]}
    row = rows["judge_score", "sim-verbose"]
    assert [each["value"] for each in row["shift"]] == pytest.approx([0.45, 0.68])
    assert [each["n"] for each in row["shift"]] == [3, 2]
    assert (row["diff"]["value"], row["diff"]["n"]) == (pytest.approx((0.24 + 0.27) / 2), 2)
    assert row["diff"]["low"] < 0.24 and row["diff"]["high"] > 0.27
    alone = rows["judge_score", "sim-fair"]
    assert alone["shift"][1]["value"] is None and alone["diff"]["value"] is None
    said = said.splitlines()
    line = next(each for each in said if each.startswith("judge score") and "verbose" in each)
    assert "+0.45 [" in line and "+0.68 [" in line and "+0.255 [" in line
    assert "b less a over the seeds that both have" in " ".join(said)
    (beyond,) = [each for each in said if each.startswith("Differences whose interval")]
    named = beyond.removesuffix(".").partition("): ")[2].split("; ")
    assert "judge score of sim-verbose +0.255" in named
    assert not any(each.startswith("truth of") for each in named)


def test_what_groups_do_not_tell_widens_the_interval_of_the_difference(tmp_path):
    """Both seeds of b differ from those of a by the same: its groups alone say how sure that is."""
    for name in ("a", "b"):
        write_study(tmp_path / name, ["sim-fair"], seeds=2)
    off = np.random.default_rng(0).normal(0, 0.1, 16)
    for part in (tmp_path / "b").glob("*/rollouts/step-000006.parquet"):
        table = pq.read_table(part)
        place = table.schema.get_field_index("judge_score")
        scores = pa.array(table["judge_score"].to_numpy() + off)
        pq.write_table(table.set_column(place, table.schema.field(place), scores), part)
    assert main(words(tmp_path, "forecast=false")) == 0
    rows = {(row["metric"], row["arm"]): row["diff"] for row in told(tmp_path)["shifts"]}
    row = rows["judge_score", "sim-fair"]
    assert row["value"] == pytest.approx(off.mean()) and row["n"] == 2
    by_group = off.reshape(4, 4).mean(axis=1).std(ddof=1) / 2  # standard error in each pair
    assert row["high"] - row["low"] > 2 * 1.96 * by_group / 2**0.5
    assert rows["truth", "sim-fair"]["high"] == rows["truth", "sim-fair"]["low"] == 0


def test_an_arm_has_the_name_that_its_records_have(pair, capsys):
    """A cell whose config is of another version still tells the settings of one judge apart."""
    with config_of(next((pair / "a").glob("sim-verbose-s0-*"))) as config:
        config["judge"]["on_failure"] = "zero"
        config["policy"]["unheard_of"] = {"x": 1}
    assert main(words(pair, "forecast=false")) == 0
    result = told(pair)
    named = {row["arm"] for row in result["shifts"] if row["shift"][0]["n"]}
    (verbose,) = (arm for arm in named if arm.startswith("sim-verbose"))
    assert verbose == "sim-verbose, on_failure=unscored"
    assert result["arms"]["only"][0] == ["sim-fair", verbose]
    assert "is left out" in capsys.readouterr().out


@pytest.mark.parametrize("lost", ["low", "high", "value"])
def test_a_forecast_without_an_interval_is_not_called_wrong(lost):
    estimate = Estimate(1.0, 0.5, 1.5, 2)
    nothing = replace(estimate, **{lost: math.nan})
    forecast, trained = (estimate, nothing) if lost == "value" else (nothing, estimate)
    row = Prediction("", "sim-fair", "length", observed=trained, predicted=forecast)
    result = CrossForecast("a", "b", shifts=[row])
    assert printed._forecast(result)[-1].split()[-1] not in ("yes", "no")
    whole = replace(result, shifts=[replace(row, predicted=estimate, observed=estimate)])
    assert printed._forecast(whole)[-1].endswith("yes")
    at_the_end = replace(estimate, value=1.5 + 1e-12)
    whole = replace(result, shifts=[replace(row, predicted=estimate, observed=at_the_end)])
    assert printed._forecast(whole)[-1].endswith("yes"), "a float's noise is no miss"


def test_a_study_says_which_of_its_looks_this_is(pair, capsys):
    describe(pair / "a", {"factors": ["judge", "seed"], "looks": [2, 4]})
    assert main(words(pair, "forecast=false")) == 0
    said = capsys.readouterr().out
    assert "a: This is look 1 of 2, declared at 2, 4 seeds" in said and "\nb: " not in said
    first, second = told(pair)["looks"]
    assert first in said and second == ""


def test_the_same_study_twice_differs_in_nothing(tmp_path, capsys):
    for name in ("a", "b"):
        write_study(tmp_path / name, seeds=2, steps=2)
    assert main(words(tmp_path, "forecast=false")) == 0
    result = told(tmp_path)
    assert result["config"] == [] and "No key of the config differs" in capsys.readouterr().out
    assert {row["diff"]["value"] for row in result["shifts"]} == {0.0}


def test_differences_are_named_beside_what_chance_gives():
    def row(arm, low, high):
        return ShiftPair("length", arm, [], Estimate((low + high) / 2, low, high, 3))

    shifts = [row(f"arm{k}", 1.0, 2.0) for k in range(8)] + [row("no", -1.0, 1.0)] * 52
    (said,) = printed._clear_differences(shifts)
    assert "leaves out 0: 8 of 60 (about 3 by chance alone): length of arm0 +1.5;" in said
    assert said.endswith("length of arm5 +1.5; 2 more.")
    assert printed._clear_differences(shifts[2:])[0].endswith("length of arm7 +1.5.")
    assert printed._clear_differences(shifts[8:]) == [
        "Differences whose interval leaves out 0: 0 of 52."
    ]
    assert printed._clear_differences([row("one", math.nan, math.nan)]) == []


def test_each_is_forecast_by_the_runs_of_the_other(small_study, tmp_path, capsys):
    """Five arms of one can forecast the two of the other; two arms are too few to be fitted on."""
    names = ["sim-fair", "sim-verbose", "sim-structured", "sim-strict", "sim-noisy"]
    shutil.copytree(small_study, tmp_path / "b")
    arms_of_presets(tmp_path / "a", small_study, names, seeds=1)
    assert main(words(tmp_path)) == 0
    of_b, of_a = told(tmp_path)["forecasts"]
    assert (of_a["of"], of_a["by"]) == ("a", "b") and "2 arms" in of_a["none"]
    assert (of_b["of"], of_b["by"], of_b["in_both"]) == ("b", "a", ["sim-fair"])
    lengths = {row["arm"]: row for row in of_b["shifts"] if row["metric"] == "length"}
    assert set(lengths) == {"sim-fair", "sim-flaky"}
    for row in lengths.values():
        each = row["forecast"]
        assert each["low"] - 1e-9 <= each["value"] <= each["high"] and row["trained"]["n"] == 2
    said = capsys.readouterr().out
    assert "No forecast of a by b: b has finished runs of 2 arms" in said
    assert "b forecast by the runs of a" in said and "lie in the interval" in said
    assert not list(tmp_path.glob("*/forecast.json"))


def test_a_study_without_cells_is_nothing_to_compare(pair, capsys):
    (pair / "empty").mkdir()
    assert main(["study=a,empty", f"runs_dir={pair}", "forecast=false"]) == 2
    assert "no readable cell to compare" in capsys.readouterr().err


def test_what_others_wrote_is_harmless(pair, capsys):
    with config_of(next((pair / "a").glob("sim-fair-s0-*"))) as config:
        config["policy"]["family"] = "\x1b[2Jred"
    assert main(words(pair, "forecast=false")) == 0
    assert "\x1b" not in capsys.readouterr().out
