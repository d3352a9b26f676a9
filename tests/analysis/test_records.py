import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.records.arms import arm_names
from analysis.records.frames import (
    AXES,
    ROLLOUT_COLUMNS,
    RUN_COLUMNS,
    VERDICT_COLUMNS,
    rollouts_frame,
    runs_frame,
    steps_frame,
    verdicts_frame,
)
from analysis.records.runs import OUTCOMES, on_each_core, read_study, step_means
from study.cell.records import ROLLOUT, write_part
from study.cell.study_file import write_study
from study.errors import UserError
from tests.analysis.conftest import config_of, made_run
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


def test_step_means_leave_out_what_is_missing_and_processes_keep_the_order():
    values = np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, np.nan]])
    means = step_means(made_run(values, step_P=np.array([4, 4, 9])), values)
    assert means[0] == 3.0 and np.isnan(means[1])
    jobs = [3.0, -1.0, 2.0]
    assert on_each_core(abs, jobs, size=1, large=0) == on_each_core(abs, jobs, size=0)


SCRIPT = """
import time
from pathlib import Path

def wait(place):
    Path(place).touch()
    if place.endswith("long"):
        time.sleep(600)

"""
IMPORT = "from analysis.records.runs import on_each_core\n"
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
def test_workers_that_end_too_early_are_told_with_what_to_do():
    with pytest.raises(UserError, match=r"A worker process ended .* under `if __name__ == "):
        on_each_core(os._exit, [1, 1], size=1, large=0)
    assert on_each_core(abs, [-1, 2], size=1, large=0) == [1, 2], "others take their place"


@several
@pytest.mark.long
def test_a_script_without_a_main_guard_is_told_to_have_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + IMPORT + "on_each_core(abs, [1, 2], 1, 0)\n")
    _, said = started(script).communicate(timeout=GENEROUS_S)
    assert "UserError: A worker process ended" in said
    assert 'under `if __name__ == "__main__":`' in said


@several
def test_ctrl_c_is_said_once_and_ends_every_process(tmp_path):
    """One of them works, and one waits for work; neither imports what the first one does."""
    script, places = tmp_path / "script.py", [tmp_path / "long", tmp_path / "short"]
    names = [str(place) for place in places]
    guarded = f"if __name__ == '__main__':\n    {IMPORT}    on_each_core(wait, {names}, 1, 0)\n"
    script.write_text(SCRIPT + guarded)
    child = started(script)
    wait_for(lambda: child.poll() is not None or all(place.exists() for place in places))
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=GENEROUS_S)
    assert said.count("Traceback") == 1 and said.endswith("KeyboardInterrupt\n")


def test_every_run_is_one_row_with_its_axes(planted):
    runs = runs_frame(planted)
    assert list(runs.columns) == list(RUN_COLUMNS)
    assert len(runs) == 9 and runs["done"].all()
    assert set(zip(runs["judge"], runs["seed"], strict=True)) == {
        (judge, seed) for judge in ("sim-fair", "sim-verbose", "sim-flaky") for seed in (0, 1, 2)
    }
    assert runs["config_hash"].str.fullmatch("[0-9a-f]{10}").all()
    assert (runs["arm"] == runs["judge"]).all()
    assert runs["simulated"].all() and set(runs["keyword"]) == {"alpha"}
    assert runs.attrs["problems"] == []


def test_rollouts_and_verdicts_hold_every_row_and_join_by_id(planted):
    rollouts, verdicts = rollouts_frame(planted), verdicts_frame(planted)
    assert len(rollouts) == len(verdicts) == 9 * 6 * 16
    assert set(ROLLOUT_COLUMNS) | set(AXES) < set(rollouts.columns) | {"reward"}
    assert set(VERDICT_COLUMNS) <= set(verdicts.columns)
    keys = ["cell", "rollout_id"]
    assert len(rollouts.merge(verdicts, on=keys, validate="one_to_one")) == len(rollouts)
    # 3 flaky runs x 6 steps x 4 groups lose one member each; missing stays missing
    assert rollouts["judge_score"].isna().sum() == 72
    assert verdicts.loc[verdicts["outcome"] == "scored", "score"].notna().all()


