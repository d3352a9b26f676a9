"""Shifts on held-out rows are within prompts, and recover what was planted."""

import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.drift.estimate import shift_table
from analysis.frozen.__main__ import main
from analysis.frozen.estimate import frozen_shifts, has_frozen, held_out_table
from analysis.records.frames import rollouts_frame
from analysis.records.runs import Run, read_runs
from analysis.report.evidence import Evidence, gather, of_records
from analysis.report.sections import behaviours, frontier, method
from analysis.report.words import findings
from analysis.study import read_study
from study.cell.records import EVALUATIONS
from tests.conftest import RECORDS_ONLY, Page, Trained

NAMES = ("length", "hedges")
PROMPTS, SAMPLES, STEPS = 12, 3, 10


def answers(step, features, truth, judge, prompts) -> dict[str, Any]:
    """The arrays of a run that was rewarded for nothing."""
    nothing, arrays = np.full_like(truth, np.nan), {"features": features, "names": NAMES}
    arrays |= {"step_P": step, "truth": truth, "judge": judge, "prompt_P": prompts}
    return arrays | {"reward": nothing, "advantage": nothing, "shadows": {"other": truth}}


def make_run(rng, arm="a", seed=0, moved=(2.0, 0.0), trained=None, noise=1.0, judge_moved=0.1):
    """A run whose prompts differ by 10 words, whose answers at the end are ``moved`` further, and
    whose rollouts moved by ``trained``."""
    prompt_P = np.array([f"p{k}" for k in range(PROMPTS)] * 2, dtype=object)
    level = rng.normal(20, 10, (PROMPTS, 1, 1))
    shape = (PROMPTS, 1 + SAMPLES, len(NAMES))
    start = level + noise * rng.normal(size=shape)
    end = level + noise * rng.normal(size=shape) + np.array(moved)
    end[:, 0] += 1.0  # the greedy answers move by one word more
    truth = rng.random((PROMPTS, 1 + SAMPLES))
    head = (f"{arm}-{seed}", arm, seed)
    ends = np.repeat([0, STEPS], PROMPTS), np.concatenate([start, end])
    scores = np.concatenate([truth, truth]), np.concatenate([truth, truth + judge_moved])
    frozen = Run(*head, False, **answers(*ends, *scores, prompt_P))
    step_P = np.repeat(np.arange(1, STEPS + 1), 4)
    features = noise * rng.normal(size=(len(step_P), 4, len(NAMES)))
    features[step_P == STEPS] += np.array(moved if trained is None else trained)
    scores = rng.random((len(step_P), 4))
    prompts = np.array([f"t{k}" for k in range(len(step_P))], dtype=object)
    config = {"judge.name": arm, "trainer.steps": STEPS}
    arrays = answers(step_P, features, scores, scores, prompts)
    return Run(*head, True, **arrays, frozen=frozen, config=config)


def metric(table, name, arm="a"):
    return table[(table["metric"] == name) & (table["arm"] == arm)].iloc[0]


def with_frozen(run, **changes):
    """The run with other answers to the held-out rows."""
    return dataclasses.replace(run, frozen=dataclasses.replace(run.frozen, **changes))


def test_a_shift_is_paired_by_prompt_and_draw():
    """As a paired test of prompt means says, which is blind to how prompts differ."""
    run = make_run(np.random.default_rng(0))
    row = metric(frozen_shifts([run]), "length")
    lengths = run.frozen.features[:, 1:, 0]
    start, end = lengths[:PROMPTS].mean(axis=1), lengths[PROMPTS:].mean(axis=1)
    assert row["shift"] == pytest.approx((end - start).mean())
    assert (row["first"], row["last"]) == pytest.approx((start.mean(), end.mean()))
    by_scipy = stats.ttest_rel(end, start)
    assert row["shift"] / row["group_var"] ** 0.5 == pytest.approx(by_scipy.statistic)
    greedy = metric(frozen_shifts([run], "greedy"), "length")
    lengths = run.frozen.features[:, 0, 0]
    assert greedy["shift"] == pytest.approx((lengths[PROMPTS:] - lengths[:PROMPTS]).mean())


def test_scores_of_every_judge_are_there_and_reward_is_not():
    table = frozen_shifts([make_run(np.random.default_rng(0))])
    assert set(table["metric"]) == {"judge_score", "truth", "gap", "score by other", *NAMES}
    assert metric(table, "truth")["shift"] == 0
    assert metric(table, "gap")["shift"] == pytest.approx(0.1)
    arms = shift_table(table, None).set_index("metric")
    assert arms.loc["score by other", "unit"] == "score" and arms.loc["length", "unit"] == "words"


