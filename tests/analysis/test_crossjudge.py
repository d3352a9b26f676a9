"""The matrix by hand, inflation where it was planted, and behaviours that moved apart."""

import dataclasses
import json
import math
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest

from analysis.crossjudge import (
    agreement,
    agreement_figure,
    figure,
    inflation,
    main,
    matrix,
    step_means,
    substitutions,
)
from analysis.ledger import Run, read_runs
from analysis.replays import with_replays
from judges import replay


def run(cell, judge, truth, shadows, features=None, arm="a"):
    """Two steps of one group of two; scores are given per step."""

    def spread(pair):
        return np.repeat(np.array(pair, float)[:, None], 2, axis=1)

    made = np.zeros((2, 2, 2)) if features is None else np.array(features, float)
    return Run(
        cell=cell, arm=arm, seed=0, done=True, step_P=np.array([1, 2]), reward=spread(judge),
        advantage=spread((0, 0)), truth=spread(truth), judge=spread(judge), features=made,
        names=("length", "tone"), shadows={n: spread(s) for n, s in shadows.items()},
    )  # fmt: skip


RUNS = [
    run("a0", (0.4, 0.9), (0.5, 0.5), {"other": (0.4, 0.5)}),
    run("a1", (0.4, 0.8), (0.5, 0.4), {"other": (0.4, 0.4)}),
]


def test_the_matrix_by_hand():
    table = matrix(RUNS, {"a0": "own", "a1": "own"}).set_index(["cell", "judge"])
    assert table.loc[("a0", "own"), "gain"] == pytest.approx(0.5)
    assert table.loc[("a0", "other"), "gain"] == pytest.approx(0.1)
    assert table.loc[("a1", "truth"), "gain"] == pytest.approx(-0.1)
    assert table["own"].sum() == 2


def test_inflation_is_own_gain_beyond_the_others():
    """.5 - .1 and .4 - 0: .4 in both runs."""
    (found,) = inflation(matrix(RUNS, {"a0": "own", "a1": "own"}))
    assert (found.own, found.others) == (pytest.approx(0.45), pytest.approx(0.05))
    assert (found.inflation, found.runs) == (pytest.approx(0.4), 2)


def test_an_arm_that_nobody_else_looked_at_has_none():
    alone = [dataclasses.replace(RUNS[0], shadows={})]
    (found,) = inflation(matrix(alone, {"a0": "own"}))
    assert math.isnan(found.inflation) and "shadow=[NAME]" in found.note


def test_unscored_steps_are_nan_and_not_zero():
    holed = dataclasses.replace(RUNS[0], judge=np.array([[0.4, np.nan], [np.nan, np.nan]]))
    means = step_means(holed, holed.judge)
    assert means[0] == pytest.approx(0.4) and math.isnan(means[1])


def moved(cell, length, tone, arm="a"):
    """First step: feature values 0 and 2 (SD 1); second step shifted by the SDs given."""
    first = [[0.0, 0.0], [2.0, 2.0]]
    second = [[0.0 + length, 0.0 + tone], [2.0 + length, 2.0 + tone]]
    return run(cell, (0, 0), (0, 0), {}, [first, second], arm)


def test_a_substitution_takes_every_run():
    both = [moved("a0", 1.0, -0.5), moved("a1", 0.5, -0.75)]
    (found,) = substitutions(both)
    assert (found.risen, found.fallen) == ("length", "tone")
    assert (found.up, found.down, found.runs) == (pytest.approx(0.5), pytest.approx(-0.5), 2)
    assert substitutions([*both, moved("a2", 1.0, 0.1)]) == []
    assert substitutions([moved("b0", 1.0, 0.9, "b")]) == []


def test_a_real_study_has_its_shadow_in_the_matrix(small_study):
    runs, _ = read_runs(small_study)
    acting = {one.cell: one.cell.rsplit("-s", 1)[0] for one in runs}
    table = matrix(runs, acting)
    assert set(table["judge"]) == {"sim-fair", "sim-flaky", "sim-verbose", "truth"}
    made = figure(table)
    assert made.axes[0].get_xlabel() == "scored by"
    plt.close(made)


