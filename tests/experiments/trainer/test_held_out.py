"""Held-out rows on the way and the order of rows: what is drawn, kept, refused and shown."""

import json
import shutil
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from trl.trainer.utils import RepeatSampler

from experiments.plan.plan import order_lines
from experiments.plan.preflight import check_held_out
from experiments.policies import checkpoints
from experiments.policies.load import trained_policy
from experiments.trainer import held_out
from experiments.trainer.held_out import summary
from experiments.trainer.order import POSITION, Ordered
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


def test_evaluations_change_nothing_of_the_training_and_keep_whole_policies(plain, evaluated):
    _, outcome = evaluated
    assert outcome.records == plain.records
    torch.testing.assert_close(outcome.weights, plain.weights, rtol=0, atol=0)
    folder, _ = evaluated
    for path in (folder / "kept").iterdir():
        assert checkpoints.fault(path) == ""
        names = {file.name for file in path.iterdir()}
        assert "adapter_model.safetensors" in names
        assert not [name for name in names if name.startswith(checkpoints.FOR_TRAINING)]


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


def test_a_kept_step_is_a_policy_that_other_commands_take(evaluated, tmp_path):
    folder, _ = evaluated
    (folder / "config.yaml").write_text("policy: {path: somewhere}\n")
    for step, name in ((0, "kept/step-0"), (2, "kept/step-2"), (None, "policy")):
        (folder / "policy").mkdir(exist_ok=True)
        assert trained_policy(CellFolder(folder), step)[1] == folder / name
    with pytest.raises(
        UserError, match="this run has checkpoint-2, checkpoint-3, step-0, step-2, step-3"
    ):
        trained_policy(CellFolder(folder), 9)


def test_a_resumed_run_evaluates_again_what_it_trains_again(tmp_path, cache, evaluated):
    folder = shutil.copytree(evaluated[0], tmp_path / "again")
    before = {path: path.read_bytes() for path in sorted(folder.glob("evaluations/*"))}
    for step in (2, 3):  # as if it had been killed after step 1
        checkpoints.remove(folder / "checkpoints" / f"checkpoint-{step}")
    assert not (folder / "checkpoints" / "checkpoint-1").exists()  # two checkpoints are kept
    again = run(study(**STEPS), folder, cache)
    assert again.records == evaluated[1].records
    assert {p: p.read_bytes() for p in sorted(folder.glob("evaluations/*"))} == before
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
    """As those of verifiable sets: values next to the truth, and a missing score."""

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


STRIDE = 5
"""Coprime to the 16 rows of `TASK`: an order that no shuffle gives."""


class Strides:
    """Every fifth row, for ever."""

    folder = "the first folder"
    length = 10**9
    mixture = SimpleNamespace(domains={})

    def __init__(self, options, seed):
        self.size, self.seed = options.train_rows, seed

    def rows(self, start, count):
        stop = min(start + count, self.length)
        return [(self.seed + STRIDE * n) % self.size for n in range(start, stop)]

    def check(self, length):
        if length > self.length:
            raise UserError(f"{length} rows are too many")

    def notes(self, steps, prompts_per_step):
        return [f"{steps} steps of {prompts_per_step}"]

    def state(self, position, ahead):
        return {"position": position, "from": self.folder, "next": self.rows(position, ahead)}


@pytest.fixture
def strided(monkeypatch):
    kind = type(instruct_mini.TASK)
    monkeypatch.setattr(kind, "order", lambda self, options, seed: Strides(options, seed))
    monkeypatch.setattr(Strides, "folder", "the first folder")


def drawn(outcome):
    """Prompt ids of each step's groups."""
    rows = [r for r in outcome.records if r["member"] == 0]
    return [r["prompt_id"] for r in sorted(rows, key=lambda r: (r["step"], r["group"]))]


