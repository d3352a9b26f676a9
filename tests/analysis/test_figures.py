"""Behaviour as shifts with units, the figures of the report, and the scaffold's schedule."""

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from analysis.display import svg
from analysis.display.figures import NAME, TITLE, broken, looks, row_names
from analysis.drift import estimate as drift
from analysis.drift import figures
from analysis.onset import display as onset_display
from analysis.records.runs import ends, shift
from analysis.report import sections
from analysis.scaffold.__main__ import main
from analysis.scaffold.display import changes, schedule
from study.config.schema import Scaffold
from study.features import FEATURES, unit
from tests.analysis.conftest import THIN


def legend_texts(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def drawn(figure) -> None:
    """Rendering is where a figure with bad limits or labels fails."""
    figure.canvas.draw()


def visible_lines(axes):
    """Without those that only carry the bars of an interval."""
    return [line for line in axes.lines if line.get_marker() != "None"]


def test_learning_has_a_panel_per_arm_with_both_curves_and_bars(evidence):
    figure = figures.learning(drift.learning_curves(evidence.scores))
    drawn(figure)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == ["sim-fair (3 runs)", "sim-flaky (3 runs)", "sim-verbose (3 runs)"]
    assert legend_texts(figure) == ["judge score", "rule truth"]
    for axes in figure.axes:
        assert len(visible_lines(axes)) == 2 and len(axes.collections) == 2
        assert axes.get_xlabel() == "training step"
    assert figure.axes[2].lines[0].get_ydata()[-1] == pytest.approx(0.41 + 0.46)


def test_a_long_name_is_broken_where_a_reader_would():
    arm = "sim-dose, trainer.beta=0.0, correction.without.0=(absent)"
    assert broken("sim-fair") == "sim-fair" and broken("a $b") == r"a \$b"
    assert broken(arm) == "sim-dose, trainer.beta=0.0,\ncorrection.without.0=(absent)"
    labels, high = row_names(["sim-fair", arm, "x" * (2 * NAME)])
    rows = ["sim-dose,", "trainer.beta=0.0,", "correction.without.0=", "(absent)"]
    assert labels == ["sim-fair", "\n".join(rows), "\n".join(["x" * NAME] * 2)]
    assert high == 2.5 and row_names(["sim-fair"])[1] == row_names([])[1] == 1
    assert broken(f"{'y' * TITLE} z") == f"{'y' * TITLE}\nz"
    assert broken(f"{'y' * (TITLE - 2)} z") == f"{'y' * (TITLE - 2)} z"


def test_panels_keep_their_place_beside_long_names(evidence):
    """matplotlib warns where it has none to give, and warnings are errors here."""
    table = evidence.feature_shifts
    long = {arm: f"{arm}, " + "trainer.learning_rate=0.0006, " * 3 for arm in evidence.arms}
    figure = figures.shifts(table.assign(arm=table["arm"].map(long)), long["sim-fair"])
    assert len(svg.panels(figure, "shifts")) == 2
    assert all(axes.get_position().width > 0.1 for axes in figure.axes)


def test_gap_and_behaviour_have_a_line_per_arm_and_a_unit(evidence):
    figure = figures.gap(drift.learning_curves(evidence.scores))
    drawn(figure)
    lines = visible_lines(figure.axes[0])[:3]
    assert len({line.get_color() for line in lines}) == 3
    assert len({line.get_marker() for line in lines}) == 3
    assert "score units" in figure.axes[0].get_ylabel()
    figure = figures.behaviour(drift.learning_curves(evidence.features))
    drawn(figure)
    units = {axes.get_title("left"): axes.get_ylabel() for axes in figure.axes}
    assert units == {"length": "words", "repetition": "share of words"}
    assert legend_texts(figure) == ["sim-fair", "sim-flaky", "sim-verbose"]


def test_shifts_show_differences_and_failures_their_reasons(evidence):
    figure = figures.shifts(evidence.feature_shifts, "sim-fair")
    drawn(figure)
    length = next(axes for axes in figure.axes if axes.get_title("left") == "length")
    assert length.get_xlabel() == "difference in shift (words)"
    points = {tuple(line.get_xdata()) for line in length.lines if len(line.get_xdata()) == 1}
    assert any(x == pytest.approx(10.0) for (x,) in points)
    assert [label.get_text() for label in length.get_yticklabels()] == ["sim-flaky", "sim-verbose"]
    figure = figures.failures(evidence.failures, evidence.failures_by_length)
    drawn(figure)
    bars, lines = figure.axes
    assert max(patch.get_width() for patch in bars.patches) == pytest.approx(25.0)
    assert "%" in bars.get_xlabel() and "%" in lines.get_ylabel() and "words" in lines.get_xlabel()


@pytest.mark.parametrize("options", THIN)
def test_thin_studies_still_draw(gathered, options):
    evidence = gathered(**options)
    curves = drift.learning_curves(evidence.scores)
    drawn(figures.learning(curves))
    drawn(figures.gap(curves))
    drawn(figures.behaviour(drift.learning_curves(evidence.features)))
    if evidence.feature_shifts["diff"].notna().any():
        drawn(figures.shifts(evidence.feature_shifts, str(evidence.base)))
    drawn(figures.failures(evidence.failures, evidence.failures_by_length))


def test_one_run_has_a_line_and_no_bar(gathered):
    figure = figures.learning(drift.learning_curves(gathered(seeds=1).scores))
    drawn(figure)
    assert figure.axes[0].get_title("left") == "sim-fair (1 run, no interval)"
    assert len(visible_lines(figure.axes[2])) == 2
    assert not any(len(bars.get_segments()) for bars in figure.axes[2].collections)


def test_every_arm_of_a_large_study_looks_different():
    arm_looks = looks([f"judge-{k:02d}" for k in range(30)])
    assert len({(look["color"], look["linestyle"]) for look in arm_looks.values()}) == 30


def test_an_arm_has_its_own_marker_where_points_are_runs(evidence):
    """In a legend and in the plane: hollow at the start, full at the end."""
    drawn_path = onset_display.frontier(evidence.runs)
    look = looks(evidence.arms)
    ends = [line for line in drawn_path.axes[0].lines if len(line.get_xdata()) == 1]
    for arm in evidence.arms:
        own = [line for line in ends if line.get_color() == look[arm]["color"]]
        faces = {line.get_markerfacecolor() == "white" for line in own}
        shapes = {line.get_marker() for line in own}
        assert faces == {True, False} and shapes == {look[arm]["marker"]}
    assert legend_texts(drawn_path) == evidence.arms


@pytest.mark.usefixtures("unrendered")
def test_curves_are_made_once_for_all_sections(evidence, monkeypatch):
    made = []
    count = drift.learning_curves
    monkeypatch.setattr(drift, "learning_curves", lambda *given: made.append(1) or count(*given))
    fresh = replace(evidence)
    for write in (sections.front, sections.scores, sections.gap, sections.behaviours):
        write(fresh)
    assert len(made) == 2, "once of the scores, once of the behaviours"


def test_onsets_have_a_row_for_each_run_with_its_interval_and_its_alarm(evidence):
    seen, unseen = evidence.onsets[0], evidence.onsets[1]
    step = replace(seen.onset.step, value=4.0, low=3.0, high=5.0)
    seen = replace(seen, onset=replace(seen.onset, step=step), alarm=2)
    nothing = replace(unseen.onset.step, value=float("inf"))
    unseen = replace(unseen, onset=replace(unseen.onset, step=nothing), alarm=None)
    figure = onset_display.onsets([seen, unseen])
    drawn(figure)
    (axes,) = figure.axes
    assert [tuple(line.get_xdata()) for line in visible_lines(axes)] == [(4.0,), (2,)]
    (bar,) = axes.collections
    assert bar.get_segments()[0].tolist() == [[3.0, 0.0], [5.0, 0.0]]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [f"{each.arm}, seed {each.seed}" for each in (seen, unseen)]


def test_what_moved_furthest_leads_and_the_rest_is_folded(evidence, monkeypatch):
    monkeypatch.setattr(sections, "MOST_BEHAVIOURS", 1)
    text = "".join(sections.behaviours(evidence))
    shown, folded = text.split("<details><summary>More: the behaviours over the steps", 1)
    assert "The table also has 1 more behaviour." in shown
    assert shown.index("length (words)") < shown.index("repetition (share of words)")
    assert "Behaviours of the answers by training step" in folded and "training step" in folded
    assert "Behaviours of the answers by training step" not in shown
    last = "".join(sections.samples(evidence)).split("<details>")
    assert "last step (6)" in last[0] and "first step (1)" in last[1] and "last" not in last[1]
    assert "judge minus truth" in "".join(sections.findings(evidence))


def test_a_shift_is_last_tenth_minus_first_tenth_with_a_unit_or_missing():
    # 20 steps: windows of two; (19 + 20) / 2 - (1 + 2) / 2 = 18
    assert ends(np.arange(1.0, 21.0)) == (1.5, 19.5)
    assert shift(np.arange(1.0, 21.0)) == 18.0
    # 11 steps: a tenth is rounded up to two
    assert shift(np.array([0.0] * 9 + [4.0, 8.0])) == 6.0
    assert math.isnan(shift(np.array([3.0])))
    assert math.isnan(shift(np.array([math.nan, 2.0, 3.0])))
    assert ends(np.array([math.nan, 2.0, 3.0]))[1] == 3.0
    assert unit("length") == "words"
    assert {unit(name) for name in FEATURES} == {"words", "share of words", "per answer"}
    assert unit("op/Custom") == "calls"


LINEAR = Scaffold(name="ruscarl", group="linear", decay="linear")


def test_the_schedule_by_hand_lists_only_steps_that_change():
    """Two steps of three rollouts: shares 1, 1/2, 0 of four criteria, then nothing."""
    table = schedule(LINEAR, 2, 3, 4)
    assert table["shown"].tolist() == [4, 2, 0, 0, 0, 0]
    assert table["ratio"].tolist() == [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]
    assert changes(schedule(Scaffold(name="ruscarl", decay="none"), 5, 2, 3)).index.tolist() == [1]
    falling = changes(schedule(LINEAR, 5, 2, 4))
    assert falling.index.tolist() == [1, 2, 3, 4, 5] and falling[0].tolist() == [4, 3, 2, 1, 0]


def test_the_figure_is_drawn(tmp_path, capsys):
    out, before = tmp_path / "new" / "scaffold.png", plt.get_fignums()
    assert main([f"out={out}", "steps=12", "group_size=4", "criteria=3", "scaffold.x0=0.5"]) == 0
    assert out.stat().st_size > 5000 and plt.get_fignums() == before
    assert "12" not in capsys.readouterr().out.split("\n")[0]
