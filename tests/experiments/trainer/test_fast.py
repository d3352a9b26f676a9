"""Shared prefixes give TRL's log-probabilities and gradients, or say that they cannot."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from experiments.trainer import fast, prefix
from experiments.trainer.fast import token_logprobs
from tests.experiments.trainer.conftest import FAMILIES, make_batch, make_model, whole

LAYOUTS = (prefix.Padded, prefix.Dense, prefix.Loop)
LOSSES = ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")
BATCH = ([9, 6], [[12, 1, 7, 3], [5, 2, 12, 8]])


def gradient(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    trainer.model.zero_grad()
    trainer._compute_loss(trainer.model, batch).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def share_prefixes(trainer: Any, layout: type[prefix.PrefixLayout]) -> None:
    """Let the trainer's loss ask `fast.logprobs`."""

    def shared(model: Any, ids: Any, mask: Any, keep: int, **_: Any) -> Any:
        return (*fast.logprobs(model, ids, mask, keep, 1, layout), None)

    trainer._get_per_token_logps_and_entropies = shared


def base_of(trainer: Any) -> Any:
    model = trainer.model
    return model.get_base_model() if hasattr(model, "peft_config") else model


@pytest.mark.parametrize(
    ("family", "lora", "tied", "loss", "trl"),
    [
        ("llama", True, True, "grpo", {}),
        *(
            pytest.param("llama", True, True, loss, {}, marks=pytest.mark.long)
            for loss in LOSSES
            if loss not in ("dapo", "grpo")  # the loss itself is TRL's
        ),
        *((family, lora, lora, "dapo", {}) for family in FAMILIES for lora in (True, False)),
        ("llama", True, False, "dapo", {"gradient_checkpointing": True}),
        ("llama", False, True, "grpo", {"beta": 0.0}),
    ],
)
def test_loss_and_gradients_are_trls(make_trainer, family, lora, tied, loss, trl) -> None:
    # without an adapter TRL would load the reference by the model's name
    trainer = make_trainer(
        make_model(family, tied), lora, loss_type=loss, **({} if lora else {"beta": 0.0}) | trl
    )
    trainer.beta = trl.get("beta", 0.04)
    batch = make_batch(*BATCH)
    expected = gradient(trainer, batch)
    logprobs, entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, *whole(batch), compute_entropy=True
    )
    assert fast.unsupported(base_of(trainer)) is None
    fast.install(base_of(trainer), 0.7)
    for layout in LAYOUTS:
        share_prefixes(trainer, layout)
        shared = fast.logprobs(trainer.model, *whole(batch), 1, layout)
        torch.testing.assert_close(shared, (logprobs, entropies), rtol=0, atol=1e-5)
        assert (gradient(trainer, batch) - expected).norm() < 1e-5 * expected.norm()


def test_on_peaked_weights_the_difference_is_that_of_trl_under_more_padding(make_trainer) -> None:
    trainer = make_trainer(make_model("llama", peak=5.0))
    ids, mask, keep = whole(make_batch(*BATCH))
    trl = trainer._get_per_token_logps_and_entropies
    fast.install(base_of(trainer), 0.7)

    def ours(model: Any, ids: Any, mask: Any, keep: int) -> Any:
        return fast.logprobs(model, ids, mask, keep, 1)[0]

    apart, allowed = fast.difference(
        trainer.model, ids, mask, keep, ours, lambda *asked: trl(*asked)[0]
    )
    assert 0 < apart <= max(1e-4, 2 * allowed)


lengths = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 9), lengths), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_any_batch_has_the_log_probabilities_of_its_rows_one_by_one(groups, seed) -> None:
    """Groups of one, empty completions, prompts of one token; the oracle asks each row alone."""
    if not any(max(sizes) for _, sizes in groups):
        return
    model = make_model("qwen3")
    fast.install(model, 1.0)
    batch = make_batch([prompt for prompt, _ in groups], [sizes for _, sizes in groups], seed)
    ids, mask, keep = whole(batch)
    expected = torch.zeros(len(ids), keep)
    with torch.no_grad():
        for row, (tokens, seen) in enumerate(zip(ids, mask, strict=True)):
            text = tokens[seen.bool()]
            size = int(seen[-keep:].sum())
            logprobs = model(input_ids=text[None]).logits[0].log_softmax(-1)
            start = len(text) - size
            for t in range(size):
                expected[row, t] = logprobs[start + t - 1, text[start + t]]
        for layout in LAYOUTS:
            shared = fast.logprobs(model, ids, mask, keep, 1, layout)
            torch.testing.assert_close(shared[0], expected, rtol=0, atol=2e-5)


def test_a_prompt_is_computed_once_for_its_group_and_holes_are_refused() -> None:
    batch = make_batch([9, 6], [[4, 4], [4, 4]])
    packed = prefix.pack(*whole(batch), layer_weights=10**9, layout=prefix.Loop)
    assert packed.ids_1_N.shape[1] == 9 + 6 + 4 * 3  # the last token predicts nothing
    assert len(packed.scored_M) == 4 * 4
    ids, mask, keep = whole(make_batch([4], [[3, 3]]))
    mask[0, 5] = 0
    with pytest.raises(ValueError, match="not a prompt padded left"):
        prefix.pack(ids, mask, keep, 1)


