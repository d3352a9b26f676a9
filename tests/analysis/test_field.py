"""The field's tables: each estimator against other people's formulas, and the tables of a study."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import contingency, linregress

from analysis.display.markup import MISSING
from analysis.field import __main__ as command
from analysis.field import estimate
from analysis.field.display import tables
from analysis.field.estimate import Field
from analysis.field.shortcut import entanglement, growth, of_run, onset_time
from analysis.frozen.effects import effects_of
from analysis.onset.estimate import Line, line, own_line
from analysis.records.runs import Run, read_runs
from analysis.report.sections import SECTIONS, field
from analysis.statistics.intervals import paired_prompts
from analysis.statistics.power import smallest_effect
from study.verdict import THRESHOLD
from tests.analysis.conftest import clustered, made_run

WEEKS = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
RELAPSED = [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
"""Freireich's 21 patients under 6-MP, the textbook example of a censored sample (1963)."""


def test_the_textbook_sample_has_its_median_and_what_was_not_looked_for_is_not_censored():
    onset = np.where(np.array(RELAPSED) == 1, WEEKS, np.nan)
    told = onset_time(onset, WEEKS, horizon=35)
    assert (told.median.value, told.median.low) == (23, 13) and math.isinf(told.median.high)
    assert told.restricted.value == pytest.approx(23.287, abs=1e-3)
    assert (told.runs, told.seen) == (21, 9)
    nan = np.nan
    known = onset_time([5, nan, 9], [40, 40, 40])
    assert onset_time([5, nan, nan, 9], [40, 40, nan, 40]) == known and known.runs == 3
    none = onset_time([nan, nan], [nan, nan], horizon=40)
    assert (none.runs, none.seen, none.horizon) == (0, 0, 40)
    assert math.isnan(none.median.value) and math.isnan(none.restricted.value)
    short = onset_time([nan, nan], [20, 10], horizon=40)
    assert (short.followed, short.horizon) == (20, 40)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=9))
def test_without_censoring_it_is_the_mean_of_the_onsets(onsets):
    told = onset_time(onsets, [40] * len(onsets))
    assert told.restricted.value == pytest.approx(np.mean(onsets))
    assert told.restricted.low <= told.restricted.value + 1e-9 <= told.restricted.high + 2e-9
    assert told.median.value == np.median(onsets)
    sooner = onset_time(onsets, [40] * len(onsets), horizon=20)
    assert sooner.restricted.value == pytest.approx(np.minimum(onsets, 20).mean())


def test_runs_without_an_onset_are_censored_and_not_taken_for_late():
    none = onset_time([np.nan] * 4, [40] * 4)
    assert math.isnan(none.median.value) and "no run" in none.median.note
    assert none.restricted.value == 40 and 15 < none.restricted.low < none.restricted.high == 40
    few = onset_time([5, np.nan, np.nan], [40, 40, 40])
    assert math.isnan(few.median.value) and few.seen == 1
    ended = onset_time([5, np.nan, 9], [40, 20, 40])
    assert math.isnan(ended.restricted.value) and "step 40" in ended.restricted.note
    early = onset_time([5, np.nan, 9, np.nan], [40, 3, 40, 40])
    late = onset_time([5, np.nan, 9, np.nan], [40, 40, 40, 40])
    assert early.restricted.value < late.restricted.value
    assert math.isnan(onset_time([], []).restricted.value)
    with pytest.raises(ValueError, match="after its run's last step"):
        onset_time([41], [40])


