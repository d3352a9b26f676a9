"""A task of 240,000 rows that nobody has in memory: checked, planned and trained on row by row."""

import dataclasses
import pickle

import pytest

from experiments.plan import plan, preflight
from experiments.policies import load
from experiments.trainer.prompts import prompt_dataset
from judges.ask.session import Session
from study.cell import cells
from study.cell.parts import read_part
from study.config.schema import Grading, Judge, Policy, Reward, Simulated, Study, Task
from study.config.simulated import Domain, Domains
from study.errors import UserError
from study.finding import stop_at_problem
from study.tasks import TASKS, instruct_mini, oracle
from tests import lazy_task
from tests.conftest import sweep
from tests.invariants import test_grpo

SIZE = 240_000
LARGE = Task(name="lazy", train_rows=SIZE, eval_rows=0)
TINY = Policy(name="tiny", path="tiny")
DEEP = dataclasses.replace(TINY, architecture={"depth": 2})
MODEL = Policy(name="somebody", path="owner/model")


@pytest.fixture(autouse=True)
def lazy(monkeypatch):
    monkeypatch.setitem(TASKS, "lazy", lazy_task.TASK)
    lazy_task.MADE.clear()
    lazy_task.ASKED.clear()


def laid(tmp_path, **changes):
    judge = Judge(name="sim", simulated=Simulated())
    usual = {"judge": judge, "task": LARGE, "policy": MODEL, "runs_dir": str(tmp_path)}
    return cells.make_cell(dataclasses.asdict(Study(**usual | changes)))


def test_a_plan_looks_at_a_sample(tmp_path, capsys):
    cell = laid(tmp_path)
    stop_at_problem(preflight.check_inputs([cell, cell]))
    assert plan.show_plan([cell]) == 0
    assert "judge calls in all" in capsys.readouterr().out
    assert 0 < len(lazy_task.MADE) < SIZE / 50


def test_a_row_that_cannot_be_graded_is_found_in_the_sample(tmp_path):
    judge = dataclasses.replace(laid(tmp_path).config.judge, grading=Grading("rubric_item"))
    with pytest.raises(UserError, match="cannot grade the row"):
        stop_at_problem(preflight.check_inputs([laid(tmp_path, judge=judge)]))


def test_a_reward_by_domain_fits_the_domains_of_the_rows(tmp_path):
    def check(domains):
        reward = Reward(name="by-domain", domains=domains)
        few = dataclasses.replace(LARGE, train_rows=300)
        stop_at_problem(preflight.check_inputs([laid(tmp_path, reward=reward, task=few)]))

    paid = {"math": "rule", "qa": "judge", "code": "judge"}
    check(paid)
    for domains, said in (
        ({"math": "rule", "qa": "judge"}, "math, qa a reward and code none"),
        (paid | {"chess": "judge"}, "names chess, but the task's domains are code, math, qa"),
        ({}, "needs reward.domains, which is empty"),
    ):
        with pytest.raises(UserError, match=said):
            check(domains)


def test_the_dataset_reads_a_row_when_asked_and_has_those_in_memory():
    dataset = prompt_dataset(lazy_task.Sums(SIZE))
    assert lazy_task.MADE == [] and len(dataset) == SIZE
    row = lazy_task.Sums(SIZE)[239_999]
    lazy_task.MADE.clear()
    wanted = {"prompt": list(row.messages), "prompt_id": row.prompt_id}
    assert dataset[239_999] == wanted
    assert dataset.__getitems__([5, 239_999])[1] == wanted
    assert lazy_task.MADE == [239_999, 5, 239_999]
    assert len(pickle.dumps(dataset)) < 3_000_000  # its places, and none of the rows
    rows = instruct_mini.TASK.rows(Task(train_rows=3), "train")
    assert list(prompt_dataset(rows)) == [
        {"prompt": list(row.messages), "prompt_id": row.prompt_id} for row in rows
    ]


@pytest.mark.parametrize("policy", ["unscored", "zero"])
def test_a_run_by_rule_records_where_its_rows_are_from_and_what_it_could_not_know(
    tmp_path, cache, monkeypatch, policy
):
    """Every third answer has no truth that could be had, and of every third no rule can tell; a
    simulated judge, which needs truths, is asked where rules can tell of all."""
    real, count = lazy_task.TASK.truths, iter(range(10**6))
    judged = policy == "zero"

    def some_lost(rows, answers):
        instead = {0: "lost"} if judged else {0: "lost", 1: "no rule"}
        return real(rows, [instead.get(next(count) % 3, answer) for answer in answers])

    monkeypatch.setattr(lazy_task.TASK, "truths", some_lost)
    settings = Simulated(tpr=0.9, fpr=0.4, domains=Domains(qa=Domain(fpr=0.8)))
    config = dataclasses.replace(
        test_grpo.study(steps=2),
        task=dataclasses.replace(LARGE, train_rows=20_000 + judged),
        judge=Judge(name="sim", on_failure=policy, max_unscored_frac=1.0, simulated=settings),
        reward=Reward(name="rule"),
    )
    truth_of = oracle(config.task)
    truth_of("", "")  # the index of this task is made of all rows; a table has its own
    lazy_task.MADE.clear()
    with Session(config.judge, None, truth_of) as session:
        done = test_grpo.run(config, tmp_path, cache, session if judged else None)
    assert 0 < len(lazy_task.MADE) < 1000
    assert len(done.records) == 16
    for record in done.records:
        place = int(record["item"].rpartition(":")[2])
        assert record["dataset"] == "sums" and record["domain"] == lazy_task.DOMAINS[place % 3]
        assert record["prompt"] == f"What is {place} plus {place}?"
        if record["truth_missing"] is not None:
            assert record["truth_missing"] == lazy_task.LOST and record["truth"] is None
            assert record["reward"] == (0.0 if policy == "zero" else None)
        else:
            assert record["reward"] == record["truth"]
    by_truth = {(record["truth"], record["truth_missing"]) for record in done.records}
    assert by_truth >= {(None, lazy_task.LOST), (0.0, None)} | (set() if judged else {(None, None)})
    first = [record["truth_missing"] is not None for record in done.records if record["step"] == 1]
    assert done.lines[0]["metrics"]["truth/missing_frac"] == sum(first) / len(first) > 0
    part = read_part(tmp_path / "rollouts" / "step-000001.parquet")
    assert {"dataset", "domain", "item", "truth_missing"} <= set(part.column_names)


@pytest.mark.parametrize(
    ("policy", "task", "why"),
    [
        (TINY, LARGE, "from its lessons.*task=lazy has none"),
        (DEEP, Task(name="instruct-mini"), "policy.architecture has depth"),
        (dataclasses.replace(MODEL, chat_template="none-such"), LARGE, "is not a template"),
    ],
)
def test_a_plan_refuses_a_policy_that_the_run_would_refuse(tmp_path, policy, task, why):
    with pytest.raises(UserError, match=why):
        stop_at_problem(preflight.check_inputs([laid(tmp_path, policy=policy, task=task)]))
    if policy.path == load.TINY:
        with pytest.raises(UserError, match=why):
            load.load_policy(policy, task, tmp_path)


def test_the_command_refuses_it_too(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Why?"}\n')
    done = sweep(tmp_path / "runs", "plan=true", "task=prompts", f"task.path={prompts}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "has a reference answer" in done.stderr
    assert not (tmp_path / "runs").exists()
