"""What the trainer records is what it did, however a step is cut up; what TRL has to keep to."""

import math
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow.dataset as ds
import pytest
import torch
from transformers import set_seed

from experiments.policies.checkpoints import newest
from experiments.policies.load import load_policy
from experiments.trainer.grpo import grpo_config, make_trainer
from experiments.trainer.scorer import Scorer
from experiments.trainer.world import Direct
from study.cell.folder import CellFolder
from study.cell.records import Recorder
from study.config.schema import Judge, Lora, Policy, Study, Task, Trainer
from study.errors import UserError
from study.tasks import TASKS, oracle
from study.verdict import Outcome, Verdict

POLICY = Policy(
    name="tiny",
    path="tiny",
    lora=Lora(r=4, alpha=8),
    architecture={"hidden_size": 32, "layers": 1, "heads": 2, "intermediate_size": 64},
)
TASK = Task(name="instruct-mini", train_rows=16, eval_rows=4)


class LengthJudge:
    """Stands where a session stands: scores an answer by its characters, fails on every fifth."""

    judge = Judge(name="length")
    calls = 0
    hits = 0

    @contextmanager
    def batch(self, group_size):
        yield self

    def votes(self, items):
        return [[self.verdict(i, answer)] for i, (_, answer) in enumerate(items)]

    def submit(self, items):
        """Every fifth of a step fails: that depends on the order, so `votes` asks about all."""

    def stop_if_refused(self):
        """Nobody refuses it."""

    def verdict(self, index, answer):
        missing = index % 5 == 4
        return Verdict(
            judge_id="length",
            judge="length",
            grading="none",
            grading_version="1",
            prompt_sha="",
            outcome=Outcome.timeout if missing else Outcome.scored,
            score=None if missing else len(answer) / 200,
            reason="late" if missing else "",
        )


class Keeps(Scorer):
    """A scorer that keeps the token ids of each step's completions."""

    def __call__(self, prompts, completions, completion_ids, *args, **kwargs):
        self.ids = [*getattr(self, "ids", []), completion_ids]
        return super().__call__(prompts, completions, completion_ids, *args, **kwargs)


def study(**trainer):
    settings = {
        "steps": 2, "prompts_per_step": 2, "group_size": 4, "micro_batch": 8,
        "max_completion_length": 8, "learning_rate": 1e-2, "temperature": 0.7, "save_steps": 1,
    }  # fmt: skip
    return Study(policy=POLICY, task=TASK, trainer=Trainer(**(settings | trainer)))


def run(config, folder, cache, acting=None, resume=0, **scoring):
    """Train ``config`` in ``folder``; (records by id, trained adapter weights, base model).

    ``acting`` and ``scoring`` are the scorer's; without them a `LengthJudge` scores. ``resume`` is
    the step of a checkpoint to go on from.
    """
    rows = TASKS[config.task.name].rows(config.task, "train")
    model, tokenizer = load_policy(POLICY, TASK, cache)
    recorder = Recorder(folder, resume)
    scorer = Keeps(config, oracle(config.task), acting or LengthJudge(), **scoring)
    scorer.on_missing = recorder.write_missing
    lines = []
    set_seed(config.seed)
    trainer = make_trainer(
        config, model, tokenizer, rows, scorer, recorder, CellFolder(folder), lines.append
    )
    start = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.learn(folder / "checkpoints" / f"checkpoint-{resume}" if resume else None)
    weights = {n: p.detach() for n, p in trainer.model.named_parameters() if p.requires_grad}
    table = ds.dataset(folder / "rollouts", format="parquet").to_table().to_pylist()
    records = sorted(table, key=lambda row: row["rollout_id"])
    return SimpleNamespace(
        records=records,
        weights=weights,
        start=start,
        lines=lines,
        trainer=trainer,
        ids=getattr(scorer, "ids", []),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    return run(study(), tmp_path_factory.mktemp("whole"), cache)


class Shows(Direct):
    """A world whose policy is shown more than the row."""

    prompts = True

    def prompt_for(self, row, learning=True):
        return ({"role": "system", "content": "name some words"}, *row.messages)


@pytest.mark.parametrize("world", [Direct(), Shows()], ids=["row", "more"])
def test_recorded_logprob_is_that_of_the_sampling_distribution(world, tmp_path, cache):
    """Recomputed from the initial weights, with the temperature, for the first step's rollouts: of
    the very prompt that the policy was shown."""
    run_of = run(study(), tmp_path, cache, world=world)
    model, tokenizer = run_of.trainer.model, run_of.trainer.processing_class
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(run_of.start[name])
    rows = {row.prompt_id: row for row in TASKS[TASK.name].rows(TASK, "train")}
    for record, text in zip(run_of.records[:8], run_of.ids[0], strict=True):
        messages = list(world.prompt_for(rows[record["prompt_id"]]))
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        assert len(text) == record["tokens"]
        ids = torch.tensor([[*prompt, *text]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1] / 0.7
        by_hand = logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None]).sum().item()
        assert record["logprob_sum"] == pytest.approx(by_hand, abs=1e-3)


