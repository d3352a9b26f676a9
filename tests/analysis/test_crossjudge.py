"""The matrix by hand, inflation where it was planted, agreement run by run, and replays."""

import dataclasses
import math
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from analysis.crossjudge.__main__ import main
from analysis.crossjudge.estimate import (
    COLUMNS,
    agreement,
    agreement_figure,
    figure,
    inflation,
    inflation_rows,
    matrix,
)
from analysis.records.replays import with_replays
from analysis.records.runs import read_runs
from judges import replay
from tests.analysis.conftest import made_run
from tests.conftest import in_parts

TWO_STEPS = {"step_P": np.array([1, 2]), "config": {"judge.name": "own"}}


def run(cell, judge, truth, shadows):
    """Two steps of one group of two; scores are given per step."""

    def spread(pair):
        return np.repeat(np.array(pair, float)[:, None], 2, axis=1)

    others = {name: spread(pair) for name, pair in shadows.items()}
    return made_run(spread(judge), spread(truth), cell=cell, shadows=others, **TWO_STEPS)


RUNS = [
    run("a0", (0.4, 0.9), (0.5, 0.5), {"other": (0.4, 0.5)}),
    run("a1", (0.4, 0.8), (0.5, 0.4), {"other": (0.4, 0.4)}),
]


def test_the_matrix_by_hand():
    table = matrix(RUNS).set_index(["cell", "judge"])
    assert table.loc[("a0", "own"), "gain"] == pytest.approx(0.5)
    assert table.loc[("a0", "other"), "gain"] == pytest.approx(0.1)
    assert table.loc[("a1", "truth"), "gain"] == pytest.approx(-0.1)
    assert table["own"].sum() == 2
    (found,) = inflation(matrix(RUNS))  # .5 - .1 and .4 - 0: .4 in both runs
    assert (found.own, found.others) == (pytest.approx(0.45), pytest.approx(0.05))
    assert (found.inflation.value, found.runs) == (pytest.approx(0.4), 2)


def test_a_judge_that_fails_on_bad_answers_gains_nothing_by_it():
    """Both say the same; the other scored no bad answer, and its mean over its own falls by .3."""
    scores = np.array([[0.2, 0.2, 0.8, 0.8], [0.2, 0.5, 0.5, 0.8]])
    other = np.array([[math.nan, math.nan, 0.8, 0.8], [math.nan, 0.5, 0.5, math.nan]])
    one = made_run(scores, scores, shadows={"other": other}, **TWO_STEPS)
    table = matrix([one]).set_index("judge")
    assert table.loc["own", "gain"] == pytest.approx(0.0)
    assert table.loc["other", "gain"] == pytest.approx(-0.3)
    assert table.loc["other", "own_gain"] == pytest.approx(-0.3)
    assert table.loc["other", "common"] == 0.5
    (found,) = inflation(table.reset_index())
    assert (found.inflation.value, found.own) == (pytest.approx(0.0), pytest.approx(-0.3))
    assert found.beyond_truth.value == pytest.approx(0.0)


def gains(own, other, truth, seeds=3):
    """Runs whose means move by the gains given, a little apart from seed to seed."""
    return [
        run(f"a{k}", (0.1, 0.1 + own + k / 100), (0.1, 0.1 + truth), {"other": (0.1, 0.1 + other)})
        for k in range(seeds)
    ]


@pytest.mark.parametrize(
    "own, other, truth, reading",
    [
        (0.4, 0.1, 0.0, "inflated: beyond the others and beyond the truth"),
        (0.4, 0.1, 0.41, "beyond the others, but not beyond the truth"),
        (0.1, 0.4, 0.0, "no gain beyond the others is seen"),
        (0.4, 0.1, math.nan, "beyond the others; no truth to tell inflation from improvement"),
        (0.4, math.nan, 0.0, "beyond the truth; no other judge to compare with"),
    ],
)
def test_a_gain_that_the_truth_shares_is_no_inflation(own, other, truth, reading):
    (found,) = inflation(matrix(gains(own, other, truth)))
    assert found.reading == reading
    assert found.inflation.value == pytest.approx(own + 0.01 - other, nan_ok=True)
    assert found.beyond_truth.value == pytest.approx(own + 0.01 - truth, nan_ok=True)
    # runs at -.01, 0 and +.01 of their mean: SD .01, t(2) 4.3027
    half = 4.302653 * 0.01 / 3**0.5 + 0 * truth
    assert found.beyond_truth.value - found.beyond_truth.low == pytest.approx(half, nan_ok=True)


