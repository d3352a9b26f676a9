"""Where the fast path cannot be taken, TRL's own is, with one line that says why."""

import dataclasses
import logging

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from experiments.trainer import fast, prefix
from experiments.trainer.fast import token_logprobs
from study.config.schema import Judge, Scaffold
from study.verdict import Outcome
from tests.invariants import test_grpo
from tests.invariants.test_grpo import run, study


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    return run(study(), tmp_path_factory.mktemp("whole"), cache)


def metric(outcome, name):
    return [line["metrics"][name] for line in outcome.lines]


def test_the_fast_path_is_taken_and_its_check_is_silent(whole, caplog) -> None:
    assert metric(whole, "trainer/shared_prefix") == [1.0, 1.0]
    assert not caplog.records


def test_checkpointing_and_a_reference_take_it_too(tmp_path, cache, caplog) -> None:
    outcome = run(study(steps=1, gradient_checkpointing=True, beta=0.1), tmp_path, cache)
    assert metric(outcome, "trainer/shared_prefix") == [1.0]
    assert not caplog.records


def test_trls_own_path_is_the_oracle_of_a_run(whole, tmp_path, cache, monkeypatch) -> None:
    """The same rollouts through TRL's update: the same weights, log-probabilities and entropies."""
    monkeypatch.setattr("experiments.trainer.grpo.RecordingTrainer._agrees", lambda *_: False)
    slow = run(study(), tmp_path, cache)
    assert [r["completion"] for r in slow.records] == [r["completion"] for r in whole.records]
    for ours, theirs in zip(whole.records, slow.records, strict=True):
        assert ours["logprob_sum"] == pytest.approx(theirs["logprob_sum"], abs=1e-3)
    for name in ("policy/entropy", "policy/loss", "policy/grad_norm"):
        assert metric(whole, name) == pytest.approx(metric(slow, name), rel=1e-3, abs=1e-6)
    torch.testing.assert_close(slow.weights, whole.weights, rtol=1e-4, atol=1e-5)


def test_fast_false_leaves_everything_to_trl(tmp_path, cache, monkeypatch) -> None:
    monkeypatch.setattr(fast, "install", lambda *_: pytest.fail("installed"))
    slow = run(study(fast=False), tmp_path, cache)
    assert slow.trainer.rollout_func is None
    assert metric(slow, "trainer/shared_prefix") == [0.0, 0.0]


def test_a_forward_that_differs_is_found_at_the_first_step(
    whole, tmp_path, cache, monkeypatch, caplog
) -> None:
    def blind(self, q, k, v, scale):
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    for layout in (prefix.Padded, prefix.Dense, prefix.Loop):
        monkeypatch.setattr(layout, "equal_heads", blind)
    with caplog.at_level(logging.WARNING):
        outcome = run(study(), tmp_path, cache)
    (line,) = [record.message for record in caplog.records]
    assert "the packed forward differs from TRL's by" in line
    assert metric(outcome, "trainer/shared_prefix") == [0.0, 0.0]
    torch.testing.assert_close(outcome.weights, whole.weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"beta": 0.1}])
def test_a_gradient_that_differs_is_found_too(settings, tmp_path, cache, monkeypatch, caplog):
    """The values are right, so that with a reference the check without gradients passes."""

    def doubled(*args):
        logprobs, entropies = token_logprobs(*args)
        return logprobs + (logprobs - logprobs.detach()), entropies

    monkeypatch.setattr(fast, "token_logprobs", doubled)
    with caplog.at_level(logging.WARNING):
        outcome = run(study(steps=1, **settings), tmp_path, cache)
    assert "the packed forward differs from TRL's by" in caplog.text
    assert metric(outcome, "trainer/shared_prefix") == [0.0]


def test_a_forward_that_fails_is_left_as_well(tmp_path, cache, monkeypatch, caplog) -> None:
    def fails(*_, **__):
        raise RuntimeError("no kernel for this")

    monkeypatch.setattr(fast, "token_logprobs", fails)
    with caplog.at_level(logging.WARNING):
        outcome = run(study(), tmp_path, cache)
    assert len(outcome.lines) == 2
    assert "the packed forward failed (RuntimeError: no kernel for this)" in caplog.text


def test_a_model_that_cannot_take_it_is_said_before_the_first_step(
    tmp_path, cache, monkeypatch, caplog
) -> None:
    load = test_grpo.load_policy

    def eager(*args):
        model, tokenizer = load(*args)
        model.set_attn_implementation("eager")
        return model, tokenizer

    monkeypatch.setattr(test_grpo, "load_policy", eager)
    with caplog.at_level(logging.WARNING):
        outcome = run(study(), tmp_path, cache)
    (line,) = [record.message for record in caplog.records]
    assert "trained by TRL's own forward: its attention is eager, and not sdpa" in line
    assert metric(outcome, "trainer/shared_prefix") == [0.0, 0.0]


def test_a_step_without_a_verdict_moves_nothing(tmp_path, cache, monkeypatch) -> None:
    def missing(self, index, answer):
        verdict = judged(self, index, answer)
        return dataclasses.replace(verdict, outcome=Outcome.timeout, score=None)

    judged = test_grpo.LengthJudge.verdict
    monkeypatch.setattr(test_grpo.LengthJudge, "verdict", missing)
    patient = Judge(name="length", max_unscored_frac=1.0)
    outcome = run(dataclasses.replace(study(steps=1), judge=patient), tmp_path, cache)
    assert {row["advantage"] for row in outcome.records} == {0.0}
    for name, weight in outcome.weights.items():
        torch.testing.assert_close(weight, outcome.start[name], rtol=0, atol=1e-7)


def test_a_scaffold_that_stays_is_trained_on_as_shown(tmp_path, cache) -> None:
    """Each rollout has a prompt of its own, so that no two rows share one."""
    shown = Scaffold(name="ruscarl", group="linear", full_reveal=1, decay="none", keep=True)
    outcome = run(dataclasses.replace(study(steps=1), scaffold=shown), tmp_path, cache)
    assert metric(outcome, "trainer/shared_prefix") == [1.0]
    assert all(abs(row["component/scaffold_gap"]) < 1e-3 for row in outcome.records)
