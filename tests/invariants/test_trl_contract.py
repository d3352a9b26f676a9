"""What we rely on in TRL: a missing reward is left out, and one reward function keeps it so."""

import math

import pytest

from experiments.policies.load import load_policy
from experiments.trainer.grpo import grpo_config
from study.config.schema import Policy, Study, Task, Trainer

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


def test_a_group_with_fewer_than_two_rewards_has_no_signal(policy, tmp_path):
    assert advantages(policy, tmp_path, [None] * 4) == [0.0] * 4
    assert advantages(policy, tmp_path, [1.0, None, None, None]) == [0.0] * 4


def test_a_second_reward_function_would_turn_missing_into_zero(policy, tmp_path):
    """Why truth is logged from inside the one reward function, and not beside it with weight 0."""
    judge, truth = [1.0, None, 0.0, 0.0], [0.3, 0.3, 0.3, 0.3]
    found = advantages(policy, tmp_path, judge, truth, weights=[1.0, 0.0])
    assert found == pytest.approx(advantages(policy, tmp_path, [1.0, 0.0, 0.0, 0.0]), abs=1e-5)
    assert found[1] == pytest.approx(-0.5, abs=1e-3)


def test_without_scaling_advantages_are_differences(policy, tmp_path):
    found = advantages(policy, tmp_path, [1.0, None, 0.0, 0.0], scale="none")
    assert found == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3], abs=1e-6)