def test_what_nobody_judged_or_no_step_tells_is_drawn_as_not_known():
    (found,) = inflation(matrix(RUNS))
    told = {*COLUMNS, "arm", "low", "high", "truth_low", "truth_high", "runs", "note"}
    assert set(inflation_rows([found])[0]) == told
    (found,) = inflation(matrix([dataclasses.replace(RUNS[0], shadows={})]))
    assert math.isnan(found.inflation.value) and "shadow=[NAME]" in found.note
    made = figure(matrix([RUNS[0].at(1)]))
    assert {text.get_text() for text in made.axes[0].texts} == {"not known"}
    assert [label.get_text() for label in made.axes[0].get_yticklabels()] == ["a"]
    assert made.axes[0].get_xlabel() == "scored by"
    plt.close(made)


def between(table, one, other):
    """The row of two judges."""
    return table.set_index(["judge", "other"]).loc[(one, other)]


def test_agreement_is_within_groups_over_rollouts_that_both_scored():
    """Two groups: the other judge has the same order inside them, and a level of its own."""
    own = np.array([[0.1, 0.3], [0.2, 0.4]])
    other = np.array([[0.9, 1.0], [0.0, 0.1]])
    opposed = 1 - own
    made = dataclasses.replace(RUNS[0], judge=own, shadows={"other": other}, truth=opposed)
    table = agreement([made])
    assert between(table, "own", "other")["mean"] == pytest.approx(1.0)
    assert between(table, "own", "truth")["mean"] == pytest.approx(-1.0)
    assert list(dict.fromkeys(table["judge"])) == ["own", "other", "truth"]
    # Where the second judge failed the first stands alone: its mean is taken without it.
    own = np.array([[0.0, 1.0, 9.0], [0.5, 0.5, 3.0]])
    other = np.array([[0.0, 1.0, np.nan], [0.2, 0.9, np.nan]])
    made = dataclasses.replace(RUNS[0], judge=own, shadows={"other": other}, truth=own)
    found = between(agreement([made]), "own", "other")
    # (-.5, .5, 0, 0) against (-.5, .5, -.35, .35)
    assert found["mean"] == pytest.approx(0.5 / (0.5 * (0.5 + 2 * 0.35**2)) ** 0.5)


def test_agreement_is_a_mean_over_runs():
    """Correlations of 1, 0 and .5 by hand: mean .5, SD .5, half t(2) .5 / sqrt 3; pooled it is not.

    Groups of three about 0: (-1, 0, 1) against itself, (1, -2, 1) and (0, -1, 1).
    """
    base, nothing = np.array([[-1.0, 0.0, 1.0]]), np.full((1, 3), np.nan)
    first = dataclasses.replace(RUNS[0], truth=nothing, step_P=np.array([1]))
    others = ((base, 1), (np.array([[1.0, -2.0, 1.0]]), 9), (np.array([[0.0, -1.0, 1.0]]), 1))
    scores = [{"judge": base * size, "shadows": {"other": other * size}} for other, size in others]
    runs = [dataclasses.replace(first, cell=str(k), **said) for k, said in enumerate(scores)]
    table = agreement(runs)
    found = between(table, "own", "other")
    assert (found["mean"], found["n"]) == (pytest.approx(0.5), 3)
    assert found["high"] - found["mean"] == pytest.approx(4.302653 * 0.5 / 3**0.5)
    assert math.isnan(between(table, "own", "truth")["mean"])


def test_judges_that_never_met_have_no_agreement():
    alone = [
        dataclasses.replace(made, shadows={}, config={"judge.name": name})
        for made, name in zip(RUNS, "xy", strict=True)
    ]
    table = agreement(alone)
    assert math.isnan(between(table, "x", "y")["mean"]) and between(table, "x", "y")["n"] == 0
    made = agreement_figure(table)
    assert "not known" in {text.get_text() for text in made.axes[0].texts}
    plt.close(made)