def test_a_verdict_names_its_judge_and_the_judge_of_its_run_apart(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=1)
    part = next(study.glob("*/verdicts/*.parquet"))
    table = pq.read_table(part).to_pylist()
    shadow = [{**row, "judge": "sim-strict", "role": "shadow"} for row in table]
    pq.write_table(pa.Table.from_pylist(table + shadow, pq.read_schema(part)), part)
    verdicts = verdicts_frame(study)
    counts = verdicts.groupby(["judge", "role"]).size().to_dict()
    assert counts == {("sim-fair", "acting"): 16, ("sim-strict", "shadow"): 16}
    assert set(verdicts["acting_judge"]) == {"sim-fair"}


def test_columns_limit_what_is_read_and_unknown_ones_are_refused(planted):
    """The number that was given as reward and the reward's name are apart."""
    few = rollouts_frame(planted, ["step", "reward"])
    assert {"cell", "step", "reward", "judge", "seed"} <= set(few.columns)
    assert "completion" not in few
    assert few["reward"].dtype == "float64" and set(few["reward_name"]) == {"judge"}
    with pytest.raises(KeyError, match="not_a_column"):
        rollouts_frame(planted, ["not_a_column"])


def test_steps_are_long_and_a_step_logged_twice_counts_once(make_study):
    study = make_study(judges=["sim-fair"], seeds=1)
    path = next(study.glob("*/metrics.jsonl"))
    again = {"step": 6, "time_ms": 99, "metrics": {"truth/mean": 0.75, "cost/usd": None}}
    with path.open("a") as file:
        file.write(json.dumps(again) + "\n")
        file.write('{"step": 7, "metr')
    steps = steps_frame(study)
    last = steps[steps["step"] == 6].set_index("metric")["value"]
    assert last["truth/mean"] == 0.75 and pd.isna(last["cost/usd"])
    assert (steps["metric"] == "truth/mean").sum() == 6
    assert ["line 8" in problem for problem in steps.attrs["problems"]] == [True]


def test_a_study_without_records_gives_empty_frames_with_the_right_columns(make_study):
    study = make_study(steps=0, state="new")
    rollouts, verdicts = rollouts_frame(study), verdicts_frame(study)
    assert rollouts.empty and set(ROLLOUT_COLUMNS) <= set(rollouts.columns)
    assert verdicts.empty and set(VERDICT_COLUMNS) <= set(verdicts.columns)
    assert rollouts["truth"].dtype == "float64"
    assert steps_frame(study).empty


READERS = [rollouts_frame, verdicts_frame, steps_frame, runs_frame, read_study]


@pytest.mark.parametrize("reader", READERS)
def test_a_study_that_is_not_there_is_no_empty_frame(reader, planted):
    with pytest.raises(UserError, match=r"There is no study folder .* holds .*planted"):
        reader(planted.with_name("nothing"))


def damage(part: Path, how: str) -> None:
    data = bytearray(part.read_bytes())
    if how == "cut":
        del data[200:]
    elif how == "empty":
        data.clear()
    else:  # the footer stays whole, the data pages do not
        data[10:300] = b"\0" * 290
    part.write_bytes(bytes(data))


@pytest.mark.parametrize("how", ["cut", "empty", "scrambled"])
def test_an_unreadable_part_is_reported_and_the_rest_is_read(planted, tmp_path, how):
    study = shutil.copytree(planted, tmp_path / "planted")
    part = sorted(study.glob("sim-fair-s1-*/rollouts/*.parquet"))[2]
    damage(part, how)
    rollouts = rollouts_frame(study)
    assert len(rollouts) == (9 * 6 - 1) * 16
    (problem,) = rollouts.attrs["problems"]
    assert problem.startswith("sim-fair-s1-") and "rollouts/step-000003.parquet" in problem


