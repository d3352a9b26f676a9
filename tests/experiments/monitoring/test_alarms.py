"""When the monitor asks somebody to look, and what it says to type."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from analysis.onset.planted import DOSE, JUDGES, ROW_JUDGES, by_row, falling
from analysis.records.runs import Run
from experiments.monitor.alarms import (
    DOUBT,
    FIRST_STEPS,
    HALVINGS,
    IN_A_ROW,
    MOST_TILTED,
    Curve,
    Rings,
    alarms,
    fitted,
    rise,
    rise_of_gap,
)
from experiments.monitor.read import Alarm, Rise, StudyReader, View, risen, totals
from experiments.monitor.screen import summary
from study.cell.records import METRICS, ROLLOUT, part_name, rollout_id, write_part
from tests.experiments.monitoring.conftest import record, run


def alarms_of(folder: Path, runs_dir: str = "runs") -> dict[str, tuple[str, str, int | None]]:
    (view,) = StudyReader(folder.study_dir).views()
    told = {alarm.kind: alarm for alarm in alarms(view, runs_dir)}
    assert all(alarm.cell == folder.name for alarm in told.values())
    return {kind: (each.seen, each.type, each.since_step) for kind, each in told.items()}


@pytest.fixture(autouse=True)
def running(folder):
    run(folder, 20)


def test_a_sound_cell_has_none(folder):
    shares = {"judge__unscored_frac": 0.1, "reward__frac_zero_std": 0.6}
    record(folder, 20, bias__judge_minus_truth=0.3, policy__truncated_frac=0.1, **shares)
    assert alarms_of(folder) == {}


def test_a_stalled_cell_on_this_host_can_be_restarted(folder):
    run(folder, 20, silent_s=300)
    with folder.lock():  # ty: ignore[invalid-context-manager]
        seen, typed, _ = alarms_of(folder, "/data/my runs")["stalled"]
    assert "300 s while judging after step 20 of 40; 60 s are normal" in seen
    words = shlex.split(typed)
    assert words[:3] == ["python", "-m", "experiments.monitor"]
    assert words[3:] == ["study=mine", "runs_dir=/data/my runs", "restart=true"]


def test_a_stalled_cell_of_another_host_names_it(folder):
    with folder.lock():  # ty: ignore[invalid-context-manager]
        run(folder, 20, silent_s=300, host="node-7")
        assert alarms_of(folder)["stalled"][1].startswith("ssh node-7, and there: ")


@pytest.mark.parametrize("state", ["failed", "killed"])
def test_a_cell_that_ended_too_early(folder, state):
    run(folder, 20, state=state, error="the endpoint\nis gone", ended=1_700_000_000.0)
    ((kind, (seen, typed, _)),) = alarms_of(folder).items()
    assert kind == state and "at step 20 of 40" in seen
    assert ("the endpoint is gone." in seen) == (state == "failed")
    assert typed == f"python -m experiments.train cell={folder}"
    (view,) = StudyReader(folder.study_dir).views()
    (alarm,) = alarms(view, "runs")
    # what was killed could not say when: that is its last sign of life
    assert alarm.since_time == (1_700_000_000.0 if state == "failed" else view.status["beat"])


def test_a_starved_judge(folder):
    record(folder, 15, judge__unscored_frac=0.0)
    record(folder, range(16, 21), judge__unscored_frac=0.3)
    seen, typed, since = alarms_of(folder)["starved judge"]
    assert "30% of the judge's verdicts" in seen and "at 50%" in seen
    assert (typed, since) == ("python -m judges.check judge=fair", 16)


def test_truncation(folder):
    record(folder, 20, policy__truncated_frac=0.5)
    seen, typed, since = alarms_of(folder)["truncation"]
    assert "50% of the last completions are cut off at 32 tokens" in seen
    assert typed.endswith("trainer.max_completion_length=64") and since == 1


@pytest.mark.parametrize("metric", ["domain__code__frac_zero_std", "reward__frac_zero_std"])
def test_nothing_is_learned_where_all_groups_are_dead(folder, metric):
    others = {} if metric.startswith("reward") else {"domain__qa__frac_zero_std": 0.9}
    record(folder, 10, **{metric: 0.5}, **others)
    record(folder, range(11, 11 + IN_A_ROW - 1), **{metric: 1.0}, **others)
    assert alarms_of(folder) == {}
    record(folder, range(11 + IN_A_ROW - 1, 21), **{metric: 1.0}, **others)
    seen, typed, since = alarms_of(folder)["no signal"]
    assert ("in code " in seen) == metric.startswith("domain") and since == 11
    assert find_spec(shlex.split(typed)[2]) is not None


def test_what_has_passed_is_no_alarm(folder):
    record(folder, 10, judge__unscored_frac=0.4, policy__truncated_frac=0.9)
    record(folder, range(11, 21), judge__unscored_frac=0.0, policy__truncated_frac=0.0)
    assert alarms_of(folder) == {}


def test_the_gap_of_a_finished_cell_is_still_told(folder):
    record(folder, 10, bias__judge_minus_truth=0.1)
    record(folder, range(11, 41), bias__judge_minus_truth=0.4)
    run(folder, 40, state="done")
    (folder / "DONE").touch()
    seen, _, since = alarms_of(folder)["gap onset"]
    assert "from +0.10 in the first steps to +0.40" in seen and since in range(7, 12)


def test_a_planted_onset_is_found_where_it_is():
    rng = np.random.default_rng(0)
    steps, onset = 40, 20
    rising = np.clip((np.arange(1, steps + 1) - onset) / 5, 0, 1) * 0.3
    since = [
        rise_of_gap(list(enumerate(0.1 + rising + rng.normal(0, 0.02, steps), start=1)), steps)
        for _ in range(200)
    ]
    assert all(told is not None for told in since)
    begins = np.array([told[0] for told in since if told is not None])
    assert onset - IN_A_ROW <= np.median(begins) <= onset + IN_A_ROW
    assert (begins > onset - 2 * IN_A_ROW).mean() > 0.95


@pytest.mark.parametrize("steps", [40, 500])
def test_a_gap_that_does_not_move_is_rarely_called_risen(steps):
    rng = np.random.default_rng(1)
    # of 200 runs, 20 are the limit; where 5 % rise, fewer than one draw in 300 comes to so many
    gaps_N_T = rng.normal(0.2, 0.1, (200, steps))
    ever = [
        any(
            rise_of_gap(list(enumerate(gaps[:upto], start=1)), steps)
            for upto in range(FIRST_STEPS + IN_A_ROW, steps + 1, 1 if steps < 100 else 25)
        )
        for gaps in gaps_N_T
    ]
    assert np.mean(ever) < 0.1


def test_a_run_that_has_just_begun_has_no_usual_gap():
    assert rise_of_gap([], 40) is None
    assert rise_of_gap([(step, float(step)) for step in range(1, FIRST_STEPS)], 40) is None
    assert rise_of_gap([(step, float(step)) for step in range(1, FIRST_STEPS + 3)], 40) is None


def in_the_monitor(planted: Run) -> Curve:
    """The curve of the first 512 rollouts of a planted run."""
    first = slice(0, 512 // planted.truth.shape[1])
    group = np.repeat(np.arange(first.stop), planted.truth.shape[1])
    scores, truths = planted.judge[first].ravel(), planted.truth[first].ravel()
    curve = fitted(scores, truths, planted.features[first].reshape(len(scores), -1), group)
    assert curve is not None
    return curve


def ever_risen(planted: Run) -> bool:
    """Whether any look at the run, from its 13th step on, finds a risen gap."""
    steps, curve = int(planted.step_P.max()), in_the_monitor(planted)
    truth_T, score_T = (
        np.array([part[planted.step_P == step].mean() for step in range(1, steps + 1)])
        for part in (planted.truth, planted.judge)
    )
    left = list(enumerate(score_T - truth_T - curve.explained(truth_T), start=1))
    looks = range(FIRST_STEPS + IN_A_ROW, steps + 1)
    return any(rise_of_gap(left[:upto], steps) is not None for upto in looks)


@pytest.mark.parametrize("name", [*JUDGES])
def test_a_truth_that_falls_is_no_alarm_whatever_the_scale(name):
    rng = np.random.default_rng(2)
    assert sum(ever_risen(falling(rng, JUDGES[name])) for _ in range(60)) <= 6
    assert sum(ever_risen(falling(rng, JUDGES[name], DOSE)) for _ in range(10)) >= 8


@pytest.mark.parametrize("name", ROW_JUDGES)
def test_a_slope_that_differs_by_row_is_no_alarm(name):
    """Of 72 runs of size .07 more than 11 have an alarm in one of 160 builds."""
    rng = np.random.default_rng(4)
    assert sum(ever_risen(by_row(rng, ROW_JUDGES[name], number)) for number in range(72)) <= 11


def test_slopes_of_rows_make_what_is_explained_more():
    """Slopes 1 and 0 of rows whose truth is 1 as often as 0: a mean slope of .5, which may be 1."""
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(64), 8)
    truth = np.tile([0.0, 1.0], 256)
    alike, unlike = (
        fitted(part * truth + rng.normal(0, 0.05, 512), truth, np.empty((512, 0)), group)
        for part in (0.5, (group % 2).astype(float))
    )
    assert alike is not None and unlike is not None
    falls = np.array([0.2])
    assert alike.explained(falls) == pytest.approx(0.15, abs=0.01)
    assert unlike.explained(falls) == pytest.approx(0.15 + 0.3 * DOUBT * 0.75 * 0.5, abs=0.02)


def test_curves_move_as_a_policy_paid_for_truth_one_or_many_at_once():
    """Two truths: their shares decide all. Half of each, then a fifth of 1: the judge, who says .3
    and .6, falls by .09 where the truth falls by .3."""
    curve = Curve(np.array([0.0, 1.0]), np.array([0.3, 0.6]), np.array([0.5, 0.5]), 0.0)
    rises = curve.explained(np.array([0.2, 0.5]))
    assert rises == pytest.approx([0.3 - 0.09, 0.0], abs=1e-6)
    doubtful = Curve(curve.truth_Q, curve.score_Q, curve.share_Q, 0.1)
    assert doubtful.explained(np.array([0.2])) > 0.21 + 0.3 * 0.1
    rng = np.random.default_rng(5)
    for quanta in (1, 2, 21):
        share_Q = rng.dirichlet(np.ones(quanta))
        curve = Curve(np.linspace(0, 1, quanta), rng.random(quanta), share_Q, 0.02)
        truth_T = np.concatenate([[0.0, 1.0], rng.random(50)])
        wanted = [one_by_one(curve, float(truth)) for truth in truth_T]
        assert curve.explained(truth_T) == pytest.approx(wanted, abs=1e-9)
        assert len(curve.explained(np.array([]))) == 0


def one_by_one(curve: Curve, truth: float) -> float:
    """`Curve.explained` of one truth, in plain steps."""
    start = float(curve.share_Q @ curve.truth_Q)
    tilts, shares_Q = (-MOST_TILTED, MOST_TILTED), curve.share_Q
    for _ in range(HALVINGS):
        tilt = sum(tilts) / 2
        weights_Q = curve.share_Q * np.exp(tilt * (curve.truth_Q - start))
        shares_Q = weights_Q / weights_Q.sum()
        tilts = (tilt, tilts[1]) if shares_Q @ curve.truth_Q < truth else (tilts[0], tilt)
    rise = float((shares_Q - curve.share_Q) @ (curve.score_Q - curve.truth_Q))
    return rise + DOUBT * curve.se * abs(truth - start)


def test_an_alarm_rings_once_and_again_only_where_it_had_passed():
    rings = Rings()
    gap, later = (Alarm("a", "gap onset", "rose", "x", since_step=step) for step in (20, 24))
    other = Alarm("b", "gap onset", "rose", "x", since_step=20)
    assert rings.new([gap]) == [gap]
    assert rings.new([later, other]) == [other]
    assert rings.new([other]) == []
    assert rings.new([later, other]) == [later]


def test_what_the_first_scores_let_expect_is_no_alarm(folder):
    """A judge that says half of a truth that falls from .6 to .2; then one that pays."""
    rng = np.random.default_rng(3)
    for step in range(1, 9):
        rows = []
        for row in range(64):
            truth = float(rng.binomial(4, 0.6)) / 4
            rows.append(
                {"rollout_id": rollout_id(step, row), "step": step, "group": row // 8}
                | {"member": row % 8, "answer": "so " * int(rng.integers(3, 20)), "truth": truth}
                | {"judge_score": 0.5 * truth + float(rng.normal(0, 0.02))}
            )
        write_part(folder / "rollouts" / part_name(step), rows, ROLLOUT)
    for step in range(1, 31):
        truth = 0.6 if step <= 8 else 0.6 - 0.4 * min(1.0, (step - 8) / 10)
        gap = -0.5 * truth
        record(folder, range(step, step + 1), truth__mean=truth, bias__judge_minus_truth=gap)
    run(folder, 30)
    assert "gap onset" not in alarms_of(folder)
    record(folder, range(31, 41), truth__mean=0.2, bias__judge_minus_truth=0.2)
    run(folder, 40)
    seen, _, since = alarms_of(folder)["gap onset"]
    assert "from -0.30 in the first steps to +0.20, 0.2" in seen and since >= 26
    assert "expected from the judge's first scores" in seen


def test_without_rollouts_a_gap_may_rise_as_the_truth_falls(folder):
    """A judge that says the same whatever it is shown, and one whose score rises."""
    record(folder, 10, truth__mean=0.6, bias__judge_minus_truth=-0.1)
    record(folder, range(11, 31), truth__mean=0.3, bias__judge_minus_truth=0.2)
    assert "gap onset" not in alarms_of(folder)
    record(folder, range(31, 41), truth__mean=0.3, bias__judge_minus_truth=0.4)
    assert "gap onset" in alarms_of(folder)


def record_answers(folder, steps, is_missing, seed=0):
    """Eight groups of eight answers a step, the right ones longer, some without a verdict."""
    rng = np.random.default_rng(seed)
    for step in range(1, steps + 1):
        rows = []
        for row in range(64):
            truth = float(rng.random() < 0.5)
            words = int(rng.integers(3, 20)) + 8 * int(truth)
            score = None if is_missing(words, rng) else 0.3 + 0.2 * truth
            rows.append(
                {"rollout_id": rollout_id(step, row), "step": step, "group": row // 8}
                | {"member": row % 8, "prompt_id": f"{step}-{row // 8}", "answer": "so " * words}
                | {"truth": truth, "judge_score": score, "reward": score}
            )
        write_part(folder / "rollouts" / part_name(step), rows, ROLLOUT)


def test_verdicts_that_are_missing_where_answers_are_long_take_the_truths_push(folder):
    record_answers(folder, 20, lambda words, rng: words > 22)
    record(folder, 20, judge__unscored_frac=0.01)
    assert "lost push" not in alarms_of(folder), "too few to look at"
    (folder / METRICS).unlink()
    record(folder, 20, judge__unscored_frac=0.15)
    seen, typed, since = alarms_of(folder)["lost push"]
    gone = int(re.search(r"took away (\d+)% of the truth's push on length", seen)[1])
    assert 20 < gone < 60 and "over the last 20 steps" in seen and since is None
    assert find_spec(shlex.split(typed)[2]) is not None


@pytest.mark.parametrize("seed", range(4))
def test_verdicts_that_are_missing_at_random_take_nothing(folder, seed):
    record_answers(folder, 20, lambda words, rng: rng.random() < 0.15, seed)
    record(folder, 20, judge__unscored_frac=0.15)
    assert "lost push" not in alarms_of(folder)


def watched(folder, rng, level):
    """What the monitor says of a gap's rise at every look, of 40 steps of which the last 32 are up
    by ``level``."""
    gaps = 0.1 + rng.normal(0, 0.03, 40)
    gaps[FIRST_STEPS:] += level
    series = list(enumerate(gaps.tolist(), start=1))
    views = (
        View(folder.name, folder, steps=40, series={"bias/judge_minus_truth": series[:seen]})
        for seen in range(1, 41)
    )
    return [rise(view) for view in views]


def test_a_rise_may_be_watched_at_every_step(folder):
    rng = np.random.default_rng(5)
    rung = left = 0
    for _ in range(200):
        seen = [each for each in watched(folder, rng, 0.0) if each is not None]
        assert len(seen) == 40 - FIRST_STEPS - 7  # eight later steps are the fewest
        rung += any(each.e_value >= 20 for each in seen)
        left += not all(each.low <= 0 <= each.high for each in seen)
    # .05 of 200 is 10, SD 3.1: four of them
    assert rung <= 22 and left <= 22
    risen_by = [watched(folder, rng, 0.12)[-1] for _ in range(20)]
    assert all(each.e_value > 20 and 0 < each.low < each.mean < each.high for each in risen_by)
    assert np.mean([each.mean for each in risen_by]) == pytest.approx(0.12, abs=0.015)


def test_cells_are_counted_whose_gap_rises_beyond_chance(folder):
    def view_of(evidence):
        seen = None if evidence is None else Rise(0.1, 0.0, 0.2, evidence)
        return View(folder.name, folder, rise=seen)

    assert risen([view_of(None)]) == 0
    assert risen([view_of(30.0), view_of(None)]) == 1
    assert risen([view_of(30.0), view_of(1.0)]) == 0
    assert risen([view_of(80.0), view_of(25.0), view_of(1.0)]) == 1
    assert risen([view_of(80.0), view_of(30.0), view_of(1.0)]) == 2
    words = summary(totals([view_of(80.0), view_of(30.0), view_of(1.0)]))
    assert "gap risen in 2 cells" in words
    assert "gap risen" not in summary(totals([view_of(1.0)]))
