import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.records.frames import rollouts_frame, verdicts_frame
from analysis.records.runs import OUTCOMES, on_each_core, read_study, step_means
from tests.analysis.conftest import made_run
from tests.conftest import ROOT
from tests.waiting import GENEROUS_S, wait_for


@pytest.fixture(scope="module")
def records(planted):
    return read_study(planted)


def test_arrays_hold_the_rollouts_that_the_frames_hold(planted, records):
    frame = rollouts_frame(planted)
    assert [run.cell for run in records.runs] == list(records.table["cell"])
    for run in records.runs:
        own = frame[frame["cell"] == run.cell].sort_values(["step", "group", "member"])
        assert run.rollouts == len(own) == 96 and run.judge.shape == (24, 4)
        for values, column in ((run.judge, "judge_score"), (run.truth, "truth")):
            assert np.array_equal(values.ravel(), own[column], equal_nan=True)
        assert np.array_equal(np.repeat(run.step_P, 4), own["step"])
    assert records.problems == [] and records.keyword == "alpha"


def test_every_verdict_is_counted_once(planted, records):
    frame = verdicts_frame(planted)
    counts = records.outcomes
    assert list(counts) == list(OUTCOMES) and counts["verdicts"].sum() == len(frame)
    for (cell, outcome), part in frame.groupby(["cell", "outcome"], observed=True):
        own = counts[(counts["cell"] == cell) & (counts["outcome"] == outcome)]
        assert own["verdicts"].sum() == len(part)
    fair = counts[counts["cell"].str.startswith("sim-fair-s2")]
    assert fair["words"].tolist() == [8.0] and fair["verdicts"].tolist() == [96]


def rewrite(part: Path, change) -> None:
    pq.write_table(pa.Table.from_pylist(change(pq.read_table(part).to_pylist())), part)


def test_a_shadow_score_is_the_mean_of_its_scored_votes(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=1)

    def votes(rows):
        shadow = {**rows[5], "judge": "other", "role": "shadow", "outcome": "scored"}
        votes = [{**shadow, "sample_index": n, "score": s} for n, s in enumerate((0.2, 0.6))]
        lost = {**shadow, "sample_index": 2, "outcome": "timeout", "score": None}
        stray = {**shadow, "rollout_id": "000001-0099", "score": 0.9}
        return [*rows, *votes, lost, stray]

    rewrite(next(study.glob("*/verdicts/*.parquet")), votes)
    found = read_study(study)
    (run,) = found.runs
    assert list(run.shadows) == ["other"]
    known = np.argwhere(np.isfinite(run.shadows["other"])).tolist()
    assert known == [[1, 1]] and run.shadows["other"][1, 1] == pytest.approx(0.4)
    own = found.outcomes[found.outcomes["judge"] == "other"]
    assert own["verdicts"].sum() == 4
    assert own.loc[own["words"].isna(), "verdicts"].tolist() == [1]  # nobody's answer


def test_a_place_that_nobody_fills_is_missing_and_no_rollout(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=1)
    rewrite(next(study.glob("*/rollouts/*.parquet")), lambda rows: rows[1:])
    (run,) = read_study(study).runs
    assert run.rollouts == 15 and np.isnan(run.truth[0, 0]) and np.isfinite(run.truth).sum() == 15
    assert set(run.step_P) == {1}


def test_rollouts_without_a_place_are_left_out_and_said(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=2)
    first, _ = sorted(study.glob("*/rollouts/*.parquet"))
    rewrite(first, lambda rows: [{**row, "member": None} for row in rows])
    found = read_study(study)
    (run,) = found.runs
    assert run.rollouts == 16 and set(run.step_P) == {2}
    assert "it has no member in 16 of 16 rows" in found.problems[0]


def test_an_empty_study_has_no_run_and_no_verdict(make_study):
    found = read_study(make_study(steps=0, state="new"))
    assert found.runs == [] and found.outcomes.empty and len(found.table) == 9


def test_step_means_leave_out_what_is_missing():
    values = np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, np.nan]])
    means = step_means(made_run(values, step_P=np.array([4, 4, 9])), values)
    assert means[0] == 3.0 and np.isnan(means[1])


def test_other_processes_give_the_same_in_the_same_order():
    jobs = [3.0, -1.0, 2.0]
    assert on_each_core(abs, jobs, size=1, large=0) == on_each_core(abs, jobs, size=0)


SCRIPT = """
import sys, time
from pathlib import Path
from analysis.records.runs import on_each_core

def wait(place):
    Path(place).touch()
    if place.endswith("long"):
        time.sleep(600)

"""
several = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core: all is done in one process"
)


def started(script: Path) -> subprocess.Popen[str]:
    pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    )


@several
def test_a_script_without_a_main_guard_is_told_to_have_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "on_each_core(abs, [1, 2], 1, 0)\n")
    _, said = started(script).communicate(timeout=GENEROUS_S)
    assert "UserError: A worker process ended" in said
    assert 'under `if __name__ == "__main__":`' in said


@several
def test_ctrl_c_is_said_once_and_ends_every_process(tmp_path):
    """One of them works, and one waits for work."""
    script, places = tmp_path / "script.py", [tmp_path / "long", tmp_path / "short"]
    names = [str(place) for place in places]
    guarded = f"if __name__ == '__main__':\n    on_each_core(wait, {names}, 1, 0)\n"
    script.write_text(SCRIPT + guarded)
    child = started(script)
    wait_for(lambda: child.poll() is not None or all(place.exists() for place in places))
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=GENEROUS_S)
    assert said.count("Traceback") == 1 and said.endswith("KeyboardInterrupt\n")