def test_the_shape_is_that_of_trl():
    """With TRL's own permutation for an order, every index comes at TRL's place."""
    data = Dataset.from_dict({"x": range(12)})
    trl = RepeatSampler(data, mini_repeat_count=4, batch_size=3, repeat_count=2, seed=7)
    stream = list(trl)
    permutation = stream[::4][:3] + stream[24::4][:3] + stream[48::4][:3] + stream[72::4][:3]

    class Permutation(Strides):
        def __init__(self):
            pass

        def rows(self, start, count):
            return permutation[start : start + count]

    ours = Ordered(Permutation(), steps=4, prompts=3, group_size=4, repeats=2)
    assert sorted(permutation) == list(range(12))
    assert list(ours) == stream and len(ours) == len(trl) == len(stream)


def test_a_run_draws_what_the_order_says(strided, tmp_path, cache, capsys):
    outcome = run(study(steps=3), tmp_path, cache)
    rows = instruct_mini.TASK.rows(TASK, "train")
    expected = [rows[STRIDE * n % 16].prompt_id for n in range(6)]
    assert sorted(drawn(outcome)[:2]) == sorted(expected[:2])
    assert drawn(outcome) == expected
    assert "3 steps of 2" in capsys.readouterr().out


def test_a_task_without_an_order_is_drawn_by_trl_as_ever(tmp_path, cache):
    outcome = run(study(), tmp_path, cache)
    assert isinstance(outcome.trainer._get_train_sampler(), RepeatSampler)
    sampler = RepeatSampler(range(16), mini_repeat_count=4, batch_size=2, repeat_count=1, seed=0)
    rows = instruct_mini.TASK.rows(TASK, "train")
    assert drawn(outcome) == [rows[index].prompt_id for index in list(sampler)[::4][:4]]
    assert not list(tmp_path.rglob(POSITION))


def test_a_checkpoint_notes_its_position_and_the_policy_does_not(strided, tmp_path, cache):
    run(study(steps=2), tmp_path, cache)
    checkpoint = tmp_path / "checkpoints" / "checkpoint-2"
    noted = json.loads((checkpoint / POSITION).read_text())
    assert noted == {"position": 4, "from": "the first folder", "next": [4, 9]}
    assert POSITION in checkpoints.read_manifest(checkpoint)["files"]
    assert checkpoints.fault(checkpoint) == ""
    checkpoints.save_policy(CellFolder(tmp_path), 2)
    assert not (tmp_path / "policy" / POSITION).exists()


def test_a_resumed_run_goes_on_where_the_order_was(strided, tmp_path, cache):
    config = study(steps=4, micro_batch=2, save_steps=2)
    whole = run(config, tmp_path, cache)
    checkpoints.remove(tmp_path / "checkpoints" / "checkpoint-4")
    again = run(config, tmp_path, cache, resume=2)
    assert len(drawn(again)) == 8 and again.trainer.state.global_step == 4
    assert again.records == whole.records


def test_another_order_is_refused(strided, tmp_path, cache, monkeypatch):
    outcome = run(study(steps=2), tmp_path, cache)
    checkpoint = tmp_path / "checkpoints" / "checkpoint-1"
    outcome.trainer.check_order(checkpoint)
    monkeypatch.setattr(Strides, "folder", "prepared anew")
    words = r"checkpoint-1 has a different order.*its from is the first folder, and now prepared"
    with pytest.raises(UserError, match=words):
        outcome.trainer.learn(checkpoint)
    (checkpoint / POSITION).unlink()
    with pytest.raises(UserError, match="its position is None, and now 2"):
        outcome.trainer.check_order(checkpoint)


def test_a_run_that_is_longer_than_the_order_is_refused(strided, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(Strides, "length", 3)
    with pytest.raises(UserError, match="4 rows are too many"):
        run(study(), tmp_path, cache)


def test_the_plan_says_what_is_to_be_known_of_an_order_once(strided):
    cells = [
        SimpleNamespace(config=config, data={"task": asdict(config.task), "trainer": steps})
        for steps, config in ((2, study()), (2, study()), (3, study(steps=3)))
    ]
    assert order_lines(cells) == ["2 steps of 2", "3 steps of 2"]


def test_the_plan_is_silent_where_trl_draws():
    assert order_lines([SimpleNamespace(config=study(), data={"task": {}, "trainer": {}})]) == []