def test_parts_of_another_version_are_read_as_far_as_they_match(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=3)
    parts = sorted(study.glob("*/rollouts/*.parquet"))
    old = pq.read_table(parts[0]).drop_columns(["truth", "logprob_sum"])
    pq.write_table(old, parts[0])
    new = pq.read_table(parts[1])
    pq.write_table(new.append_column("component/judge", pa.array([0.25] * 16)), parts[1])
    odd = pq.read_table(parts[2])
    pq.write_table(odd.set_column(1, "step", pa.array(["three"] * 16)), parts[2])
    rollouts = rollouts_frame(study)
    assert len(rollouts) == 32
    assert rollouts.groupby("step")["truth"].count().to_dict() == {1: 0, 2: 16}
    assert len(rollouts.attrs["problems"]) == 1
    component = rollouts_frame(study, ["component/judge"])["component/judge"]
    assert component.sum() == 4.0 and component.isna().sum() == 16


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("judge_score", [True] * 16),
        ("judge_score", ["0.5"] * 16),
        ("component/judge", [True] * 16),
        ("group", ["3"] * 16),
        ("completion", [3] * 16),
        ("completion", [b"3"] * 16),
    ],
)
def test_a_column_of_another_kind_is_refused_and_never_converted(make_study, name, values):
    study = make_study(judges=["sim-fair"], seeds=1, steps=2)
    path = sorted(study.glob("*/rollouts/*.parquet"))[1]
    part = pq.read_table(path)
    others = [other for other in part.column_names if other != name]
    pq.write_table(part.select(others).append_column(name, pa.array(values)), path)
    rollouts = rollouts_frame(study)
    assert set(rollouts["step"]) == {1}
    (problem,) = rollouts.attrs["problems"]
    assert f"columns of another kind: {name}" in problem