def test_pairs_of_prompts_have_the_error_of_a_clustered_regression_or_none():
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 12, 50)
    base = rng.normal(0, 1, 12)[prompt] + rng.normal(0, 0.3, 50)
    treated = base + 0.2 + rng.normal(0, 0.4, 12)[prompt] + rng.normal(0, 0.3, 50)
    told = paired_prompts(treated, base, [f"p{number}" for number in prompt])
    fit = clustered(treated - base, prompt)
    assert told.value == pytest.approx(fit.params[0]) and told.se == pytest.approx(fit.bse[0])
    assert (told.low, told.high) == pytest.approx(fit.conf_int()[0])
    assert told.n == 12 and told.unpaired_se > told.se
    assert told.visible == pytest.approx(smallest_effect(12) * told.se * 12**0.5)
    told = paired_prompts(np.array([1.0, np.nan, 0.5]), np.array([0.0, 1.0, 0.0]), [1, 2, 3])
    assert told.value == 0.75 and told.n == 2 and "1 of 3 pairs" in told.note
    alone = paired_prompts(np.array([1.0, 0.0]), np.zeros(2), [7, 7])
    assert alone.value == 0.5 and math.isnan(alone.low) and "one prompt" in alone.note
    assert math.isnan(paired_prompts(np.array([np.nan]), np.zeros(1), [1]).value)
    shown = np.array([[True, False], [False, True]])
    assert math.isnan(entanglement(shown, np.ones((2, 2))).value)
    assert math.isnan(entanglement(np.zeros((2, 2), dtype=bool), np.eye(2)).value)
    assert math.isnan(entanglement(shown, np.full((2, 2), np.nan)).value)
    rare = entanglement(np.array([[True, False], [True, False]]), np.array([[1, 0], [1, 1.0]]))
    assert rare.value == pytest.approx(2.5 * 1.5 / (0.5 * 1.5)) and "half of one" in rare.note


def test_the_odds_ratio_of_single_answers_is_woolfs():
    counts = {(True, 1.0): 9, (True, 0.0): 4, (False, 1.0): 20, (False, 0.0): 30}
    cells = [cell for cell, count in counts.items() for _ in range(count)]
    shown, right = (np.array(side)[:, None] for side in zip(*cells, strict=True))
    told = entanglement(shown, right)
    expected = contingency.odds_ratio([[9, 4], [20, 30]], kind="sample").statistic
    assert told.value == pytest.approx(expected)
    groups = len(cells)
    error = math.sqrt(groups / (groups - 1) * sum(1 / count for count in counts.values()))
    assert math.log(told.high / told.low) / 2 == pytest.approx(error * 1.999, rel=1e-3)
    copied = entanglement(np.repeat(shown, 5, axis=1), np.repeat(right, 5, axis=1))
    assert (copied.low, copied.high) == pytest.approx((told.low, told.high))


def test_an_answer_at_the_threshold_is_right():
    """A row of truth .5 is as right as one of 1, and a run of which half are right has odds."""
    features, is_right = np.zeros((5, 8, 1)), np.zeros((5, 8))
    features[:3, 0] = 1.0  # at most a tenth shows what is unusual
    is_right[:2, 0] = is_right[:, 1:3] = 1.0
    odds = []
    for right in (THRESHOLD, 1.0):
        truth = np.where(is_right == 1, right, 0.2)
        run = made_run(truth, truth, features=features, names=("emoji",))
        odds.append(of_run(run, own_line(run), ["emoji"]).entanglement)
    assert odds[0] == odds[1] and odds[0].value == pytest.approx((2 / 1) / (10 / 27))


def test_growth_is_a_slope_from_the_onset_on():
    steps = np.arange(1, 41)
    path = 0.03 * np.clip(steps - 20, 0, None)
    assert growth(steps, path, 20).value == pytest.approx(0.03)
    assert growth(steps, path, 2).value == pytest.approx(0.0)
    holes = np.where(steps % 2, path + 0.1 * np.sin(steps), np.nan)
    window = steps[(steps >= 21) & (steps < 29) & (steps % 2 == 1)]
    fitted = linregress(window, holes[window - 1])
    told = growth(steps, holes, 21)
    assert (told.value, told.n) == (pytest.approx(fitted.slope), 4)
    assert told.high - told.value == pytest.approx(4.302653 * fitted.stderr)
    for onset in (np.nan, 39):
        assert math.isnan(growth(steps, path, onset).value) and growth(steps, path, onset).note


@pytest.fixture(scope="module")
def runs(planted: Path) -> list[Run]:
    """The planted runs: sim-flaky's truth is higher by .2 and more, by prompt, sim-verbose's is
    right at the start and falls as its judge's score rises."""
    changed, rng = [], np.random.default_rng(0)
    for run in read_runs(planted)[0]:
        truth = run.truth + rng.normal(0, 0.02, run.truth.shape)
        if run.acting == "sim-flaky":
            truth += 0.2 + 0.01 * np.arange(len(truth))[:, None] % 0.05
        if run.acting == "sim-verbose":
            truth = np.clip(1.1 - 0.02 * run.features[..., :1].mean(axis=-1), 0, 1)
        changed.append(dataclasses.replace(run, truth=truth))
    return changed