def test_missing_scores_leave_pairs_out_and_runs_without_it_too():
    run = make_run(np.random.default_rng(0))
    judge = run.frozen.judge.copy()
    judge[PROMPTS, 1] = np.nan  # an answer of the end
    row = metric(frozen_shifts([with_frozen(run, judge=judge)]), "judge_score")
    pairs = (judge[PROMPTS:, 1:] - judge[:PROMPTS, 1:]).ravel()
    assert row["shift"] == pytest.approx(np.nanmean(pairs))
    assert row["unscored"] == pytest.approx(1 / pairs.size)
    low, high = (np.where(np.isnan(judge), end, judge)[PROMPTS:, 1:].mean() for end in (0, 1))
    start = judge[:PROMPTS, 1:].mean()
    assert (row["worst_low"], row["worst_high"]) == pytest.approx((low - start, high - start))
    run = make_run(np.random.default_rng(0))
    none = dataclasses.replace(run, frozen=None)
    started = dataclasses.replace(run, frozen=run.frozen.at(0))
    late = dataclasses.replace(run, frozen=run.frozen.at(STEPS))
    other = run.frozen.prompt_P.copy()
    other[PROMPTS:] = [f"another {k}" for k in range(PROMPTS)]
    mixed = with_frozen(run, prompt_P=other)
    assert [has_frozen(each) for each in (run, none, started, late, mixed)] == [True] + 4 * [False]
    assert frozen_shifts([none, started, late, mixed]).empty
    assert held_out_table([none], None).empty


def test_two_arms_are_compared_prompt_by_prompt():
    """Runs of one seed share prompts: what moves a prompt under both judges is in no difference."""
    by_prompt = np.random.default_rng(3).normal(0, 5, (PROMPTS, 1, 1))
    runs = []
    for seed, (arm, moved) in itertools.product((0, 1), (("a", 2.0), ("b", 0.0))):
        run = make_run(np.random.default_rng(4), arm, seed, moved=(moved, 0.0), noise=0.1)
        features = run.frozen.features.copy()
        features[PROMPTS:] += by_prompt
        runs.append(with_frozen(run, features=features))
    row = metric(shift_table(frozen_shifts(runs), "b"), "length")
    assert row["diff"] == pytest.approx(2.0)
    assert row["diff_high"] - row["diff_low"] < 1 < row["high"] - row["low"]


def test_what_was_learned_transfers_or_does_not():
    rng = np.random.default_rng(5)
    same = [make_run(rng, seed=seed, moved=(3.0, 0.0)) for seed in range(4)]
    lost = [make_run(rng, "b", seed, moved=(0.0, 0.0), trained=(3.0, 0.0)) for seed in range(4)]
    table = held_out_table([*same, *lost], "b")
    kept, gone = metric(table, "length"), metric(table, "length", "b")
    assert kept["low"] < 3 < kept["high"] and kept["apart_low"] < 0 < kept["apart_high"]
    assert gone["low"] < 0 < gone["high"] and gone["apart_high"] < 0
    assert gone["training"] == pytest.approx(3, abs=1) and kept["greedy"] > kept["shift"]
    assert kept["diff_low"] > 0


def test_a_row_that_one_end_lost_is_missing_and_no_other_row_with_it():
    run = make_run(np.random.default_rng(0))
    whole = metric(frozen_shifts([run]), "length")
    kept = np.arange(2 * PROMPTS) != PROMPTS + 4
    lost = dataclasses.replace(run, frozen=run.frozen.where(kept))
    assert has_frozen(lost)
    row = metric(frozen_shifts([lost]), "length")
    lengths = run.frozen.features[:, 1:, 0]
    moved = np.delete(lengths[PROMPTS:] - lengths[:PROMPTS], 4, axis=0)
    assert row["shift"] == pytest.approx(moved.mean()) and row["shift"] != whole["shift"]
    assert row["unscored"] == pytest.approx(1 / PROMPTS) and whole["unscored"] == 0
    # one row of a prompt that is asked twice
    twice = np.array([*run.frozen.prompt_P[:-1], run.frozen.prompt_P[0]], dtype=object)
    twice[PROMPTS - 1] = twice[0]
    both = with_frozen(run, prompt_P=twice)
    assert metric(frozen_shifts([both]), "length")["shift"] == pytest.approx(whole["shift"])
    part = dataclasses.replace(both, frozen=both.frozen.where(np.arange(2 * PROMPTS) < 23))
    assert metric(frozen_shifts([part]), "length")["unscored"] == pytest.approx(1 / PROMPTS)


