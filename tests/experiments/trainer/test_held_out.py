"""Held-out rows are scored by rule on the way, and the run is the one that it would have been."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from experiments.plan.preflight import check_held_out
from experiments.policies import checkpoints
from experiments.policies.load import trained_policy
from experiments.trainer import held_out
from experiments.trainer.held_out import summary
from experiments.trainer.world import Direct
from study.answers import answer_of
from study.cell.folder import CellFolder
from study.cell.verify import unsound
from study.config.schema import Task, Trainer
from study.errors import UserError
from study.finding import stop_at_problem
from study.tasks import TASKS, instruct_mini
from study.tasks.kind import GradedTask, grading
from study.tasks.mixed import item_row
from study.truth import Score
from study.truth.item import Item
from tests.invariants.test_grpo import TASK, run, study

STEPS = {"steps": 3, "eval_steps": 2, "keep_steps": True}


@pytest.fixture(scope="module")
def plain(tmp_path_factory, cache):
    return run(study(steps=3), tmp_path_factory.mktemp("plain"), cache)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("evaluated")
    return folder, run(study(**STEPS), folder, cache)


def items(folder, step):
    text = (folder / "evaluations" / f"step-{step:06d}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_evaluations_change_nothing_of_the_training(plain, evaluated):
    _, outcome = evaluated
    assert outcome.records == plain.records
    torch.testing.assert_close(outcome.weights, plain.weights, rtol=0, atol=0)


def test_the_first_the_last_and_every_second_step_are_evaluated(evaluated):
    folder, outcome = evaluated
    lines = {line["step"]: line["metrics"] for line in CellFolder(folder).lines()}
    assert list(lines) == [0, 1, 2, 3]
    name = "eval/instruct-mini/accuracy"
    assert [step for step, metrics in lines.items() if name in metrics] == [0, 2, 3]
    measured = {metric for metric in lines[2] if metric.startswith("eval/")}
    assert set(lines[0]) == measured | {"time/eval_s"}
    assert outcome.lines[0]["step"] == 0
    assert [part.step for part in CellFolder(folder).parts("rollouts")] == [1, 2, 3]
    assert not [sentence for sentence in unsound(CellFolder(folder)) if "rollouts" in sentence]
    kept = sorted(path.name for path in (folder / "kept").iterdir())
    assert kept == ["step-0", "step-2", "step-3"]


def test_every_evaluation_scores_the_same_rows_by_their_rules(evaluated):
    folder, _ = evaluated
    rows = instruct_mini.TASK.rows(TASK, "eval")
    for step in (0, 2, 3):
        scored = items(folder, step)
        assert [item["id"] for item in scored] == [row.prompt_id for row in rows]
        for row, item in zip(rows, scored, strict=True):
            truth = instruct_mini.TASK.truth(row, answer_of(item["completion"]) or "")
            assert (item["correct"], item["score"]) == (all(truth.checks), truth.score)
            assert item["step"] == step and item["stop"] in ("stop", "length")
        metrics = next(
            line["metrics"] for line in CellFolder(folder).lines() if line["step"] == step
        )
        mean = sum(item["score"] for item in scored) / len(scored)
        assert metrics["eval/instruct-mini/score"] == pytest.approx(mean)


def test_a_kept_policy_answers_as_it_did(evaluated, monkeypatch):
    """Loaded from its folder, and asked in transformers' own way."""
    from peft import PeftModel
    from transformers import AutoTokenizer

    folder, outcome = evaluated
    tokenizer = AutoTokenizer.from_pretrained(folder / "kept" / "step-2")
    assert tokenizer.chat_template
    trainer = outcome.trainer
    base = trainer.accelerator.unwrap_model(trainer.model).unload()
    model = PeftModel.from_pretrained(base, str(folder / "kept" / "step-2")).eval()
    for item, row in zip(items(folder, 2), instruct_mini.TASK.rows(TASK, "eval"), strict=True):
        ids = tokenizer.apply_chat_template(
            list(row.messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**ids, do_sample=False, max_new_tokens=8, pad_token_id=0)
        text = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        assert text == item["completion"]


def test_kept_policies_are_whole_and_hold_no_optimiser(evaluated):
    folder, _ = evaluated
    for path in (folder / "kept").iterdir():
        assert checkpoints.fault(path) == ""
        names = {file.name for file in path.iterdir()}
        assert "adapter_model.safetensors" in names
        assert not [name for name in names if name.startswith(checkpoints.FOR_TRAINING)]


def test_a_kept_step_is_a_policy_that_other_commands_take(evaluated, tmp_path):
    folder, _ = evaluated
    (folder / "config.yaml").write_text("policy: {path: somewhere}\n")
    for step, name in ((0, "kept/step-0"), (2, "kept/step-2"), (None, "policy")):
        (folder / "policy").mkdir(exist_ok=True)
        assert trained_policy(folder, step)[1] == folder / name
    with pytest.raises(UserError, match="this run has step-0, step-2, step-3"):
        trained_policy(folder, 9)


def test_a_resumed_run_evaluates_again_what_it_trains_again(tmp_path, cache):
    config = study(**STEPS)
    whole = run(config, tmp_path, cache)
    before = {path: path.read_bytes() for path in sorted(tmp_path.glob("evaluations/*"))}
    for step in (2, 3):  # as if it had been killed after step 1
        checkpoints.remove(tmp_path / "ck" / f"checkpoint-{step}")
    assert not (tmp_path / "ck" / "checkpoint-1").exists()  # two checkpoints are kept
    again = run(config, tmp_path, cache)
    assert again.records == whole.records
    assert {p: p.read_bytes() for p in sorted(tmp_path.glob("evaluations/*"))} == before
    assert [line["step"] for line in again.lines] == [1, 2, 3]  # step 0 was on record


def test_what_lies_after_the_checkpoint_is_taken_away(tmp_path):
    for step in (0, 4, 5, 12):
        (tmp_path / "kept" / f"step-{step}").mkdir(parents=True)
        path = tmp_path / "evaluations" / f"step-{step:06d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "kept" / ".step-6.half").mkdir()
    held_out.clear(tmp_path, 4)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-0", "step-4"]
    assert len(list((tmp_path / "evaluations").iterdir())) == 2


def test_both_ways_of_answering_agree(tmp_path, cache):
    fast = run(study(steps=1, eval_steps=1), tmp_path / "fast", cache)
    slow = run(study(steps=1, eval_steps=1, fast=False), tmp_path / "slow", cache)
    assert fast.trainer.rollout_func is not None and slow.trainer.rollout_func is None
    for step in (0, 1):
        pairs = zip(items(tmp_path / "fast", step), items(tmp_path / "slow", step), strict=True)
        if step == 0:  # later the two have been trained on rollouts of their own
            assert all(ours == theirs for ours, theirs in pairs)


def test_full_scores_of_a_task_are_on_record(tmp_path, cache, monkeypatch):
    """As those of verifiable sets: values beside the truth, and a score that could not be had."""

    class Graded(GradedTask, instruct_mini.InstructMini):
        truths = instruct_mini.InstructMini.truths

        def scores(self, rows, answers):
            right = Score(True, {"f1": 1.0}, "blue", "passed")
            wrong = Score(False, {"f1": 0.5}, None, "no_answer", "said nothing")
            return [right, wrong, None, wrong]

    monkeypatch.setitem(TASKS, "instruct-mini", Graded())
    metrics = run(study(steps=1, eval_steps=5), tmp_path, cache).lines[0]["metrics"]
    assert metrics["eval/instruct-mini/accuracy"] == pytest.approx(1 / 3)
    assert metrics["eval/instruct-mini/f1"] == pytest.approx(2 / 3)
    assert (metrics["eval/instruct-mini/n"], metrics["eval/instruct-mini/missing"]) == (4, 1)
    scored = items(tmp_path, 0)
    assert [item["outcome"] for item in scored] == [
        "passed",
        *("no_answer", "missing", "no_answer"),
    ]
    assert scored[2]["correct"] is None


def held_out_rows(rows, task, folder, monkeypatch):
    """What evaluates these rows of ``task``, without a trainer to ask."""
    monkeypatch.setattr(TASKS[task], "rows", lambda options, split: rows)
    scorer = SimpleNamespace(config=replace(study(), task=Task(name=task)), world=Direct())
    return held_out.HeldOut(None, scorer, SimpleNamespace(folder=folder), print)


def test_an_answer_that_was_cut_off_is_wrong_where_none_would_be_right(tmp_path, monkeypatch):
    """SQuAD 2.0's questions without an answer: "" is right, and no answer yet is not."""
    texts = ["<think>hm</think>", "<think>well, I wonder", "<think>hm</think> the mill"]
    fields = {"answerable": False, "prompt": "Who?", "question": "Who?"}
    item = Item("squad2:dev:0", "squad2", "qa", "dev", "", **fields)
    rows = [item_row(item, "dev")] * 2
    part = replace(item, answers=("The old mill",), answerable=True)
    evaluation = held_out_rows([*rows, item_row(part, "dev")], "mixed", tmp_path, monkeypatch)
    with grading():
        scored = evaluation._items(texts, Direct().play(evaluation.rows, texts))
    assert [line["correct"] for line in scored] == [True, False, False]
    assert [line["score"] for line in scored] == [1.0, 0.0, pytest.approx(2 / 3)]  # the F1
    assert [line["outcome"] for line in scored] == ["passed", "no_answer", "failed"]
    assert summary(scored)["eval/squad2/f1"] == pytest.approx(5 / 9)


def test_the_summary_by_hand():
    def item(dataset, domain, correct, **values):
        score = None if correct is None else float(correct)
        scored = {"correct": correct, "score": score, "values": values}
        return {"dataset": dataset, "domain": domain} | scored

    metrics = summary(
        [
            item("gsm8k", "math", True), item("gsm8k", "math", False), item("math", "math", True),
            item("squad2", "qa", False, f1=0.5), item("squad2", "qa", None),
            item("mbpp", "code", None),
        ]
    )  # fmt: skip
    expected = {
        "gsm8k": {"n": 2, "missing": 0, "accuracy": 0.5, "score": 0.5},
        "math": {"n": 1, "missing": 0, "accuracy": 1, "score": 1},
        "mbpp": {"n": 1, "missing": 1},
        "squad2": {"n": 2, "missing": 1, "accuracy": 0, "score": 0, "f1": 0.5},
        "averages": {"math": 0.75, "qa": 0, "by_dataset": 0.5, "by_domain": 0.375},
    }
    flat = {f"eval/{d}/{name}": v for d, part in expected.items() for name, v in part.items()}
    assert metrics == flat


@pytest.mark.parametrize(
    "trainer, task, words",
    [
        (Trainer(keep_steps=True), TASK, "eval_steps=0 evaluates none"),
        (Trainer(eval_steps=5), replace(TASK, eval_rows=0), "has none with task.eval_rows=0"),
    ],
)
def test_evaluations_that_cannot_be_are_refused(trainer, task, words):
    with pytest.raises(UserError, match=words):
        stop_at_problem(check_held_out(replace(study(), trainer=trainer, task=task)))


def test_a_file_can_be_evaluated_where_it_has_references(tmp_path):
    path = tmp_path / "rows.jsonl"
    task = Task(name="prompts", path=str(path))
    config = replace(study(), trainer=Trainer(eval_steps=5), task=task)
    path.write_text('{"prompt": "Why?", "split": "eval"}\n{"prompt": "When?"}\n')
    with pytest.raises(UserError, match="task=prompts has no rule truth"):
        stop_at_problem(check_held_out(config))
    path.write_text('{"prompt": "Why?", "split": "eval", "reference": "so"}\n{"prompt": "When?"}\n')
    stop_at_problem(check_held_out(config))


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_weights_that_are_spread_are_not_evaluated(kind, tmp_path):
    file = tmp_path / "accelerate.yaml"
    file.write_text(f"distributed_type: {kind}\nnum_processes: 2\n")
    config = study(eval_steps=4)
    config = replace(config, sweep=replace(config.sweep, accelerate=str(file)))
    with pytest.raises(UserError, match=rf"{kind} spreads them\. Type trainer\.eval_steps=0"):
        stop_at_problem(check_held_out(config))


def test_evaluations_that_can_be_are_not():
    stop_at_problem(check_held_out(study(eval_steps=4, keep_steps=True)))
    stop_at_problem(check_held_out(study()))
