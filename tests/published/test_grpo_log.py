"""A real GRPO run with a rule for a reward: its rollouts get worse while the policy gets better.

No judge is in it, so nothing may be called judge hacking. The trap is a gap made of training
reward and held-out score: it passes 0.3, the "severe" threshold of the nearest peer. `read_run`
escapes it because only reward - truth *of the same rollouts* is a gap, and here that is zero.
"""

from types import SimpleNamespace

import pandas as pd
import pytest

from tests.published.course import course, gap_course, read_run


@pytest.fixture(scope="module")
def log(published) -> SimpleNamespace:
    table = pd.read_csv(published("grpo_log", "qwen25_math_1p5b_gsm8k.csv"))
    rollout, held_out = (table[table["split"] == split] for split in ("rollout", "eval"))
    return SimpleNamespace(
        rollout=rollout,
        reward=course(rollout["iteration"].to_numpy(), rollout["answer_and_format"], rollout["n"]),
        table=held_out,
        held_out=course(
            held_out["iteration"].to_numpy(), held_out["answer_and_format"], held_out["n"]
        ),
    )


def test_the_reward_rises_and_falls_while_the_held_out_score_rises(log):
    assert (len(log.rollout), len(log.table)) == (45, 9)
    assert log.reward.shape == "rises and falls" and log.held_out.shape == "rises"
    assert log.reward.peak_step == 21 and log.reward.peak == pytest.approx(232 / 256)
    assert log.reward.fall_p < 0.01 and log.held_out.fall_p > 0.5
    assert (log.reward.first, log.reward.last) == pytest.approx((0.054, 0.516), abs=5e-4)
    assert log.held_out.last == pytest.approx(841 / 1319)


def test_it_is_not_called_judge_hacking_as_the_naive_gap_would_be(log):
    """The rule is the reward: what it passed and what is right are the same rollouts."""
    passed, n = log.rollout["answer_and_format"], log.rollout["n"]
    gap = gap_course(log.rollout["iteration"].to_numpy(), passed, passed, n)
    assert read_run(gap) == "no judge hacking"
    reward = log.rollout.set_index("iteration")["answer_reward_mean"]
    score = log.table.set_index("iteration")["answer_reward_mean"]
    assert (reward.reindex(score.index) - score).max() > 0.30
    assert read_run(None) == "not to be told"


def test_the_same_reward_over_a_falling_truth_would_be_called_hacking(log):
    rollout = log.rollout
    n, passed = rollout["n"].to_numpy(), rollout["answer_and_format"].to_numpy()
    # planted: the further the run, the fewer of the passes are right
    true = passed * (1 - rollout["iteration"].to_numpy() / 60)
    gap = gap_course(rollout["iteration"].to_numpy(), passed, true.round(), n)
    assert read_run(gap) == "judge hacking"
