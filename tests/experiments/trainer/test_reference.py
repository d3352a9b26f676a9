"""Log-probabilities under the initial policy are on record at beta = 0 too."""

import dataclasses

import pytest
import torch

from analysis.records.runs import REFERENCE
from experiments.plan.memory import Shape, step_memory
from study.config.schema import Policy, Study, Trainer
from tests.invariants.test_grpo import POLICY, run, study

FULL = dataclasses.replace(POLICY, lora=None)


@pytest.mark.parametrize("policy", [POLICY, FULL], ids=["adapter", "all weights"])
@pytest.mark.parametrize("fast", [True, False])
def test_it_is_that_of_the_initial_weights(policy, fast, tmp_path, cache):
    """The first step is drawn from them, so that both log-probabilities agree; later ones are what
    the initial weights say by hand."""
    config = study(fast=fast, steps=3, micro_batch=4, reference=1.0)
    config = dataclasses.replace(config, policy=policy)
    trained = run(config, tmp_path, cache)
    first = [row for row in trained.records if row["step"] == 1]
    sums = [row["logprob_sum"] for row in first]
    assert [row[REFERENCE] for row in first] == pytest.approx(sums, abs=1e-4)
    later = [row for row in trained.records if row["step"] == 3]
    assert max(abs(row[REFERENCE] - row["logprob_sum"]) for row in later) > 0.01
    model, tokenizer = trained.trainer.model, trained.trainer.processing_class
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(trained.start[name])
    for row, ids in zip(later, trained.ids[2], strict=True):
        messages = [{"role": "user", "content": row["prompt"]}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        text = torch.tensor([[*prompt, *ids]])
        with torch.no_grad():
            logits = model(text).logits[0, len(prompt) - 1 : -1] / 0.7
        by_hand = logits.log_softmax(-1).gather(-1, text[0, len(prompt) :, None]).sum().item()
        assert row[REFERENCE] == pytest.approx(by_hand, abs=1e-3)


def test_a_share_of_the_groups_is_measured(tmp_path, cache):
    """Half of two groups is the first one, and what is measured is what all would have been."""
    half = run(study(), tmp_path / "half", cache)
    whole = run(study(reference=1.0), tmp_path / "whole", cache)
    for row, other in zip(half.records, whole.records, strict=True):
        if row["group"] == 0:
            assert row[REFERENCE] == pytest.approx(other[REFERENCE], abs=1e-4)
        else:
            assert row[REFERENCE] is None and other[REFERENCE] is not None


def test_training_is_the_same_without_it(tmp_path, cache):
    config = dataclasses.replace(study(), policy=FULL)
    off = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, reference=0.0))
    kept, left_out = run(config, tmp_path / "on", cache), run(off, tmp_path / "off", cache)
    assert all(REFERENCE not in row for row in left_out.records)
    for row, other in zip(kept.records, left_out.records, strict=True):
        assert {name: value for name, value in row.items() if name != REFERENCE} == other
    torch.testing.assert_close(kept.weights, left_out.weights, rtol=0, atol=0)


def test_a_penalised_run_has_trls_own(tmp_path, cache):
    """At beta > 0 TRL asks the initial policy itself, and says the same."""
    ours = run(study(learning_rate=0.0, beta=0.0, reference=1.0), tmp_path / "ours", cache)
    trls = run(study(learning_rate=0.0, beta=0.1), tmp_path / "trls", cache)
    theirs = [row[REFERENCE] for row in trls.records]
    assert [row[REFERENCE] for row in ours.records] == pytest.approx(theirs, abs=1e-4)


def test_the_copy_of_all_weights_is_counted():
    shape = Shape(2, 64, 128, 64, 64, 1000, True)
    policy = Policy(path="x", lora=None)
    with_copy, without = (
        step_memory(shape, Study(policy=policy, trainer=Trainer(reference=kept)))["weights"]
        for kept in (0.5, 0.0)
    )
    assert with_copy == 2 * without
