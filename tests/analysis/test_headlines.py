"""One sentence per judge: what it taught, what that cost in truth, and how sure both are."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.display.clipping import cut, cut_difference
from analysis.display.figures import looks
from analysis.display.markup import number
from analysis.drift import estimate as drift
from analysis.report import figures, overview
from analysis.report.evidence import Evidence
from analysis.report.headlines import headlines
from analysis.report.tables import row_of, shifts_table


def shifted(evidence: Evidence, by_run: dict[tuple[str, str], list[float]]) -> Evidence:
    """The evidence where each arm's three runs moved a measure by these amounts, all from .5."""
    columns = dict.fromkeys(drift.SHIFTS, np.nan)
    rows = [
        columns | {"arm": arm, "metric": metric, "seed": seed, "cell": f"{arm}{seed}"}
        | {"first": 0.5, "last": 0.5 + moved, "shift": moved, "tails": []}
        for (arm, metric), moves in by_run.items()
        for seed, moved in enumerate(moves)
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    scores = table["metric"].isin(drift.SCORES)
    return replace(
        evidence,
        score_shifts=drift.shift_table(table[scores], "sim-fair"),
        feature_shifts=drift.shift_table(table[~scores], "sim-fair"),
        spread={"length": 10.0, "hedges": 0.5},
        same={},
    )


STILL = [0.0, 0.01, -0.01]
FAIR = {("sim-fair", name): STILL for name in ("judge_score", "truth", "gap", "length", "hedges")}


@pytest.fixture
def two(evidence: Evidence) -> Evidence:
    """The fair judge, and one that taught 20 words for .1 of truth."""
    moved = {"judge_score": [0.2, 0.21, 0.19], "truth": [-0.1, -0.09, -0.11], "hedges": STILL}
    moved |= {"gap": [0.3, 0.31, 0.29], "length": [20.0, 20.02, 19.98]}
    by_run = FAIR | {("sim-verbose", name): moves for name, moves in moved.items()}
    table = evidence.records.table
    records = replace(evidence.records, table=table[table["arm"].isin(["sim-fair", "sim-verbose"])])
    return shifted(replace(evidence, records=records), by_run)


def test_a_sure_judge_is_told_with_what_it_cost(two):
    told = headlines(two)
    assert list(told) == ["sim-fair", "sim-verbose"]
    said = told["sim-verbose"]
    assert said.startswith("sim-verbose taught longer answers (+20 words [")
    assert "beyond sim-fair, +2 SD), which is sure (Holm p <.001 over 3 pairs of runs; " in said
    assert "; intervals allow for picking 1 of 2 behaviours)" in said
    assert "it cost 0.1 of the truth [" in said and "ran 0.3 further ahead of the truth" in said
    assert "hedging" not in said


def test_the_base_is_told_by_its_own_shifts(two):
    said = headlines(two)["sim-fair"]
    assert "which the others are compared with" in said
    assert "unclear change in truth (0 [-0.0248, 0.0248])" in said


def test_what_chance_may_have_done_is_not_called_taught(two):
    noisy = FAIR | {
        ("sim-verbose", "judge_score"): STILL,
        ("sim-verbose", "truth"): [-0.3, 0.2, 0.1],
        ("sim-verbose", "length"): [30.0, -10.0, 2.0],
        ("sim-verbose", "hedges"): STILL,
    }
    said = headlines(shifted(two, noisy))["sim-verbose"]
    assert "had no clear effect on behaviour; largest:" in said
    assert "it cost" not in said and "sure" not in said
    assert "its score cannot be set beside the truth" in said


def test_one_pair_is_never_sure(gathered):
    said = headlines(gathered(seeds=1))["sim-verbose"]
    assert (
        "may have taught longer answers" in said
        and "from 1 pair of runs: chance cannot be ruled out" in said
    )
    assert "no interval" in said and "sure" not in said


def test_a_study_without_truth_or_runs_has_no_invented_cost(gathered):
    blind = headlines(gathered(truth=False, seeds=2))
    assert all("what it cost in truth is not known" in said for said in blind.values())
    empty = headlines(gathered(steps=0, state="new"))
    assert all(said.endswith("has too little on record to say what it taught.")
               for said in empty.values())  # fmt: skip


def test_shifts_have_one_unit_and_intervals_end_where_nothing_can_be(two):
    table = overview.standardised(two).set_index(["arm", "metric"])
    assert table.loc["sim-verbose", "length"]["shift"] == pytest.approx(2.0)
    start = {"first": 0.5, "shift": -0.4, "low": -0.9, "high": 0.1}
    assert cut({"metric": "hedges", **start}) == (-0.5, 0.1)
    assert cut({"metric": "repetition", **start, "high": 0.9}) == (-0.5, 0.5)
    assert cut({"metric": "gap", **start}) == (-0.9, 0.1), "a gap may be below 0"
    assert cut({"metric": "truth", **start, "high": 0.7}) == (-0.5, 0.5)
    assert cut({"metric": "judge_score", **start, "first": 7.0}) == (-0.9, 0.1), "another scale"
    low, high = cut({"metric": "length", **start, "low": np.nan, "high": np.nan})
    assert np.isnan(low) and np.isnan(high)


def test_what_an_arm_did_beyond_the_base_ends_where_nothing_can_be():
    """An arm that starts at .5 can lose .5, and be 0.5 + .3 below a base that rose by .3."""
    base = {"metric": "hedges", "first": 0.5, "shift": 0.1, "low": -0.2, "high": 0.3}
    row = {"metric": "hedges", "first": 0.5, "shift": -0.3}
    row |= {"diff": -0.4, "diff_low": -2.0, "diff_high": 1.2}
    assert cut_difference(row, base) == (-0.8, 1.2), "nothing is too much of a count"
    share = {"metric": "repetition"}
    assert cut_difference(row | share, base | share) == (-0.8, 0.7)
    truth = {"metric": "truth"}
    assert cut_difference(row | truth, base | truth | {"low": -9.0, "high": 9.0}) == (-1.0, 1.0)
    assert cut_difference(row, base | {"low": np.nan, "high": np.nan}) == (-0.6, 1.2)
    assert cut_difference(row, None) == (-2.0, 1.2)
    assert cut_difference(row | {"diff": -0.9}, base) == (-0.9, 1.2), "the difference itself stays"


def test_sentence_table_and_figure_cut_a_difference_alike(two):
    """Three hedges in ten answers cannot become fewer than none."""
    moves = {**FAIR, ("sim-fair", "hedges"): [0.0, 0.02, -0.02]}
    moves |= {("sim-verbose", name): STILL for name in ("judge_score", "truth", "gap", "length")}
    told = shifted(two, moves | {("sim-verbose", "hedges"): [-0.5, -0.1, -0.3]})
    row = row_of(told.feature_shifts, "sim-verbose", "hedges")
    base = row_of(told.feature_shifts, "sim-fair", "hedges")
    low, high = cut_difference(row, base)
    assert row["diff_low"] < low == pytest.approx(-0.5 - base["high"])
    said = f"[{number(low)}, {number(high)}]"
    table = shifts_table(told.feature_shifts, "sim-fair").set_index(["measure", "arm"])
    hedges = table.loc[("hedges (per answer)", "sim-verbose")]
    assert hedges["vs sim-fair [95 %]"].endswith(said)
    drawn = figures.shifts(told.feature_shifts, "sim-fair")
    (axes,) = (each for each in drawn.axes if each.get_title("left") == "hedges")
    (bar,) = (each.get_segments()[0] for each in axes.collections)
    assert bar[:, 0] == pytest.approx([low, high])
    wide = headlines(told)["sim-verbose"]
    assert f"[{number(low)}, " in wide and "fewer" not in wide


def test_the_pictures_show_the_same_arms_in_the_same_look(evidence, monkeypatch):
    arms, look = overview.shown_arms(evidence), looks(evidence.arms)
    assert arms == evidence.arms == ["sim-fair", "sim-flaky", "sim-verbose"]
    monkeypatch.setattr(overview, "MOST_ARMS", 2)
    assert overview.shown_arms(evidence) == ["sim-fair", "sim-verbose"], "the largest gap"
    shifts = overview.shifts(overview.standardised(evidence), arms, look)
    for drawn in (shifts, overview.curve(drift.learning_curves(evidence.scores), arms, look)):
        drawn.canvas.draw()
        colours = {line.get_color() for line in drawn.axes[0].lines}
        assert {look[arm]["color"] for arm in arms} <= colours
    names = [label.get_text() for label in shifts.axes[0].get_yticklabels()]
    assert names[:2] == ["rule truth", "judge score"] and "length" in names