def test_agreement_is_within_groups():
    """Two groups: the other judge has the same order inside them, and a level of its own."""
    own = np.array([[0.1, 0.3], [0.2, 0.4]])
    other = np.array([[0.9, 1.0], [0.0, 0.1]])
    opposed = 1 - own
    made = dataclasses.replace(RUNS[0], judge=own, shadows={"other": other}, truth=opposed)
    table = agreement([made], {"a0": "own"})
    assert table.loc["own", "other"] == pytest.approx(1.0)
    assert table.loc["own", "truth"] == pytest.approx(-1.0)
    assert list(table.columns) == ["own", "other", "truth"]


def test_judges_that_never_met_have_no_agreement():
    alone = dataclasses.replace(RUNS[1], shadows={})
    table = agreement([dataclasses.replace(RUNS[0], shadows={}), alone], {"a0": "x", "a1": "y"})
    assert math.isnan(table.loc["x", "y"])
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
    """A judge with a dose of length is above the truth where answers are long."""
    runs, _ = with_replays(read_runs(replayed)[0], replayed)
    run = next(run for run in runs if "fair" in run.cell)
    dosed = next(scores for name, scores in run.shadows.items() if name.startswith("sim-fair"))
    length = run.features[..., run.names.index("length")]
    longer = length > np.median(length) + 1
    assert (dosed - run.truth)[longer].mean() > (dosed - run.truth)[~longer].mean()


def test_a_replay_of_other_groups_is_left_out_and_said(replayed, tmp_path):
    study = tmp_path / "again"
    shutil.copytree(replayed, study)
    (folder,) = study.glob("replays/sim-structured-*")
    for part in folder.glob("*/rollouts/step-000002.parquet"):
        part.unlink()
    runs, problems = with_replays(read_runs(study)[0], study)
    assert len(problems) == 4 and all("other groups" in line for line in problems)
    assert all("sim-structured" not in run.shadows for run in runs)


def test_a_torn_replay_is_left_out_and_said(replayed, tmp_path):
    study = tmp_path / "again"
    shutil.copytree(replayed, study)
    runs, _ = read_runs(study)
    (torn,) = study.glob(f"replays/sim-structured-*/{runs[0].cell}/rollouts/step-000001.parquet")
    torn.write_bytes(torn.read_bytes()[:100])
    joined, (problem,) = with_replays(runs, study)
    assert runs[0].cell in problem and "cannot be read" in problem
    assert ["sim-structured" in run.shadows for run in joined] == [False, True, True, True]


def test_verdicts_without_identities_are_told_apart_by_name(replayed, tmp_path):
    """As other tools write them: the dosed sim-fair then counts as the sim-fair that trained."""
    import pyarrow.parquet as pq

    study = tmp_path / "again"
    shutil.copytree(replayed, study)
    for part in study.rglob("verdicts/*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(["judge_id"]), part)
    runs, problems = with_replays(read_runs(study)[0], study)
    assert problems == []
    for run in runs:
        new = {"sim-structured"} if "fair" in run.cell else {"sim-structured", "sim-fair"}
        assert set(run.shadows) == new | {"sim-verbose"}


def test_the_command_line(replayed, tmp_path, capsys):
    out = tmp_path / "c.json"
    words = [f"study={replayed.name}", f"runs_dir={replayed.parent}"]
    assert main([*words, f"out={out}", f"figure={tmp_path / 'c.png'}"]) == 0
    found = json.loads(out.read_text())
    assert {line["runs"] for line in found["inflation"]} == {2}
    assert {"sim-structured", "truth"} <= {row["judge"] for row in found["matrix"]}
    assert "Own-judge inflation" in capsys.readouterr().out
    for wrong, said in (
        ("least=much", "is no number"),
        ("least=0", "above 0"),
        ("judge=x", "judge is wrong"),
    ):
        assert main([*words, wrong]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert main(["study=none", f"runs_dir={tmp_path}"]) == 2
    assert "no finished run" in capsys.readouterr().err