def of_runs(
    runs: Sequence[Run],
    lines: Sequence[Line],
    features: Sequence[str] | None = None,
    base: str | None = "sim-fair",
) -> Field:
    """The tables of a study, by its own effects."""
    return estimate.of_runs(runs, lines, effects_of(runs, base), features)


def test_the_tables_of_a_study(runs):
    told = of_runs(runs, [own_line(run) for run in runs])
    assert (told.base, told.metrics) == ("sim-fair", ("truth",))
    better = {row.arm: row for row in told.aggregates}
    assert better["sim-flaky"].improvement.value == 1 > better["sim-flaky"].improvement.low
    assert math.isnan(better["sim-fair"].improvement.value)
    assert better["sim-flaky"].iqm.value == pytest.approx(0.63, abs=0.02)
    pair = {row.arm: row for row in told.compared}["sim-flaky"]
    assert pair.by_prompt.value == pytest.approx(0.22, abs=0.02)
    assert pair.by_prompt.n == 4  # prompts are named by step and group: the same for every seed
    # .2 higher from the start on, so that its truth moved no further
    effects = effects_of(runs, "sim-fair")
    assert pair.by_run == effects.difference("truth", "sim-flaky", "sim-fair")
    assert pair.by_run.n == 3 and pair.by_run.low < 0 < pair.by_run.high
    assert pair.visible > (pair.by_run.high - pair.by_run.low) / 2
    found = {row.arm: row for row in told.found}
    assert found["sim-fair"].onset.seen == 0 and found["sim-fair"].features == ()


def test_arms_are_compared_with_the_arm_that_is_named(runs):
    lines, arms, other = [own_line(run) for run in runs], {run.arm for run in runs}, "sim-verbose"
    told = of_runs(runs, lines, base=other)
    assert told.base == other and {row.arm for row in told.compared} == arms - {other}


def test_a_shortcut_that_is_named_is_looked_for_in_every_arm(runs):
    lines = [line(run, ["length"]) for run in runs]
    told = {row.arm: row for row in of_runs(runs, lines, ["length"]).found}
    assert all(row.features == ("length",) for row in told.values())
    assert "does not vary" not in told["sim-fair"].entanglement.note


def test_metrics_that_an_arm_lacks_are_left_out_of_every_arm(runs):
    one = {"math": {0: 0.1, 6: 0.5}}
    by_judge = {run.acting: one | {"code": {6: 0.3}} for run in runs} | {"sim-fair": one}
    evaluated = [dataclasses.replace(run, held_out=by_judge[run.acting]) for run in runs]
    told = of_runs(evaluated, [own_line(run) for run in evaluated])
    assert told.metrics == ("truth", "held-out/math")


def test_no_truth_and_one_arm_leave_tables_out(runs):
    blind = [dataclasses.replace(run, truth=np.full_like(run.truth, np.nan)) for run in runs]
    told = tables(of_runs(blind, [own_line(run) for run in blind]))
    assert "aggregates" not in told
    found = told["found"]
    assert set(found["with onset"]) == {"0 of 0"} and set(found["median onset"]) == {MISSING}
    assert set(found["by CHERRL"]) == {MISSING}
    assert len([name for name in found if "mean steps" in name]) == 1
    alone = runs[:3]
    told = of_runs(alone, [own_line(run) for run in alone])
    assert told.base is None and set(tables(told)) == {"aggregates", "found"}
    assert of_runs([], []).aggregates == []


def test_the_section_shows_every_table_with_intervals(real_evidence):
    text = "".join(field(real_evidence))
    assert field in SECTIONS
    for said in ("What do the measures", "IQM", "visible", "median onset", "rliable"):
        assert said in text
    assert "<figure>" not in text  # a profile of one metric would be a few steps


def test_several_metrics_have_a_profile(real_evidence):
    runs = [
        dataclasses.replace(run, held_out={"math": {2: 0.1 * place}})
        for place, run in enumerate(real_evidence.runs)
    ]
    told = of_runs(runs, [own_line(run) for run in runs])
    text = "".join(field(dataclasses.replace(real_evidence, field=told)))
    assert told.metrics == ("truth", "held-out/math") and text.count("<figure>") == 1


def test_the_command_prints_and_writes_the_numbers(planted, answered):
    numbers, printed = answered(command.main, planted)
    assert "Final scores" in printed and "sim-verbose" in printed and "Kaplan-Meier" in printed
    assert len(numbers["aggregates"]) == 3 and len(numbers["thresholds"]) == 41
