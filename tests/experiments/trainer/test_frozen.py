"""Held-out rows are answered greedily and drawn, by common numbers, and every judge scores them;
log-probabilities under the initial policy are on record at beta = 0 too."""

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from analysis.records.runs import REFERENCE
from experiments.plan.memory import Shape, step_memory
from experiments.plan.preflight import check_held_out
from experiments.trainer.rollouts import common_uniforms
from experiments.trainer.world import Direct
from judges.ask.budget import Budget, BudgetSpent, Spent, evaluations_before, spent_before
from judges.ask.replies import Store
from judges.ask.session import Session
from study import tasks
from study.answers import answer_of
from study.cell.folder import CellFolder
from study.cell.parts import parts, read_part
from study.cell.records import COMPONENT, EVALUATIONS
from study.config.compose import load_judge
from study.config.schema import Cost, Policy, Study, Trainer
from study.errors import UserError
from study.finding import stop_at_problem
from study.rows import Truth
from study.tasks import instruct_mini, oracle
from study.tasks.kind import GradedTask
from study.truth import Score
from tests.invariants.test_grpo import POLICY, TASK, run, study

SAMPLES = 2
FROZEN = {"steps": 3, "eval_steps": 2, "eval_samples": SAMPLES}
START = f"{COMPONENT}reference_logprob"