def test_recorded_advantages_follow_from_recorded_rewards(whole):
    for step in (1, 2):
        for group in (0, 1):
            members = [r for r in whole.records if (r["step"], r["group"]) == (step, group)]
            assert [r["member"] for r in members] == [0, 1, 2, 3]
            assert len({r["prompt_id"] for r in members}) == 1
            scored = [r["reward"] for r in members if r["reward"] is not None]
            mean = sum(scored) / len(scored)
            sd = math.sqrt(sum((x - mean) ** 2 for x in scored) / (len(scored) - 1))
            for r in members:
                missing = r["reward"] is None
                expected = 0.0 if missing else (r["reward"] - mean) / (sd + 1e-4)
                assert r["advantage"] == pytest.approx(expected, abs=1e-4)


def test_a_missing_verdict_is_on_record_and_not_a_number(whole):
    missing = [row for row in whole.records if row["reward"] is None]
    assert {row["rollout_id"][-1] for row in missing} == {"4"}
    assert all(row["judge_score"] is None and row["truth"] is not None for row in missing)
    assert whole.lines[0]["metrics"]["judge/unscored/timeout"] == 1 / 8


def test_cutting_a_step_into_micro_batches_changes_nothing(whole, tmp_path, cache):
    cut = run(study(micro_batch=2), tmp_path, cache)
    assert [r["completion"] for r in cut.records] == [r["completion"] for r in whole.records]
    for name, weight in whole.weights.items():
        torch.testing.assert_close(cut.weights[name], weight, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_counts_when_complete_and_a_micro_batch_divides(whole, tmp_path):
    trained, unfinished = CellFolder(tmp_path / "trained"), CellFolder(tmp_path / "unfinished")
    trained.path.mkdir()
    trained.checkpoints.symlink_to(whole.trainer.args.output_dir)
    path, step = newest(trained)
    assert step == 2 and path is not None and path.name == "checkpoint-2"
    (unfinished.checkpoints / "checkpoint-7").mkdir(parents=True)
    assert newest(unfinished) == (None, 0)
    with pytest.raises(UserError, match="micro_batch=3 does not divide the 8 rollouts"):
        grpo_config(study(micro_batch=3), tmp_path)


TINY = Policy(
    name="tiny",
    path="tiny",
    architecture={"hidden_size": 32, "layers": 1, "heads": 2, "intermediate_size": 64},
)
ROWS = Task(name="instruct-mini", train_rows=16, eval_rows=4)


@pytest.fixture(scope="module")
def policy(cache):
    return load_policy(TINY, ROWS, cache)


def advantages(policy, folder, *reward_lists, weights=None, scale="group"):
    """Advantages that TRL computes for one group of four with these rewards per function."""
    from datasets import Dataset
    from trl import GRPOTrainer

    seen = []

    class Look(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append(output["advantages"].clone())
            return output

    def function(rewards):
        def reward(completions, **_):
            return list(rewards)

        return reward

    sizes = dict.fromkeys(("group_size", "micro_batch", "max_completion_length"), 4)
    settings = Trainer(steps=1, prompts_per_step=1, scale_rewards=scale, **sizes)
    config = grpo_config(Study(policy=TINY, trainer=settings), folder)
    config.save_strategy = "no"
    if weights:
        config.reward_weights = weights
    model, tokenizer = policy
    trainer = Look(
        model=model,
        reward_funcs=[function(rewards) for rewards in reward_lists],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "Name two."}]}]),
        processing_class=tokenizer,
    )
    trainer.train()
    return seen[0].tolist()


def test_a_missing_reward_leaves_its_group(policy, tmp_path):
    found = advantages(policy, tmp_path, [1.0, None, 0.0, 0.0])
    sd = math.sqrt(1 / 3)  # unbiased sd of 1, 0, 0
    expected = [(1 - 1 / 3) / (sd + 1e-4), 0.0, *[-1 / 3 / (sd + 1e-4)] * 2]
    assert found == pytest.approx(expected, abs=1e-5)
    assert found == pytest.approx([1.155, 0, -0.577, -0.577], abs=1e-3)


def test_a_group_with_few_rewards_has_no_signal_and_differences_are_not_scaled(policy, tmp_path):
    assert advantages(policy, tmp_path, [None] * 4) == [0.0] * 4
    assert advantages(policy, tmp_path, [1.0, None, None, None]) == [0.0] * 4
    found = advantages(policy, tmp_path, [1.0, None, 0.0, 0.0], scale="none")
    assert found == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3], abs=1e-6)


def test_a_second_reward_function_would_turn_missing_into_zero(policy, tmp_path):
    """Why truth is logged from inside the one reward function, and not beside it with weight 0."""
    judge, truth = [1.0, None, 0.0, 0.0], [0.3, 0.3, 0.3, 0.3]
    found = advantages(policy, tmp_path, judge, truth, weights=[1.0, 0.0])
    assert found == pytest.approx(advantages(policy, tmp_path, [1.0, 0.0, 0.0, 0.0]), abs=1e-5)
    assert found[1] == pytest.approx(-0.5, abs=1e-3)


def test_nobody_is_told_that_a_cell_trains(tmp_path, cache, monkeypatch) -> None:
    """TRL tells the Hub of each trainer that is made."""
    sent = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda **what: sent.append(what))
    run(study(steps=1), tmp_path, cache)
    assert sent == []