def test_a_column_of_another_width_is_read_and_one_without_values_is_missing(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=1)
    (path,) = study.glob("*/rollouts/*.parquet")
    part = pq.read_table(path).drop_columns(["judge_score", "group", "answer", "truth"])
    for name, values in (
        ("judge_score", pa.array([1] * 16, pa.int8())),
        ("group", pa.array([2.0 + row // 4 for row in range(16)])),
        ("answer", pa.array(["yes"] * 16).dictionary_encode()),
        ("truth", pa.nulls(16)),
    ):
        part = part.append_column(name, values)
    pq.write_table(part, path)
    rollouts = rollouts_frame(study)
    assert rollouts.attrs["problems"] == []
    row = rollouts.iloc[0]
    assert (row["judge_score"], row["group"], row["answer"]) == (1.0, 2, "yes")
    assert rollouts["truth"].isna().all()


def test_columns_that_nobody_knows_may_differ_between_parts(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=2)
    notes = pa.array(["far"] * 16), pa.array([7] * 16)
    for path, note in zip(sorted(study.glob("*/rollouts/*.parquet")), notes, strict=True):
        pq.write_table(pq.read_table(path).append_column("note", note), path)
    rollouts = rollouts_frame(study)
    assert len(rollouts) == 32 and "note" not in rollouts and rollouts.attrs["problems"] == []
    asked = rollouts_frame(study, ["note"])
    assert asked["note"].tolist() == [7.0] * 16
    (problem,) = asked.attrs["problems"]
    assert "step-000001.parquet" in problem and "holds note as string" in problem


def test_unfinished_and_broken_cells_are_marked(make_study):
    study = make_study(judges=["sim-fair"], seeds=3)
    first, second, third = sorted(path.parent for path in study.glob("*/config.yaml"))
    (first / "DONE").unlink()
    (first / "status.json").write_text(json.dumps({"state": "running", "step": 4, "steps": 6}))
    (second / "DONE").unlink()
    (second / "status.json").write_text('{"state": "fai')
    (third / "config.yaml").write_text("judge: [unclosed")
    runs = runs_frame(study).set_index("cell")
    assert runs.loc[first.name, "state"] == "killed"  # nobody holds its lock
    assert runs.loc[first.name, "step"] == 4
    assert not runs.loc[second.name, "done"]
    assert runs.loc[third.name, "judge"] == "(no name)"
    assert len(runs.attrs["problems"]) == 2


def test_an_arm_names_every_other_factor_that_varies(make_study):
    study = make_study(judges=["sim-fair"], seeds=2)
    write_study(study, {"factors": ["judge", "seed", "trainer.steps"]})
    config = sorted(study.glob("*/config.yaml"))[0]
    config.write_text(config.read_text().replace("steps: 6", "steps: 9"))
    runs = runs_frame(study)
    assert set(runs["arm"]) == {"sim-fair, trainer.steps=6", "sim-fair, trainer.steps=9"}
    assert set(runs["trainer.steps"]) == {6, 9}


def test_two_settings_of_one_judge_are_two_arms(make_study):
    study = make_study(judges=["sim-fair", "sim-verbose"], seeds=2, steps=1)
    with config_of(next(study.glob("sim-fair-s0-*"))) as config:
        config["judge"]["sampling"] = {"votes": 3}
        config["judge"]["endpoint"]["url"] = "http://b"
    arms = runs_frame(study).groupby("judge", observed=True)["arm"].unique()
    assert len(arms["sim-fair"]) == 2
    assert any(arm == "sim-fair, votes=3" for arm in arms["sim-fair"])
    assert all("url" not in arm for arm in arms["sim-fair"])  # where it runs is no treatment
    assert list(arms["sim-verbose"]) == ["sim-verbose"]


def test_an_arm_leaves_out_what_its_settings_lie_in() -> None:
    doses = [{}, {"length": 0.15}, {"length": 0.0, "words": 1.0}]
    configs = [{"judge": {"name": "a", "simulated": {"doses": each}}} for each in doses]
    assert arm_names(configs, ["judge"])[1] == "a, length=0.15, words=(absent)"
    for config in configs:
        config["judge"]["sampling"] = {
            "length": config["judge"]["simulated"]["doses"].get("length")
        }
    name = arm_names(configs, ["judge"])[1]
    assert "judge.sampling.length=0.15" in name and "judge.simulated.doses.length=0.15" in name


def test_two_settings_of_one_reward_are_two_arms_where_the_reward_is_a_factor(make_study):
    study = make_study(judges=["sim-fair"], seeds=2, steps=1)
    write_study(study, {"factors": ["judge", "seed", "reward"]})
    for cell, qa in zip(sorted(study.glob("sim-fair-*")), ("judge", "rule"), strict=True):
        with config_of(cell) as config:
            config["reward"] = {"name": "by-domain", "domains": {"math": "rule", "qa": qa}}
    arms = set(runs_frame(study)["arm"])
    assert arms == {f"sim-fair, reward.domains.qa={paid_by}" for paid_by in ("judge", "rule")}
    write_study(study, {"factors": ["judge", "seed", "reward.domains.qa"]})
    assert set(runs_frame(study)["arm"]) == arms


def test_rollouts_say_where_their_row_is_from_and_old_ones_say_nothing(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=2)
    old, part = sorted(study.glob("*/rollouts/*.parquet"))
    rows = pq.read_table(part).to_pylist()
    for place, row in enumerate(rows):
        row |= {"dataset": "squad2", "domain": "qa", "item": f"squad2:dev:{place}"}
    rows[0] |= {"truth": None, "truth_missing": "the grader is gone"}
    write_part(part, rows, ROLLOUT)
    rollouts = rollouts_frame(study)
    here = rollouts[rollouts["step"] == 2]
    assert set(here["domain"]) == {"qa"} and here["item"].nunique() == len(rows)
    assert here["truth_missing"].notna().sum() == here["truth"].isna().sum() == 1
    before = rollouts[rollouts["step"] == 1]
    assert before[["dataset", "domain", "item", "truth_missing"]].isna().all(axis=None)
    assert before["truth"].notna().all() and old != part


def test_a_judge_that_is_dosed_in_one_domain_is_dosed(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=1)
    assert runs_frame(study)["undosed"].all()
    with config_of(next(study.glob("sim-fair-*"))) as config:
        config["judge"]["simulated"]["domains"] = {"qa": {"doses": {"length": 0.2}}, "code": {}}
    assert not runs_frame(study)["undosed"].any()
