"""Completions are those of transformers' own generation, and no row's depends on the others."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from experiments.trainer import fast, rollouts
from experiments.trainer.generate import Sampling, draw, generate, merged, uniforms
from tests.experiments.trainer.conftest import FAMILIES, TOKENIZER, make_model

ENDS = tuple(range(2, 90))
"""Many tokens end a completion, so that rows end early and at different places."""
PROMPT_LENGTHS = (5, 11, 5, 1)


def make_prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(3)
    return [
        torch.randint(90, len(TOKENIZER), (length,), generator=draw).tolist()
        for length in PROMPT_LENGTHS
    ]


def with_adapter(model):
    torch.manual_seed(2)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(model, lora)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(family) -> None:
    base = make_model(family)
    model = with_adapter(base)
    prompts = make_prompts()
    owner = [0, 0, 1, 2, 2, 2, 3]
    width = max(PROMPT_LENGTHS)
    ids = torch.zeros(len(owner), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, u in enumerate(owner):
        ids[row, width - len(prompts[u]) :] = torch.tensor(prompts[u])
        mask[row, width - len(prompts[u]) :] = 1
    model.eval()
    expected = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=GenerationConfig(
            max_new_tokens=40, do_sample=False, eos_token_id=list(ENDS), pad_token_id=0
        ),
    )[:, width:].tolist()
    fast.install(base, 1.0)
    with merged(model) as policy:
        completions = generate(
            policy, prompts, owner, Sampling(40, ENDS, greedy=True), np.zeros((len(owner), 40))
        )
    assert len({len(ids) for ids in completions}) > 1
    for ids, reference in zip(completions, expected, strict=True):
        assert ids == reference[: len(ids)]
        assert ids[-1] in ENDS or len(ids) == 40


def test_a_rows_tokens_do_not_depend_on_the_rows_beside_it() -> None:
    model = make_model("qwen2").eval()
    fast.install(model, 1.0)
    prompts, owner = make_prompts(), [0, 1, 1, 2, 3, 3]
    sampling = Sampling(200, ENDS[:8], temperature=0.8, top_k=60, top_p=0.95)
    uniform = uniforms(1, 7, len(owner), 200)
    ended: dict[int, list[int]] = {}
    together = generate(model, prompts, owner, sampling, uniform, ended.update)
    assert ended == dict(enumerate(together))
    for row, u in enumerate(owner):
        alone = generate(model, [prompts[u]], [0], sampling, uniform[row : row + 1])
        assert alone == [together[row]]
    assert max(map(len, together)) > 128  # the cache has grown on the way


@pytest.mark.parametrize("at_once", [1, 2, 4, 100])
def test_what_does_not_fit_at_once_is_generated_in_turns(monkeypatch, at_once) -> None:
    model = make_model("qwen2").eval()
    fast.install(model, 1.0)
    monkeypatch.setattr(rollouts, "rows_at_once", lambda *_: at_once)
    prompts = make_prompts()
    trainer = SimpleNamespace(
        model=model,
        accelerator=SimpleNamespace(
            process_index=0, unwrap_model=lambda model: model, autocast=nullcontext
        ),
        _tokenize_prompts=lambda rows: (rows,),
        scaffolded_prompt_ids=lambda: None,
        max_completion_length=20,
        state=SimpleNamespace(global_step=6),
        eos_token_ids=ENDS,
        temperature=1.0,
        args=SimpleNamespace(top_k=0, top_p=1.0),
        beat=lambda: beats.append(1),
    )
    beats: list[int] = []
    rows = [prompts[u] for u in (0, 0, 1, 1, 3, 3)]
    ended: dict[int, list[int]] = {}
    output = rollouts.Rollouts(1, ended.update)(rows, trainer)
    together = generate(model, rows, range(6), Sampling(20, ENDS), uniforms(1, 7, len(rows), 20))
    assert output["completion_ids"] == together
    assert ended == dict(enumerate(together))
    turns = [together[start : start + at_once] for start in range(0, 6, at_once)]
    assert len(beats) == sum(max(map(len, turn)) - 1 for turn in turns)


def test_as_many_rows_at_once_as_fit(monkeypatch) -> None:
    model = make_model("llama")
    config = model.config
    heads, width = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    row = 2 * config.num_hidden_layers * heads * width * 4 * 50 + 16 * config.vocab_size
    for free, expected in ((30 * row, 10), (30 * row - 1, 9), (0, 1)):
        monkeypatch.setattr(rollouts, "_free", lambda _, free=free: free)
        assert rollouts.rows_at_once(model, 50) == expected


@given(
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(1, 10**6),
    rows=st.integers(1, 5),
    length=st.integers(1, 9),
)
def test_the_noise_of_a_position_depends_on_seed_step_row_and_position(seed, step, rows, length):
    small, large = uniforms(seed, step, rows, length), uniforms(seed, step, rows + 3, length + 40)
    assert np.array_equal(small, large[:rows, :length])
    assert len(np.unique(large)) == large.size
    assert not np.array_equal(small, uniforms(seed, step + 1, rows, length))


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.6), (7, 0.8)])
def test_each_token_is_drawn_as_often_as_its_probability_says(top_k, top_p) -> None:
    """A grid of numbers in place of random ones, so that shares are exact to a grid step."""
    torch.manual_seed(0)
    logits = 2 * torch.randn(1, 30)
    scores = logits / 0.7
    ids = torch.empty(0)
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    expected = scores.softmax(-1)[0].double()
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    sampling = Sampling(1, (), temperature=0.7, top_k=top_k, top_p=top_p)
    tokens = draw(logits.expand(len(grid), -1), sampling, grid)
    shares = torch.bincount(tokens, minlength=30).double() / len(grid)
    torch.testing.assert_close(shares, expected, rtol=0, atol=2e-4)
    assert (shares[expected == 0] == 0).all()


def test_the_largest_number_draws_no_impossible_token_and_more_is_left_to_trl() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf]])
    almost_one = torch.tensor([np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert draw(logits, Sampling(1, ()), almost_one).tolist() == [1]
    assert draw(logits, Sampling(1, ()), torch.zeros(1, dtype=torch.float64)).tolist() == [0]
    model = make_model("llama")
    config = GenerationConfig(do_sample=True, temperature=0.7, top_k=20, top_p=0.8)
    assert rollouts.unsupported(model, config) is None
    model.generation_config.no_repeat_ngram_size = 3
    assert "NoRepeatNGramLogitsProcessor" in str(rollouts.unsupported(model, config))


def test_generation_leaves_the_weights_as_they_were_to_the_bit() -> None:
    model = with_adapter(make_model("llama")).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    with pytest.raises(RuntimeError, match="on the way"), merged(model) as policy:
        layer = "model.layers.0.mlp.up_proj.base_layer.weight"
        changed = dict(policy.named_parameters())[layer]
        assert not torch.equal(changed, before[f"base_model.model.{layer}"])
        raise RuntimeError("on the way")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [name for name, value in model.named_parameters() if value.requires_grad] == trained
    assert model.training


@pytest.mark.parametrize("settings", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_that_cannot_be_merged_is_generated_with_as_it_is(settings) -> None:
    base = make_model("llama", tied=False)
    fast.install(base, 1.0)
    lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, **settings)
    model = get_peft_model(base, lora).eval()
    prompt = make_prompts()[0]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([prompt])).logits[0, -1].argmax().item()
    with merged(model) as policy:
        sampling = Sampling(1, (), greedy=True)
        (completion,) = generate(policy, [prompt], [0], sampling, np.zeros((1, 1)))
    assert completion == [expected]
