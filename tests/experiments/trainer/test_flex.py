"""FlexAttention, as a kernel on GPUs and as plain arithmetic here, is the other layouts'."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.trainer import fast, prefix
from tests.experiments.trainer.conftest import FAMILIES, make_batch, make_model, whole
from tests.invariants.test_grpo import run, study


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Neither compiled nor said that it is not."""
    flag = "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    monkeypatch.setattr(flag, True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lengths", [([9, 6], [[12, 1, 7, 3], [5, 2, 12, 8]]), ([150], [[90, 4]])])
def test_log_probabilities_are_those_of_the_other_layouts(family, lengths) -> None:
    model = make_model(family)
    fast.install(model, 0.7)
    batch = whole(make_batch(*lengths))
    with torch.no_grad():
        expected = fast.logprobs(model, *batch, 1, prefix.Loop)
        ours = fast.logprobs(model, *batch, 1, prefix.Flex)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


GROUPS = st.lists(
    st.tuples(st.integers(1, 300), st.lists(st.integers(0, 200), min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
)


@given(groups=GROUPS)
@settings(max_examples=40)
def test_the_blocks_are_those_of_the_whole_mask(groups) -> None:
    """Every token sees what `Dense` lets it see; whole blocks are those that need no look-up."""
    prompts = [prompt for prompt, _ in groups]
    answers = [size for _, sizes in groups for size in sizes]
    group = [u for u, (_, sizes) in enumerate(groups) for _ in sizes]
    segments, total = prefix._places(prompts, answers, group, prefix.Flex)
    device = torch.device("cpu")
    mask = prefix.Flex(segments, device).mask
    dense = prefix.Dense(segments, device)
    expected = torch.zeros(total, total, dtype=torch.bool)
    for (start, length), sees in zip(dense.groups, dense.masks, strict=True):
        expected[start : start + length, start : start + length] = sees
    places = torch.arange(total)
    assert torch.equal(mask.mask_mod(None, None, places[:, None], places[None]), expected)
    count = -(-total // prefix.BLOCK)
    padded = torch.zeros(count * prefix.BLOCK, count * prefix.BLOCK, dtype=torch.bool)
    padded[:total, :total] = expected
    blocks = padded.view(count, prefix.BLOCK, count, prefix.BLOCK).transpose(1, 2)
    every, some = blocks.all(-1).all(-1), blocks.any(-1).any(-1)
    assert torch.equal(mask.to_dense()[0, 0].bool(), some)
    full = torch.zeros(count, count, dtype=torch.bool)
    assert mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None
    for row, number in enumerate(mask.full_kv_num_blocks[0, 0].tolist()):
        full[row, mask.full_kv_indices[0, 0, row, :number].long()] = True
    assert torch.equal(full, every)


def test_it_is_for_gpus_alone() -> None:
    assert prefix.layouts(torch.device("cpu")) == [None]
    model = make_model("llama")
    fast.install(model, 1.0)
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        fast.logprobs(model, *whole(make_batch([4], [[3, 3]])), 1, prefix.Flex)


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_a_layout_that_fails_gives_way_to_the_next(beta, tmp_path, cache, monkeypatch) -> None:
    """Here it has no backward, and with a reference its forward is taken before that shows."""
    asked: list[Any] = []
    flex = prefix.Flex.attend

    def noted(self: Any, *args: Any) -> Any:
        asked.append(torch.is_grad_enabled())
        return flex(self, *args)

    monkeypatch.setattr(prefix.Flex, "attend", noted)
    plain = run(study(beta=beta, reference=0.0), tmp_path / "plain", cache)
    monkeypatch.setattr(prefix, "layouts", lambda device: [prefix.Flex, None])
    ours = run(study(beta=beta, reference=0.0), tmp_path / "flex", cache)
    assert set(asked) == ({True} if beta == 0.0 else {True, False})
    assert ours.trainer._layouts == [None]
    assert [line["metrics"]["trainer/shared_prefix"] for line in ours.lines] == [1.0, 1.0]
    torch.testing.assert_close(ours.weights, plain.weights, rtol=1e-4, atol=1e-5)
