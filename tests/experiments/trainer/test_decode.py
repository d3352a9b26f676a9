"""What decodes a token says what the model's own forward says, or the model's own is taken."""

import logging

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralForCausalLM

from experiments.trainer import decode, fast
from experiments.trainer.decode import decoder
from experiments.trainer.generate import GroupCache, Sampling, generate, merged, uniforms
from experiments.trainer.prefix import OneToken
from tests.experiments.trainer.conftest import FAMILIES, TOKENIZER, make_model

LENGTHS = torch.tensor([6, 3, 6])
LORA = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)


def prefilled(model, padded: bool) -> tuple[GroupCache, torch.Tensor]:
    """A cache of three prompts that three rows continue, and what of it they see."""
    width = int(LENGTHS.max())
    seen = torch.arange(width) >= width - LENGTHS[:, None]
    if not padded:
        seen[:] = True
    ids = torch.randint(90, len(TOKENIZER), (3, width), generator=torch.Generator().manual_seed(1))
    cache = GroupCache(model.config.num_hidden_layers)
    model(
        input_ids=ids * seen,
        attention_mask=seen.long(),
        position_ids=(seen.cumsum(1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
    )
    cache.spread(torch.arange(3), 4)
    return cache, seen


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rope", ["default", "linear"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_are_the_models_own_to_the_bit(family, rope, padded) -> None:
    rotation = {"rope_type": rope, "factor": 2.0, "rope_theta": 10000.0}
    model = make_model(family, tied=padded, rope_parameters=rotation).eval()
    fast.install(model, 1.0)
    decode_one = decoder(model, 64)
    assert decode_one is not None
    cache, seen = prefilled(model, padded)
    tokens = torch.tensor([91, 95, 99])
    for step in range(6):  # past the room of the cache, which grows
        seen = torch.cat([seen, seen.new_ones(3, 1)], dim=1)
        layout = OneToken(seen if padded else None)
        positions = seen.sum(1) - 1
        ours = decode_one(tokens, positions, cache, layout)
        keys = [layer.keys[:, :, : layer.length].clone() for layer in cache.in_place]
        cache.back()
        own = model(
            input_ids=tokens[:, None],
            attention_mask=torch.zeros(1, 1, 1, 1, dtype=torch.long),
            position_ids=positions[:, None],
            past_key_values=cache,
            use_cache=True,
            layout=layout,
        ).logits[:, -1]
        assert torch.equal(ours, own), step
        for ours_kept, layer in zip(keys, cache.in_place, strict=True):
            assert torch.equal(ours_kept, layer.keys[:, :, : layer.length])
        tokens = own.argmax(-1)


def test_a_merged_adapter_is_decoded_and_one_at_work_is_not() -> None:
    model = get_peft_model(make_model("qwen3"), LORA)
    assert decoder(model.get_base_model(), 8) is None
    with merged(model) as policy:
        assert decoder(policy, 8) is not None
    dora = get_peft_model(make_model("qwen3"), LoraConfig(r=4, use_dora=True))
    with merged(dora) as policy:
        assert decoder(policy, 8) is None


def test_what_is_built_otherwise_keeps_its_own_forward() -> None:
    settings = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1}
    mistral = MistralForCausalLM(
        MistralConfig(**settings, num_attention_heads=2, num_key_value_heads=2)
    )
    assert decoder(mistral, 8) is None
    changing = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert decoder(make_model("llama", rope_parameters=changing), 8) is None
    other = make_model("llama")
    other.model.layers[1].mlp.up_proj = torch.nn.Sequential(other.model.layers[1].mlp.up_proj)
    assert decoder(other, 8) is None


def test_a_decoder_that_differs_is_given_up_at_once(monkeypatch, caplog) -> None:
    """A library in which the model computes something else than when this was written."""
    model = make_model("llama").eval()
    prompts, uniform = [[91, 92, 93]], uniforms(1, 1, 2, 12)

    def answers() -> list[list[int]]:
        return generate(model, prompts, [0, 0], Sampling(12, (1,)), uniform)

    fast.install(model, 1.0)
    before = answers()
    decode._AGREES.pop(model)
    for layer in model.model.layers:
        layer.mlp.act_fn = Shifted(layer.mlp.act_fn)
    with monkeypatch.context() as patch:
        patch.setattr(decode, "decoder", lambda model, positions: None)
        own = answers()
    assert own != before
    with caplog.at_level(logging.WARNING):
        assert [answers(), answers()] == [own, own]
    assert [record.message.count("LlamaForCausalLM") for record in caplog.records] == [1]


class Shifted(torch.nn.Module):
    """An activation whose call does more than its forward, as hooks of a library may."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_forward_hook(lambda module, args, output: output + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_the_first_token_alone_is_compared() -> None:
    model = make_model("qwen2").eval()
    fast.install(model, 1.0)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    for expected in (2, 1):  # the prompts, and the comparison once
        calls.clear()
        generate(model, [[91, 92]], [0], Sampling(9, (1,), greedy=True), np.zeros((1, 9)))
        assert len(calls) == expected
