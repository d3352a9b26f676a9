"""The change point of a gap, CHERRL's grid over it, the shortcut rate, and the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize

from analysis.display.printed import show
from analysis.ledger.__main__ import main as ledger_main
from analysis.onset import threshold_grid as module
from analysis.onset.__main__ import Options, main
from analysis.onset.estimate import BENDS, change_point, dosed, line
from analysis.onset.overopt import calibrated, first_alarms
from analysis.onset.planted import _groups
from analysis.onset.threshold_grid import (
    own_high,
    shortcut_rate,
    smoothed,
    threshold_grid,
)
from analysis.overopt import main as overopt_main
from analysis.records.runs import Run, read_runs
from analysis.statistics.bootstrap import step_noise
from analysis.statistics.estimate import group_sums
from tests.analysis.conftest import made_run

NAN = float("nan")
RAMP = 0.1 + 0.4 * np.clip((np.arange(1, 31) - 12) / 8, 0, 1)


def run_of(judge: np.ndarray, truth: np.ndarray, feature: np.ndarray, steps: np.ndarray) -> Run:
    return made_run(judge, truth, features=feature[..., None], names=("flattery",), step_P=steps)


def test_a_ramp_is_found_and_a_gap_that_falls_or_stays_has_no_onset() -> None:
    """At step 12 the ramp is still 0: step 13 is the first above."""
    onset = change_point(*_groups(np.random.default_rng(0), RAMP, sd=1e-4), replicates=100)
    assert (onset.step.value, onset.step.low, onset.step.high) == (13.0, 13.0, 13.0)
    assert onset.before == pytest.approx(0.1, abs=1e-3)
    assert onset.rise == pytest.approx(0.4, abs=1e-3)
    assert onset.p == pytest.approx(1 / 101) and onset.note == ""
    rng = np.random.default_rng(2)
    for path in (-RAMP, np.full(30, 0.3)):
        onset = change_point(*_groups(rng, path), replicates=200)
        assert np.isnan([onset.step.value, onset.step.low, onset.step.high, onset.rise]).all()
        assert onset.note == "the gap is not seen to rise" and onset.p > 0.05


@pytest.mark.parametrize("begin, end", [(5, 6), (5, 25), (10, 22), (20, 30)])
@pytest.mark.parametrize("power", [0.5, 1, 2, 3, 4])
def test_the_onset_is_the_first_step_above_however_the_rise_bends(
    begin: int, end: int, power: float
) -> None:
    """Without noise: at 5, the last flat step, the cubic is as near to the line as at 6."""
    path = 0.1 + 0.4 * np.clip((np.arange(1, 31) - begin) / (end - begin), 0, 1) ** power
    onset = change_point(*_groups(np.random.default_rng(0), path, sd=1e-7), replicates=50)
    assert onset.step.value == np.flatnonzero(path > 0.1)[0] + 1 == begin + 1
    assert onset.rise == pytest.approx(0.4, abs=1e-4)


def test_a_rise_that_is_on_at_the_first_step_may_have_begun_before() -> None:
    """A line from the first step on: equal ones begin there and a step earlier."""
    path = 0.4 * np.clip(np.arange(30) / 10, 0, 1)
    onset = change_point(*_groups(np.random.default_rng(0), path, sd=1e-5), replicates=50)
    assert (onset.step.value, onset.step.low, onset.step.high) == (2.0, 1.0, 2.0)
    onset = change_point(*_groups(np.random.default_rng(3), path), replicates=200)
    assert onset.step.low == 1.0 and 2.0 <= onset.step.high <= 10


def test_the_rise_is_the_least_squares_one() -> None:
    """Against scipy on every begin, end and shape: none leaves smaller squares."""
    path = 0.4 * np.clip((np.arange(1, 13) - 4) / 5, 0, 1)
    steps, sums = _groups(np.random.default_rng(1), path, sd=0.3)
    means = (sums[:, 0] / sums[:, 1]).reshape(12, 8).mean(axis=1)
    at, shapes = np.arange(1.0, 13.0), [shape for shapes in BENDS.values() for shape in shapes]
    best = (np.inf, 0.0)
    for begin in range(12):
        for end in range(max(begin + 1, 2), 13):
            for shape in shapes:
                rise = shape(np.clip((at - begin) / (end - begin), 0, 1))
                design = np.stack([np.ones(12), rise], axis=1)
                solved = optimize.lsq_linear(design, means, bounds=([-np.inf, 0], np.inf))
                best = min(best, (solved.cost, begin + 1.0))
    assert change_point(steps, sums, replicates=50).step.value == best[1]


def test_intervals_cover_bent_rises_and_an_early_stop_lies_not_before_them() -> None:
    """Quadratic of 8 groups, a step of 4, a saturating rise: 40 runs each, and the begin of a
    straight ramp is late for the first (24 of 40 intervals of one missed it)."""
    at, misses, early = np.arange(1, 25), 0, 0
    for groups, begin, end, bend in (
        (8, 8, 20, lambda u: u**2),
        (4, 11, 12, lambda u: u),
        (8, 8, 20, lambda u: np.expm1(-4 * u) / np.expm1(-4)),
    ):
        path = 0.4 * bend(np.clip((at - begin) / (end - begin), 0, 1))
        for seed in range(40):
            rng = np.random.default_rng([groups, end, seed])
            data = _groups(rng, path, sd=0.1, groups=groups)
            step = change_point(*data, replicates=200, seed=seed).step
            misses += not step.low <= begin + 1 <= step.high
            steps, means, errors, _ = step_noise(*data, 1, rng)
            stop = first_alarms(means[None], errors[None], calibrated(24, groups))[0]
            early += stop >= 0 and steps[stop] < step.low
    # 5 % of 120: more than 14 in one of 1,800 seeds
    assert misses <= 14 and early <= 14


def test_what_is_not_told_of_the_shape_is_noted() -> None:
    """A saturating rise without noise bends down and nothing else; under noise it may be a ramp.
    Two rises with a pause between are none of the shapes."""
    u = np.clip((np.arange(1, 31) - 8) / 16, 0, 1)
    bent = 0.4 * np.sqrt(u)
    assert change_point(*_groups(np.random.default_rng(8), bent, sd=0.01)).note == ""
    noisy = change_point(*_groups(np.random.default_rng(8), 0.4 * u), replicates=200)
    assert "the shape of the rise is not told: " in noisy.note and "straight" in noisy.note
    paused = 0.2 * np.clip(4 * u, 0, 1) + 0.2 * np.clip(4 * u - 3, 0, 1)
    onset = change_point(*_groups(np.random.default_rng(8), paused, sd=0.03), replicates=200)
    assert "no shape fits the rise" in onset.note and np.isfinite(onset.step.value)
    noted = 0
    for seed in range(40):
        data = _groups(np.random.default_rng(100 + seed), RAMP)
        noted += "no shape" in change_point(*data, replicates=200, seed=seed).note
    # 1 % of ramps: more than 4 of 40 in one of 20,000 seeds
    assert noted <= 4


def test_missing_rollouts_are_left_out_and_long_runs_searched_on_fewer_steps() -> None:
    """Sums of fewer rollouts, groups without any and steps without any: the same mean path."""
    steps, sums = _groups(np.random.default_rng(4), RAMP, sd=0.02)
    sums[::5] *= 0.25
    sums[1::7] = 0.0
    sums[steps == 25] = 0.0
    onset = change_point(steps, sums, replicates=100)
    assert abs(onset.step.value - 13) <= 1 and onset.rise == pytest.approx(0.4, abs=0.03)
    path = 0.4 * np.clip((np.arange(1, 201) - 80) / 60, 0, 1)
    onset = change_point(*_groups(np.random.default_rng(7), path, sd=0.1), replicates=300)
    # knots are 199 / 47 = 4.2 steps apart, so the begin is known to the knots beside it at best
    assert abs(onset.step.value - 81) <= 20 and onset.step.low <= 81 <= onset.step.high
    assert onset.step.low < onset.step.value < onset.step.high
    assert onset.note.endswith("searched on 48 of 200 steps")


@pytest.mark.parametrize(
    "steps, groups, words", [(7, 8, "7 steps with judge and truth"), (20, 1, "steps of one group")]
)
def test_too_little_is_refused_in_words(steps: int, groups: int, words: str) -> None:
    path = np.linspace(0, 1, steps)
    onset = change_point(*_groups(np.random.default_rng(5), path, groups=groups), replicates=20)
    assert np.isnan([onset.step.value, onset.p]).all() and words in onset.note


def test_smoothing_by_hand_and_a_constant_gap_is_not_searched() -> None:
    assert smoothed([1, 2, 3, 4, 10]) == pytest.approx([2, 2.5, 4, 4.75, 17 / 3])
    # a window with two values has no mean, one with three has
    means = smoothed([1.0, NAN, NAN, 4.0, 7.0, NAN])
    assert means[2] == 4.0 and np.isnan(np.delete(means, 2)).all()
    onset = change_point(*_groups(np.random.default_rng(6), np.zeros(20), sd=1e-9), replicates=20)
    assert np.isnan(onset.p) and onset.note == "the gap is constant"


def test_the_grid_by_hand() -> None:
    """Signals that rise in steps of 20, longer than the window, so each cell can be read off."""
    steps = list(range(1, 101))
    gap = np.repeat([0.0, 0.09, 0.11, 0.13, 0.40], 20)
    rate = np.repeat([0.0, 0.17, 0.22, 0.60, 0.60], 20)
    onset = threshold_grid(steps, gap, rate)
    # the means over five steps pass a level before or after its step begins at 21, 41, 61, 81
    expected = {}
    for at_least in module.GAPS:
        for share in module.RATES:
            for t in range(2, 98):
                near = slice(t - 2, t + 3)
                if gap[near].mean() >= at_least - 1e-9 and rate[near].mean() >= share - 1e-9:
                    expected[at_least, share] = steps[t]
                    break
    values = list(expected.values())
    most = max(values.count(value) for value in values)
    assert onset.resolved == len(values) == 12
    assert onset.mode == min(value for value in values if values.count(value) == most)
    assert (onset.first, onset.last) == (min(values), max(values))
    assert onset.severe == 82  # .13 + (.27 * 4 / 5) = .346 at 82, .292 at 81


def test_thresholds_that_tie_or_are_not_reached_are_told_apart() -> None:
    """Gap always there, rate reaching one threshold at a time: each step three times of twelve."""
    rate = np.repeat([0.16, 0.21, 0.26, 0.31], 10)
    onset = threshold_grid(range(1, 41), np.full(40, 0.5), rate)
    assert (onset.mode, onset.first, onset.resolved) == (1, 1, 12)
    assert onset.last is not None and 30 <= onset.last <= 32 and onset.severe is None
    low = threshold_grid(range(10), np.full(10, 0.01), np.full(10, 0.9))
    assert low.mode is None and low.resolved == 0 and low.note == "thresholds not reached"
    empty = threshold_grid(range(10), np.full(10, 0.5), np.full(10, NAN))
    assert empty.mode is None and "high-score bucket" in empty.note


def test_a_judge_that_never_says_99_has_a_bucket_of_its_own() -> None:
    """Scores run to .5; from step 8 on half of the rollouts are at .9 and show the phrase."""
    steps = np.repeat(np.arange(1, 11), 2)
    judge = np.tile(np.linspace(0.1, 0.5, 10), (20, 1))
    phrase = np.zeros((20, 10))
    judge[steps >= 8, 5:] = 0.9
    phrase[steps >= 8, 5:] = 1.0
    run = run_of(judge, np.zeros_like(judge), phrase, steps)
    assert own_high(run) == 0.9  # 30 of 200 reach it
    onset = line(run, ["flattery"])
    assert onset.grid.mode is None and "high-score bucket" in onset.grid.note
    # the rate is known at three steps, so smoothed from the eighth on; the gap is always above .12
    own = onset.own_grid
    assert (own.mode, own.first, own.last, own.resolved, own.severe) == (8, 8, 8, 12, 8)


def test_shortcut_rate_by_hand() -> None:
    """Ten steps of 2 groups of 10; half of the high scored show the phrase from step 6 on."""
    steps = np.repeat(np.arange(1, 11), 2)
    judge = np.ones((20, 10))
    judge[:, 8:] = 0.5  # 16 of 20 rollouts are in the bucket
    phrase = np.zeros((20, 10))
    phrase[steps >= 6, :4] = 1.0
    phrase[:, 9] = 5.0  # outside of the bucket: does not count
    run = run_of(judge, np.zeros_like(judge), phrase, steps)
    # the usual of the first step is the 90 % quantile: of 2 fives in 20 that is 0.5
    found_steps, rates = shortcut_rate(run, ["flattery"], min_high=16)
    assert found_steps.tolist() == list(range(1, 11))
    assert rates.tolist() == [0.0] * 5 + [0.5] * 5
    assert np.isnan(shortcut_rate(run, ["flattery"], min_high=17)[1]).all()


def test_group_gaps_use_rollouts_that_have_both() -> None:
    judge = np.array([[1.0, NAN, 0.5], [NAN, NAN, NAN]])
    truth = np.array([[0.25, 1.0, NAN], [0.0, 1.0, 1.0]])
    run = run_of(judge, truth, np.zeros((2, 3)), np.array([1, 1]))
    assert group_sums(run.judge - run.truth).tolist() == [[0.75, 1.0], [0.0, 0.0]]


def test_a_run_without_truth_is_said_to_have_none(make_study) -> None:
    study = make_study(judges=("sim-verbose",), seeds=1, steps=10, truth=False)
    onset = line(read_runs(study)[0][0], ["length"])
    assert onset.steps == 0 and onset.alarm is None and onset.rule is None
    assert "0 steps with judge and truth" in onset.onset.note
    assert onset.grid.note == "no step has judge and truth"


def test_doses_of_the_judge_name_the_shortcut(make_study) -> None:
    doses = {"simulated": {"doses": {"length": 0.2, "bold": 0.0, "flattery": -0.1}}}
    (run,) = read_runs(make_study(judges=("sim-verbose",), seeds=1, judge_config=doses))[0]
    assert dosed(run) == ["flattery", "length"]
    assert dosed(replace(run, config={})) == []


def test_the_command_line(make_study, answered) -> None:
    """In the planted study the gap is .08 a step, so the second step is the first above."""
    study = make_study(judges=("sim-fair", "sim-verbose"), seeds=1, steps=12)
    found, said = answered(main, study, "feature=length", "high=0.5", "min_high=10")
    lines = {one["arm"]: one for one in found}
    verbose = lines["sim-verbose"]
    assert verbose["gap_first"] == pytest.approx(0.0) and verbose["gap_last"] == pytest.approx(0.88)
    assert verbose["onset"]["step"] == 2.0 and verbose["onset"]["rise"] == pytest.approx(0.88)
    assert verbose["grid"]["resolved"] == 12 and verbose["alarm"] is not None
    assert lines["sim-fair"]["onset"]["step"] is None and lines["sim-fair"]["alarm"] is None
    assert "simulated bias-free runs" in said and "the gap is constant (sim-fair-s0" in said


@pytest.mark.parametrize("main", [main, ledger_main, overopt_main])
def test_a_study_without_rollouts_says_so(main, tmp_path: Path, printed) -> None:
    assert "No run of this study has recorded rollouts yet." in printed(main, tmp_path)


def test_numbers_are_on_disk_before_their_text_is_made(tmp_path: Path) -> None:
    """Ctrl-C, or a text that cannot be made, loses no numbers that took hours."""

    def text() -> str:
        raise KeyboardInterrupt

    options = Options("x", tmp_path, out=tmp_path / "o.json")
    with pytest.raises(KeyboardInterrupt):
        show(options, [0.5], text)
    assert json.loads((tmp_path / "o.json").read_text()) == [0.5]