@pytest.fixture(scope="module")
def evaluated(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two judges of two seeds, evaluated for real; the study's folder."""
    runs_dir = tmp_path_factory.mktemp("runs")
    settings = ("trainer.eval_steps=2", "trainer.eval_samples=2", "task.eval_rows=6")
    judges = ("judge=sim-fair,sim-verbose", "seed=0,1", "shadow=[sim-strict]")
    done = trained(runs_dir, *RECORDS_ONLY, *judges, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return runs_dir / "debug"


def test_trained_runs_are_read_by_the_one_reader(evaluated: Path) -> None:
    runs, problems = read_runs(evaluated)
    assert problems == [] and all(has_frozen(run) for run in runs)
    frame = rollouts_frame(evaluated, frozen=True)
    assert len(frame) == 4 * 2 * 6 * 3 and frame["truth"].notna().all()
    run = runs[0]
    assert run.frozen.truth.shape == (12, 3) and set(run.frozen.shadows) == {"sim-strict"}
    assert run.frozen.steps.tolist() == [0, 2] and len(run.steps) == 2
    mine = frame[(frame["cell"] == run.cell) & (frame["step"] == 0)]
    assert run.frozen.at(0).truth.ravel().tolist() == mine["truth"].tolist()
    start = [run.frozen.at(0) for run in runs if run.seed == 0]
    assert np.array_equal(start[0].features, start[1].features), "arms begin with the same answers"


def test_the_command_line(evaluated: Path, tmp_path: Path, answered, printed) -> None:
    rows, said = answered(main, evaluated)
    assert "Shifts are within prompts" in said and "score by sim-strict" in said
    assert {row["arm"] for row in rows} == {"sim-fair", "sim-verbose"}
    study = read_study(evaluated)
    for row in rows:
        if row["metric"] in ("length", "truth", "judge_score", "gap"):
            shift = study.shift(row["metric"], row["arm"])  # as the report has it
            shown = (row["shift"], row["low"], row["high"])
            assert shown == pytest.approx((shift.value, shift.low, shift.high), nan_ok=True)
    bare = shutil.copytree(evaluated, tmp_path / "runs" / "bare")
    for folder in bare.glob(f"*/{EVALUATIONS}"):
        shutil.rmtree(folder)
    assert "trainer.eval_samples=3" in printed(main, bare)


@pytest.mark.usefixtures("unrendered")
def test_the_report_rests_on_it_and_says_so(evaluated: Path) -> None:
    evidence = gather(evaluated)
    assert evidence.effects.where == "on 6 held-out rows, before and after"
    by_table = evidence.feature_shifts.set_index(["arm", "metric"])["shift"]
    runs = evidence.runs
    by_hand = shift_table(frozen_shifts(runs), evidence.base).set_index(["arm", "metric"])["shift"]
    assert by_table.to_dict() == pytest.approx(by_hand[by_table.index].to_dict(), nan_ok=True)
    scores = evidence.score_shifts
    assert set(scores["metric"]) == {"judge_score", "truth", "gap", "score by sim-strict"}
    said = findings(evidence)
    assert any("frozen evaluation: 6 held-out rows with 2 drawn answers each" in s for s in said)
    text = "".join("".join(section(evidence)) for section in (method, behaviours, frontier))
    page = " ".join(Page(text).text.split())
    assert "within prompts (frozen evaluation)" in page and "held-out - training" in page
    assert "chosen by" in page

    still = dataclasses.replace(evidence, held_out=evidence.held_out.iloc[:0])  # nothing moved
    assert findings(still) == said and "held-out - training" not in "".join(behaviours(still))

    first, *others = evidence.records.runs
    part = [dataclasses.replace(first, frozen=None), *others]
    evidence = of_records(dataclasses.replace(evidence.records, runs=part))
    assert evidence.effects.on == "rollouts" and evidence.held_out.empty
    assert any("the rollouts of training: 1 of 4 runs" in s for s in findings(evidence))
    assert set(evidence.score_shifts["metric"]) == {"judge_score", "truth", "reward", "gap"}
    assert "A shift is the mean of the last 10%" in Page("".join(method(evidence))).text


def test_a_study_without_it_says_nothing_of_it(evidence: Evidence) -> None:
    assert evidence.effects.on == "rollouts"
    assert not [sentence for sentence in findings(evidence) if "frozen" in sentence]
