import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.config import Judge, Reward, Sampling
from experiments.errors import UserError
from experiments.rewards import REWARDS
from experiments.rewards.failure import POLICIES, Starved, apply_failure_policy
from experiments.rewards.scorer import judge_all

SCORES = st.lists(st.none() | st.floats(0, 1), min_size=4, max_size=4)


def test_judge_alone_does_not_look_at_truth():
    assert REWARDS["judge"](Reward(), [0.2, None], [None, 1.0]) == [0.2, None]


def test_a_needed_part_that_is_missing_makes_the_reward_missing():
    mixed = Reward(truth_weight=0.25)
    found = REWARDS["judge"](mixed, [0.4, None, 0.4], [0.8, 0.8, None])
    assert found[0] == pytest.approx(0.75 * 0.4 + 0.25 * 0.8)
    assert found[1:] == [None, None]
    assert REWARDS["judge"](Reward(truth_weight=1.0), [None], [0.3]) == [0.3]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("unscored", [1.0, None, 0.5, 0.0]),
        ("zero", [1.0, 0.0, 0.5, 0.0]),
        ("drop_group", [None, None, 0.5, 0.0]),
    ],
)
def test_failure_policies(policy, expected):
    assert apply_failure_policy([1.0, None, 0.5, 0.0], 2, policy, 1.0) == expected


def test_abort_and_starvation_stop_the_run():
    with pytest.raises(Starved, match="1 of 2"):
        apply_failure_policy([1.0, None], 2, "abort", 1.0)
    with pytest.raises(Starved, match=r"max_unscored_frac=0\.4"):
        apply_failure_policy([1.0, None], 2, "unscored", 0.4)
    assert apply_failure_policy([1.0, None], 2, "unscored", 0.5) == [1.0, None]


def test_unknown_policy_is_a_user_error():
    with pytest.raises(UserError, match="unscored, zero, drop_group, abort"):
        apply_failure_policy([1.0], 1, "ignore", 1.0)


@given(SCORES, st.sampled_from([p for p in POLICIES if p != "abort"]))
def test_only_zero_turns_a_missing_verdict_into_a_number(scores, policy):
    found = apply_failure_policy(scores, 2, policy, 1.0)
    for before, after in zip(scores, found, strict=True):
        if before is None:
            assert after == (0.0 if policy == "zero" else None)
        elif after is not None:
            assert after == before


class PairJudge:
    """Stands where a comparing session stands: remembers its groups, scores by place."""

    compares = True

    def __init__(self, votes):
        self.judge = Judge(sampling=Sampling(votes=votes))
        self.groups = []

    def group_verdicts(self, row, answers, index):
        self.groups.append((row, tuple(answers), index))
        return [(row, place, index) for place in range(len(answers))]


def test_a_comparing_judge_sees_one_group_at_a_time_and_order_is_kept():
    session = PairJudge(votes=2)
    items = [("x", "a"), ("x", "b"), ("y", "c"), ("y", "d")]
    found = judge_all(session, items, 2)
    assert session.groups == [
        ("x", ("a", "b"), 0),
        ("x", ("a", "b"), 1),
        ("y", ("c", "d"), 0),
        ("y", ("c", "d"), 1),
    ]
    assert found == [
        [("x", 0, 0), ("x", 0, 1)],
        [("x", 1, 0), ("x", 1, 1)],
        [("y", 0, 0), ("y", 0, 1)],
        [("y", 1, 0), ("y", 1, 1)],
    ]