def trained(config, folder: Path, cache: Path, judge="sim-noisy", shadow="sim-verbose", **scoring):
    """A run whose acting and shadow judge are simulated ones behind sessions of their own."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(folder / "verdicts.db"))
        truths = oracle(config.task)
        acting, other = (
            stack.enter_context(Session(load_judge(name), store, truths))
            for name in (judge, shadow)
        )
        return run(config, folder, cache, acting, shadows=[other], **scoring)


def frozen(folder: Path, step: int, kind: str = "rollouts") -> list[dict]:
    return read_part(folder / EVALUATIONS / kind / f"step-{step:06d}.parquet").to_pylist()


@pytest.fixture(scope="module")
def without(tmp_path_factory, cache):
    return trained(study(steps=3, reference=0.0), tmp_path_factory.mktemp("without"), cache)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("evaluated")
    budget = Budget(Cost(max_calls=10**6), [])
    return folder, trained(study(**FROZEN), folder, cache, budget=budget), budget


def test_a_run_trains_the_same_with_frozen_evaluation_and_reference(without, evaluated):
    _, outcome, _ = evaluated
    torch.testing.assert_close(outcome.weights, without.weights, rtol=0, atol=0)
    assert all(START not in row for row in without.records)
    records = [{k: v for k, v in row.items() if k != START} for row in outcome.records]
    assert records == without.records


def test_every_step_answers_the_same_rows_greedily_and_drawn(evaluated):
    folder, _, _ = evaluated
    rows = instruct_mini.TASK.rows(TASK, "eval")
    assert [part.step for part in parts(folder / EVALUATIONS / "rollouts")] == [0, 2, 3]
    for step in (0, 2, 3):
        rollouts = frozen(folder, step)
        assert [(row["group"], row["member"]) for row in rollouts] == [
            (group, member) for group in range(len(rows)) for member in range(1 + SAMPLES)
        ]
        lines = (folder / EVALUATIONS / f"step-{step:06d}.jsonl").read_text().splitlines()
        greedy = [json.loads(line)["completion"] for line in lines]
        assert [row["completion"] for row in rollouts[:: 1 + SAMPLES]] == greedy
        for rollout in rollouts:
            row = rows[rollout["group"]]
            assert rollout["prompt_id"] == row.prompt_id and rollout["step"] == step
            assert rollout["answer"] == answer_of(rollout["completion"])
            truth = instruct_mini.TASK.truth(row, rollout["answer"] or "").score
            assert rollout["truth"] == pytest.approx(truth)
            assert rollout["reward"] is None and rollout["stop"] in ("stop", "length")
    drawn = [row["completion"] for row in frozen(folder, 0) if row["member"]]
    assert len(set(drawn)) > len(rows)


def test_own_judge_and_shadow_score_every_answer(evaluated):
    folder, _, _ = evaluated
    for step in (0, 2, 3):
        rollouts, verdicts = frozen(folder, step), frozen(folder, step, "verdicts")
        ids = [row["rollout_id"] for row in rollouts]
        for judge, role in (("sim-noisy", "acting"), ("sim-verbose", "shadow")):
            mine = [row for row in verdicts if (row["judge"], row["role"]) == (judge, role)]
            assert [row["rollout_id"] for row in mine] == ids
            if role == "acting":
                assert [row["score"] for row in mine] == [row["judge_score"] for row in rollouts]


def test_common_numbers_give_common_answers_while_nothing_is_learned(tmp_path, cache, evaluated):
    """At a learning rate of 0 every step answers alike, under any judge; seeds differ."""
    still = trained(study(**FROZEN, learning_rate=0.0), tmp_path, cache, "sim-fair", "sim-strict")
    assert still.lines[0]["step"] == 0
    first = [row["completion"] for row in frozen(tmp_path, 0)]
    assert first == [row["completion"] for row in frozen(tmp_path, 3)]
    assert first == [row["completion"] for row in frozen(evaluated[0], 0)]


def test_numbers_depend_on_seed_row_and_draw_alone():
    numbers = common_uniforms(3, ["a 0", "a 1", "b 0"], 5)
    assert (common_uniforms(3, ["b 0", "a 0"], 5) == numbers[[2, 0]]).all()
    assert (common_uniforms(3, ["a 1"], 3) == numbers[1, :3]).all()
    assert len({*map(tuple, numbers), *map(tuple, common_uniforms(4, ["a 0"], 5))}) == 4


def test_what_an_evaluation_costs_is_in_metrics_and_budget(evaluated):
    folder, _, budget = evaluated
    answers = len(frozen(folder, 0))
    lines = {line["step"]: line["metrics"] for line in CellFolder(folder).lines()}
    assert [step for step, metrics in lines.items() if "cost/eval_calls" in metrics] == [0, 2, 3]
    assert 0 < lines[0]["cost/eval_calls"] <= 2 * answers
    assert lines[0]["cost/eval_usd"] == 0.0
    asked = [lines[step]["cost/eval_calls"] for step in (0, 2, 3)]
    assert [spent.calls for spent in evaluations_before(CellFolder(folder))] == asked
    rows = [
        row for part in CellFolder(folder).parts("verdicts") for row in read_part(part).to_pylist()
    ]
    steps = sum(row["attempts"] for row in rows if not row["from_cache"])
    assert (
        spent_before(CellFolder(folder))[0] == budget.spent == Spent(steps + int(sum(asked)), 0.0)
    )
    assert budget.last_evaluation.calls == asked[-1]


class Asks(Direct):
    """A world that asks an executor once for each answer, at a cent."""

    answers_early = False
    calls = 0

    def play(self, rows, texts):
        self.calls += len(texts)
        call = {"call": 0, "operator": "custom", "ok": True, "attempts": 1, "cost_usd": 0.01}
        return [
            dataclasses.replace(each, calls=[call | {"model_calls": 1}])
            for each in super().play(rows, texts)
        ]


@pytest.mark.parametrize("samples", [0, 2])
def test_what_an_executor_costs_is_counted_too(samples, tmp_path, cache):
    config = study(steps=2, eval_steps=2, eval_samples=samples)
    budget = Budget(Cost(max_usd=10.0), [])
    trained(config, tmp_path, cache, world=Asks(), budget=budget)
    answers = TASK.eval_rows * (1 + samples)
    for step in (0, 2):
        metrics = next(
            line["metrics"] for line in CellFolder(tmp_path).lines() if line["step"] == step
        )
        assert metrics["cost/eval_usd"] == pytest.approx(0.01 * answers)
        assert metrics["cost/eval_calls"] >= answers
        assert not samples or len(frozen(tmp_path, step, "calls")) == answers
    total, last = spent_before(CellFolder(tmp_path))
    assert total.usd == budget.spent.usd == pytest.approx(0.01 * (2 * 8 + 2 * answers))
    assert total.calls == budget.spent.calls
    assert last.usd == pytest.approx(0.01 * 8), "the last step's own, without the evaluation"


def test_a_judge_that_drifts_says_the_same_in_training(tmp_path, cache):
    """What it says depends on how many verdicts came before, and evaluations are none of them."""
    judge = load_judge("sim-fair")
    drifts = dataclasses.replace(judge.simulated, drift_per_1000=20.0)
    drifting = dataclasses.replace(judge, simulated=drifts)
    outcomes = []
    for name, settings in (("with", FROZEN), ("without", {"steps": 3})):
        config = study(**settings)
        with Session(drifting, None, oracle(config.task)) as session:
            outcomes.append(run(config, tmp_path / name, cache, session))
    assert outcomes[0].records == outcomes[1].records
    scores = [
        [row["judge_score"] - row["truth"] for row in frozen(tmp_path / "with", step)]
        for step in (0, 2, 3)
    ]
    middle = [sorted(each)[len(each) // 2] for each in scores]
    assert middle[0] < middle[1] < middle[2]


def test_missing_verdicts_of_an_evaluation_are_missing(tmp_path, cache):
    trained(study(**FROZEN | {"steps": 1}), tmp_path, cache, shadow="sim-flaky")
    verdicts = [row for row in frozen(tmp_path, 0, "verdicts") if row["role"] == "shadow"]
    lost = [row for row in verdicts if row["outcome"] != "scored"]
    assert lost and all(row["score"] is None for row in lost)


def test_transformers_own_way_leaves_the_training_as_it_was_too(tmp_path, cache):
    slow = {"fast": False, "steps": 1}
    plain_run = trained(study(**slow, reference=0.0), tmp_path / "plain", cache)
    both = trained(study(**slow, eval_steps=1, eval_samples=2), tmp_path / "both", cache)
    torch.testing.assert_close(both.weights, plain_run.weights, rtol=0, atol=0)
    assert len(frozen(tmp_path / "both", 1)) == 3 * TASK.eval_rows
    assert any(row[START] is not None for row in both.records)


def test_a_resumed_run_evaluates_to_the_same_records(tmp_path, cache, evaluated):
    """From the checkpoint of step 2, with what a kill left of a later evaluation in the way."""
    folder = shutil.copytree(evaluated[0], tmp_path / evaluated[0].name)  # parts hold its name
    before = {step: frozen(folder, step) for step in (0, 2, 3)}
    assert [line["step"] for line in trained(study(**FROZEN), folder, cache, resume=2).lines] == [3]
    assert {step: frozen(folder, step) for step in (0, 2, 3)} == before


@pytest.mark.parametrize("in_full", [False, True])
def test_the_rules_are_run_once_for_each_answer(in_full, tmp_path, cache, monkeypatch):
    asked = []

    def note(rows, answers):
        asked.append({(row.prompt_id, each) for row, each in zip(rows, answers, strict=True)})

    class Ruled(instruct_mini.InstructMini):
        def truths(self, rows, answers):
            note(rows, answers)
            return super().truths(rows, answers)

    class Graded(GradedTask, instruct_mini.InstructMini):
        def scores(self, rows, answers):
            note(rows, answers)
            truths = instruct_mini.TASK.truths(rows, answers)
            return [Score(truth.right, {"f1": truth.score}) for truth in truths]

        def truths_of(self, rows, answers, scores):
            return [Truth(score.values["f1"]) for score in scores]

    monkeypatch.setitem(tasks.TASKS, "instruct-mini", Graded() if in_full else Ruled())
    trained(study(steps=1, eval_steps=1, eval_samples=SAMPLES), tmp_path, cache)
    greedy, drawn = set(), set()
    for row in frozen(tmp_path, 0):
        (drawn if row["member"] else greedy).add((row["prompt_id"], row["answer"]))
    assert asked[:2] == [greedy, drawn - greedy]


def test_settings_and_steps_without_room_are_refused():
    with pytest.raises(UserError, match=r"eval_steps=0 evaluates none.*trainer\.eval_steps=2, or"):
        stop_at_problem(check_held_out(study(eval_samples=3)))
    stop_at_problem(check_held_out(study(eval_steps=4, eval_samples=3)))
    budget = Budget(Cost(max_calls=100), [], (Spent(50), Spent(10)), Spent(45))
    budget.check()
    with pytest.raises(BudgetSpent, match=r"last step and evaluation took 55\."):
        budget.check(evaluates=True)


FULL = dataclasses.replace(POLICY, lora=None)


@pytest.mark.parametrize(
    ("policy", "fast"),
    [
        pytest.param(POLICY, True, id="adapter"),
        pytest.param(FULL, False, id="all weights, slow"),
        pytest.param(POLICY, False, marks=pytest.mark.long, id="adapter, slow"),
        pytest.param(FULL, True, marks=pytest.mark.long, id="all weights"),
    ],
)
def test_it_is_that_of_the_initial_weights(policy, fast, tmp_path, cache):
    """The first step is drawn from them, so that both log-probabilities agree; later ones are what
    the initial weights say by hand."""
    config = study(fast=fast, steps=3, micro_batch=4, reference=1.0)
    config = dataclasses.replace(config, policy=policy)
    trained = run(config, tmp_path, cache)
    first = [row for row in trained.records if row["step"] == 1]
    sums = [row["logprob_sum"] for row in first]
    assert [row[REFERENCE] for row in first] == pytest.approx(sums, abs=1e-4)
    later = [row for row in trained.records if row["step"] == 3]
    assert max(abs(row[REFERENCE] - row["logprob_sum"]) for row in later) > 0.01
    model, tokenizer = trained.trainer.model, trained.trainer.processing_class
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(trained.start[name])
    for row, ids in zip(later, trained.ids[2], strict=True):
        messages = [{"role": "user", "content": row["prompt"]}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        text = torch.tensor([[*prompt, *ids]])
        with torch.no_grad():
            logits = model(text).logits[0, len(prompt) - 1 : -1] / 0.7
        by_hand = logits.log_softmax(-1).gather(-1, text[0, len(prompt) :, None]).sum().item()
        assert row[REFERENCE] == pytest.approx(by_hand, abs=1e-3)


def test_a_share_of_the_groups_is_measured(tmp_path, cache):
    """Half of two groups is the first one, and what is measured is what all would have been."""
    half = run(study(), tmp_path / "half", cache)
    whole = run(study(reference=1.0), tmp_path / "whole", cache)
    for row, other in zip(half.records, whole.records, strict=True):
        if row["group"] == 0:
            assert row[REFERENCE] == pytest.approx(other[REFERENCE], abs=1e-4)
        else:
            assert row[REFERENCE] is None and other[REFERENCE] is not None


def test_training_is_the_same_without_it(tmp_path, cache):
    config = dataclasses.replace(study(), policy=FULL)
    off = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, reference=0.0))
    kept, left_out = run(config, tmp_path / "on", cache), run(off, tmp_path / "off", cache)
    assert all(REFERENCE not in row for row in left_out.records)
    for row, other in zip(kept.records, left_out.records, strict=True):
        assert {name: value for name, value in row.items() if name != REFERENCE} == other
    torch.testing.assert_close(kept.weights, left_out.weights, rtol=0, atol=0)


def test_a_penalised_run_has_trls_own(tmp_path, cache):
    """At beta > 0 TRL asks the initial policy itself, and says the same."""
    ours = run(study(learning_rate=0.0, beta=0.0, reference=1.0), tmp_path / "ours", cache)
    trls = run(study(learning_rate=0.0, beta=0.1), tmp_path / "trls", cache)
    theirs = [row[REFERENCE] for row in trls.records]
    assert [row[REFERENCE] for row in ours.records] == pytest.approx(theirs, abs=1e-4)


def test_the_copy_of_all_weights_is_counted():
    shape = Shape(2, 64, 128, 64, 64, 1000, True)
    policy = Policy(path="x", lora=None)
    with_copy, without = (
        step_memory(shape, Study(policy=policy, trainer=Trainer(reference=kept)))["weights"]
        for kept in (0.5, 0.0)
    )
    assert with_copy == 2 * without
