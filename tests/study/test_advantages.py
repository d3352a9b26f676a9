import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.rewards.advantages import (
    advantages,
    alignment,
    misfits,
    rank_change,
    sign_flips,
    silenced,
)

NAN = float("nan")
GROUPS = st.lists(
    st.lists(st.one_of(st.just(NAN), st.floats(-2, 2, width=32)), min_size=4, max_size=4),
    min_size=1,
    max_size=5,
).map(np.array)


def test_a_missing_reward_leaves_its_group_and_fewer_than_two_carry_no_signal():
    sd = math.sqrt(1 / 3)
    expected = [(2 / 3) / (sd + 1e-4), 0.0, *[-1 / 3 / (sd + 1e-4)] * 2]
    assert advantages(np.array([[1, NAN, 0, 0]]))[0] == pytest.approx(expected)
    none = advantages(np.array([[1, NAN, 0, 0]]), "none")[0]
    assert none == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])
    assert advantages(np.array([[1, NAN, NAN, NAN], [NAN] * 4])).tolist() == [[0.0] * 4] * 2


@given(GROUPS, st.sampled_from(["group", "batch", "none"]))
def test_as_trl_computes_them(rewards, scale):
    """TRL's own nanstd and the lines of its trainer, in torch, as the oracle."""
    import torch
    from trl.trainer.utils import nanstd

    given_ = torch.tensor(rewards, dtype=torch.float64)
    expected = given_ - torch.nanmean(given_, dim=1, keepdim=True)
    if scale == "group":
        expected = expected / (nanstd(given_, dim=1).unsqueeze(1) + 1e-4)
    elif scale == "batch":
        expected = expected / (nanstd(given_.flatten()) + 1e-4)
    expected = torch.nan_to_num(expected, nan=0.0).numpy()
    assert np.allclose(advantages(rewards, scale), expected, atol=1e-6)


@given(GROUPS, st.floats(-1, 1))
def test_a_constant_for_a_group_cancels(rewards, constant):
    assert np.allclose(advantages(rewards), advantages(rewards + constant), atol=1e-2)


def test_flips_and_changes_of_rank_by_hand():
    before = np.array([[1.0, -1.0, 0.0, 2.0]])
    after = np.array([[-1.0, -1.0, 1.0, 0.0]])
    assert sign_flips(before, after) == pytest.approx(1 / 2)
    assert silenced(before, after) == pytest.approx(1 / 3)
    assert alignment(before, after) == pytest.approx(0.0)
    assert alignment(before, 3 * before) == pytest.approx(1.0)
    assert alignment(before, -before) == pytest.approx(-1.0)
    assert math.isnan(alignment(before, 0 * before))
    assert math.isnan(sign_flips(before, 0 * before))
    assert math.isnan(silenced(0 * before, before))
    before, after = np.array([[1.0, 2.0, 3.0]]), np.array([[3.0, 2.0, 1.0]])
    assert rank_change(before, after) == pytest.approx((2 + 0 + 2) / 3)
    assert rank_change(before, before) == 0.0


def test_misfits_are_beyond_single_precision_of_the_largest_advantage():
    rewards = np.array([[0.0, 0.0, 1.0, 1.0]])
    recorded = advantages(rewards)
    assert not misfits(rewards, recorded.astype(np.float32), "group").any()
    recorded[0] += [0, 0.003, 0.003, 0.004]  # 1 + itself is 1.87: .0037 is allowed
    assert misfits(rewards, recorded, "group").tolist() == [[False, False, False, True]]
    assert misfits(rewards, advantages(rewards), "none").all()


def test_shapes_and_names_are_checked():
    with pytest.raises(ValueError, match="shape"):
        advantages(np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="median"):
        advantages(np.array([[1.0, 2.0]]), "median")
