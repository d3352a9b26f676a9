"""A task's own order: shaped as TRL's, noted in checkpoints, refused where it has changed."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from datasets import Dataset
from trl.trainer.utils import RepeatSampler

from experiments.plan.plan import order_lines
from experiments.policies import checkpoints
from experiments.trainer.order import POSITION, Ordered
from study.errors import UserError
from study.tasks import instruct_mini
from tests.invariants.test_grpo import TASK, run, study

STRIDE = 5
"""Coprime to the 16 rows of `TASK`: an order that no shuffle gives."""


class Strides:
    """Every fifth row, for ever."""

    folder = "the first folder"
    length = 10**9

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
    monkeypatch.setattr(instruct_mini, "Order", Strides, raising=False)
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
    checkpoint = tmp_path / "ck" / "checkpoint-2"
    noted = json.loads((checkpoint / POSITION).read_text())
    assert noted == {"position": 4, "from": "the first folder", "next": [4, 9]}
    assert POSITION in checkpoints.read_manifest(checkpoint)["files"]
    assert checkpoints.fault(checkpoint) == ""
    checkpoints.save_policy(checkpoint, tmp_path / "policy")
    assert not (tmp_path / "policy" / POSITION).exists()


def test_a_resumed_run_goes_on_where_the_order_was(strided, tmp_path, cache):
    config = study(steps=4, micro_batch=2, save_steps=2)
    whole = run(config, tmp_path, cache)
    checkpoints.remove(tmp_path / "ck" / "checkpoint-4")
    again = run(config, tmp_path, cache, resume=2)
    assert len(drawn(again)) == 8 and again.trainer.state.global_step == 4
    assert again.records == whole.records


def test_another_order_is_refused(strided, tmp_path, cache, monkeypatch):
    outcome = run(study(steps=2), tmp_path, cache)
    checkpoint = tmp_path / "ck" / "checkpoint-1"
    outcome.trainer.check_order(checkpoint)
    monkeypatch.setattr(Strides, "folder", "prepared anew")
    words = r"checkpoint-1 stands in another order.*its from is the first folder, and now prepared"
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