@pytest.fixture(scope="module")
def replayed(small_study, tmp_path_factory):
    """A copy of a real study whose rollouts a judge scored that never looked on, and its own."""
    runs_dir = tmp_path_factory.mktemp("replayed")
    shutil.copytree(small_study, runs_dir / "again")
    words = ["study=again", f"runs_dir={runs_dir}"]
    assert replay.main([*words, "judge=sim-structured"]) == 0
    assert replay.main([*words, "out=own", "on_failure=zero"]) == 0
    assert replay.main([*words, "judge=sim-fair", "+judge.simulated.doses.length=0.3"]) == 0
    return runs_dir / "again"


def test_replays_join_the_judges_that_looked_on(replayed):
    runs, _ = read_runs(replayed)
    joined, problems = with_replays(runs, replayed)
    assert problems == []
    for before, run in zip(runs, joined, strict=True):
        new = set(run.shadows) - set(before.shadows)
        # the run's own judge under another failure policy says nothing new; the dosed one does
        assert "sim-structured" in new and len(new) == 2
        dosed = (new - {"sim-structured"}).pop()
        assert dosed == "sim-fair" if "flaky" in run.cell else dosed.startswith("sim-fair-")
        assert np.isfinite(run.shadows["sim-structured"]).all()


def test_replayed_scores_land_on_their_own_rollouts(replayed):
    runs, _ = with_replays(read_runs(replayed)[0], replayed)
    run = next(run for run in runs if "fair" in run.cell)
    name = next(name for name in run.shadows if name.startswith("sim-fair-"))
    rows = ds.dataset(replayed / "replays" / name / run.cell / "rollouts", format="parquet")
    recorded = sorted(rows.to_table().to_pylist(), key=lambda row: row["rollout_id"])
    scores = [row["judge_score"] for row in recorded]
    assert len(set(scores)) > 1
    np.testing.assert_array_equal(run.shadows[name].ravel(), scores)


def test_a_replay_of_other_groups_is_left_out_and_said(replayed, tmp_path):
    study = shutil.copytree(replayed, tmp_path / "again")
    for part in study.glob("replays/sim-structured-*/*/rollouts/step-000002.parquet"):
        part.unlink()
    runs, problems = with_replays(read_runs(study)[0], study)
    assert len(problems) == 4 and all("other groups" in line for line in problems)
    assert all("sim-structured" not in run.shadows for run in runs)


def test_a_torn_replay_is_left_out_and_said(replayed, tmp_path):
    study = shutil.copytree(replayed, tmp_path / "again")
    runs, _ = read_runs(study)
    (torn,) = study.glob(f"replays/sim-structured-*/{runs[0].cell}/rollouts/step-000001.parquet")
    torn.write_bytes(torn.read_bytes()[:100])
    joined, (problem,) = with_replays(runs, study)
    assert runs[0].cell in problem and "cannot be read" in problem
    assert ["sim-structured" in run.shadows for run in joined] == [False, True, True, True]


def test_verdicts_without_identities_are_told_apart_by_name(replayed, tmp_path):
    """As other tools write them: the dosed sim-fair then counts as the sim-fair that trained."""
    study = shutil.copytree(replayed, tmp_path / "again")
    for part in in_parts(study).rglob("verdicts/*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(["judge_id"]), part)
    runs, problems = with_replays(read_runs(study)[0], study)
    assert problems == []
    for run in runs:
        new = {"sim-structured"} if "fair" in run.cell else {"sim-structured", "sim-fair"}
        assert set(run.shadows) == new | {"sim-verbose"}


def test_the_command_line(replayed, tmp_path, capsys, answered):
    found, printed = answered(main, replayed, f"figure={tmp_path / 'c.png'}")
    assert {line["runs"] for line in found["inflation"]} == {2}
    trained_or_shadow = {"sim-fair", "sim-flaky", "sim-verbose"}
    judges = {row["judge"] for row in found["matrix"]}
    assert trained_or_shadow | {"sim-structured", "truth"} <= judges
    assert {line["n"] for line in found["agreement"]} <= {0, 1, 2, 3, 4}
    assert "own - truth on those" in printed and "no arm has 3 seeds in common" in printed
    assert main([f"study={replayed.name}", f"runs_dir={replayed.parent}", f"out={tmp_path}"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert main(["study=none", f"runs_dir={tmp_path}"]) == 2
    assert "no finished run" in capsys.readouterr().err