@pytest.mark.parametrize(
    ("prompts", "answers", "weights", "layout"),
    [
        ([30, 30], [25, 25, 24, 25], 200_000, prefix.Padded),
        ([30, 30], [12, 3, 39, 8], 200_000, prefix.Dense),
        ([256], [60] * 7 + [128], 3_500_000, prefix.Loop),
        ([256], [30] * 7 + [128], 3_500_000, prefix.Dense),
    ],
)
def test_the_layout_follows_the_size(prompts, answers, weights, layout) -> None:
    group = [b * len(prompts) // len(answers) for b in range(len(answers))]
    assert prefix.choose(prompts, answers, group, weights) is layout


@pytest.mark.parametrize("frozen", [True, False])
def test_the_head_is_log_softmax(frozen, monkeypatch) -> None:
    """In chunks of one row, with a bias and a temperature, against autograd on all logits."""
    monkeypatch.setattr("experiments.trainer.fast.LOGITS_AT_ONCE", 1)
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50)
    head.requires_grad_(not frozen)
    hidden = torch.randn(6, 8, requires_grad=True)
    targets = torch.randint(50, (6,))
    weights = torch.randn(6)
    logprobs = (head(hidden) / 0.7).log_softmax(-1)
    expected = logprobs.gather(-1, targets[:, None]).squeeze(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    wanted = [hidden, *(() if frozen else (head.weight, head.bias))]
    gradients = torch.autograd.grad((expected * weights).sum(), wanted)
    ours, uncertainty = token_logprobs(hidden, head, targets, 0.7)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(uncertainty, entropies)
    found = torch.autograd.grad((ours * weights).sum(), wanted)
    torch.testing.assert_close(found, gradients, rtol=1e-5, atol=1e-6)


def test_a_token_that_cannot_come_has_no_entropy() -> None:
    head = torch.nn.Linear(1, 3)
    head.requires_grad_(False)
    head.bias.copy_(torch.tensor([0.0, 0.0, -torch.inf]))
    head.weight.zero_()
    logprobs, entropies = token_logprobs(torch.ones(1, 1), head, torch.tensor([0]), 1.0)
    torch.testing.assert_close(entropies, torch.tensor([2.0]).log())
    torch.testing.assert_close(logprobs, -torch.tensor([2.0]).log())


def test_micro_batches_keep_groups_together_and_are_as_narrow_as_their_rows() -> None:
    batch = make_batch([9, 4], [[2, 3], [8, 5]])
    of_row = batch["prompt_mask"].sum(1)  # the first prompt is the longer one
    batch["row_index"] = torch.empty_like(of_row)
    for length, places in ((9, [0, 1]), (4, [2, 3])):
        batch["row_index"][of_row == length] = torch.tensor(places)
    halves = [{k: v if v.ndim == 0 else v[i : i + 2] for k, v in batch.items()} for i in (0, 2)]
    first, second = fast.whole_groups(halves)
    assert first["row_index"].tolist() == [0, 1] and second["row_index"].tolist() == [2, 3]
    assert first["prompt_ids"].shape == (2, 9) and first["completion_ids"].shape == (2, 3)
    assert second["prompt_ids"].shape == (2, 4) and second["completion_ids"].shape == (2, 8)
    assert second["ref_per_token_logps"].shape == (2, 8)
    assert first["num_items_in_batch"] == second["num_items_in_batch"] == 18
    for half in (first, second):
        for row, index in enumerate(half["row_index"].tolist()):
            source = int((batch["row_index"] == index).nonzero())
            for name in ("completion_ids", "ref_per_token_logps"):
                assert torch.equal(half[name][row], batch[name][source, : half[name].shape[1]])
            assert half["advantages"][row] == batch["advantages"][source]


SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8}
SMALL |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}


class Packed4Bit(torch.nn.Linear):
    """Stands for a quantised head: a linear layer of another kind."""


def test_what_cannot_share_prefixes_is_said_in_words() -> None:
    mistral = MistralForCausalLM(MistralConfig(sliding_window=4, **SMALL))
    assert "sliding window" in str(fast.unsupported(mistral))
    gemma = Gemma2ForCausalLM(Gemma2Config(**SMALL, attn_implementation="sdpa"))
    assert "do not attend to the whole text" in str(fast.unsupported(gemma))
    dropping = make_model("llama", attention_dropout=0.1)
    assert "dropout" in str(fast.unsupported(dropping))
    dropping.lm_head = Packed4Bit(32, 7)
    assert "its head is a Packed4Bit" in str(fast.unsupported(dropping))
    for change, said in (
        (lambda model: setattr(model.config, "logit_scale", 0.5), "changes logits"),
        (lambda model: model.add_module("late", torch.nn.Dropout(0.1)), "dropout"),
        (lambda model: model.set_attn_implementation("eager"), "eager"),
    ):
        model = make_model("llama")
        change(model)
        assert said in str(fast.unsupported(model))
