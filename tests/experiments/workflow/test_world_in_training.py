"""A small study of programs, trained for real: what its records hold, and that it can go on."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from experiments.train import run_cell
from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.cell.records import CALL, CALLS, EVALUATIONS
from study.programs.endings import Ending
from study.rewards import compose
from study.tasks import oracle
from tests.conftest import RECORDS_ONLY, sweep

PAID = {"attempts", "cost_usd"}
"""What a store spares."""
TIMED = {"latency_s", "from_cache", "attempts", "cost_usd"}


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """One cell of four steps, a checkpoint after each second, held-out rows before and after."""
    runs_dir = tmp_path_factory.mktemp("runs")
    arguments = (
        *("experiment=workflow-quickstart", *RECORDS_ONLY, "study=programs", "seed=0"),
        *("judge=sim-workflow-verbose", "trainer.steps=4", "trainer.save_steps=2"),
        *("trainer.eval_steps=4", "trainer.max_completion_length=24", "task.eval_rows=12"),
        "trainer.eval_samples=1",
        *("policy.warmup.steps=60", "policy.warmup.batch=16", "trainer.prompts_per_step=4"),
        *("trainer.micro_batch=16", "workflow.buffer.shots=1", "workflow.repair=true"),
    )
    done = sweep(runs_dir, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (runs_dir / "programs").glob("sim-*")
    return folder


def rows(cell, kind):
    return [row for part in CellFolder(cell).parts(kind) for row in read_part(part).to_pylist()]


def without(records, names):
    return [{key: value for key, value in row.items() if key not in names} for row in records]


def test_every_program_has_one_outcome_and_only_those_that_ran_have_a_verdict(cell):
    rollouts = rows(cell, "rollouts")
    assert len(rollouts) == 4 * 4 * 4
    assert {row["outcome"] for row in rollouts} <= set(Ending)
    for row in rollouts:
        ran = row["outcome"] == Ending.OK
        assert (row["answer"] is not None) == ran == (row["judge_score"] is not None)
        assert (row["truth"] is not None) == ran
        assert row["reward"] == 0.0 or ran
    judged = {row["rollout_id"] for row in rows(cell, "verdicts")}
    assert judged == {row["rollout_id"] for row in rollouts if row["outcome"] == Ending.OK}


def test_each_operator_call_is_a_row(cell):
    calls = rows(cell, CALLS)
    assert pq.read_schema(CellFolder(cell).parts(CALLS)[0].path).names == list(CALL)
    for row in rows(cell, "rollouts"):
        mine = [call for call in calls if call["rollout_id"] == row["rollout_id"]]
        if row["repair"] is None:
            assert len(mine) == row["feature/calls"]
        assert [call["call"] for call in mine] == list(range(len(mine)))


def test_the_recorded_reward_is_composed_again_from_the_record(cell):
    config = load_cell(CellFolder(cell)).config
    row_of = oracle(config.task).row_of
    for part in CellFolder(cell).parts("rollouts"):
        records = read_part(part).to_pylist()
        inputs = [compose.recorded(config, row_of(each["prompt_id"]), each) for each in records]
        scores = [record["judge_score"] for record in records]
        again = compose.recompose(config, inputs, scores, 4, config.judge.on_failure)
        assert again == pytest.approx([record["reward"] for record in records])


def test_the_metrics_are_shares_of_all_programs(cell):
    rollouts = rows(cell, "rollouts")
    for line in CellFolder(cell).lines()[1:]:
        mine = [row for row in rollouts if row["step"] == line["step"]]
        ran = [row for row in mine if row["outcome"] == Ending.OK]
        metrics = line["metrics"]
        assert metrics["workflow/executed"] == len(ran) / len(mine)
        assert metrics["workflow/parse"] >= metrics["workflow/contract"]
        shares = [value for name, value in metrics.items() if name.startswith("workflow/share/")]
        assert not shares or sum(shares) == pytest.approx(1.0)


def test_held_out_rows_are_answered_by_executed_programs(cell):
    for step in (0, 4):
        text = (cell / "evaluations" / f"step-{step:06d}.jsonl").read_text()
        items = [json.loads(line) for line in text.splitlines()]
        assert len(items) == 12
        for item in items:
            assert item["outcome"] in set(Ending)
            assert item["outcome"] == "ok" or not item["correct"]


def test_held_out_programs_are_judged_and_their_cost_is_counted(cell):
    folder = cell / EVALUATIONS
    rollouts, verdicts, calls = (rows(folder, kind) for kind in ("rollouts", "verdicts", CALLS))
    assert len(rollouts) == 2 * 12 * 2
    ran = {(row["step"], row["rollout_id"]) for row in rollouts if row["outcome"] == Ending.OK}
    assert {(row["step"], row["rollout_id"]) for row in verdicts} == ran
    metrics = {line["step"]: line["metrics"] for line in CellFolder(cell).lines()}
    for step in (0, 4):
        asked = sum(row["attempts"] for row in calls if row["step"] == step)
        assert metrics[step]["cost/eval_calls"] >= asked > 0


def test_a_run_that_goes_on_is_the_run_that_was_never_stopped(cell, tmp_path):
    """As after a kill -9 between checkpoints: later steps are done again, and nobody is asked."""
    again = tmp_path / "runs" / "programs" / cell.name
    shutil.copytree(cell.parent.parent, tmp_path / "runs", dirs_exist_ok=True)
    shutil.rmtree(again / "checkpoints" / "checkpoint-4")
    (again / "DONE").unlink()
    assert run_cell(CellFolder(again)) == 0
    for kind, spared in (("rollouts", set()), ("verdicts", TIMED), (CALLS, PAID)):
        assert without(rows(again, kind), spared) == without(rows(cell, kind), spared)
    redone = [row for row in rows(again, CALLS) if row["step"] > 2]
    assert sum(row["attempts"] for row in redone) == 0
    before, after = (
        [line["metrics"].get("workflow/buffer_sha") for line in CellFolder(each).lines()]
        for each in (cell, again)
    )
    assert before == after and before[-1] is not None
