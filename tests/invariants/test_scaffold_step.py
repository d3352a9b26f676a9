"""A scaffolded step: sampled from the scaffolded prompt, trained on the plain one, the gap kept."""

import dataclasses

import pytest
import torch

from experiments.trainer.grpo import RecordingTrainer
from study.config.schema import Scaffold
from study.tasks import TASKS
from study.tasks.scaffold import show
from tests.invariants.test_grpo import TASK, run, study

ON = Scaffold(name="ruscarl", group="binary", full_reveal=2, decay="none")


def scaffolded(scaffold, folder, cache):
    """One step under ``scaffold``; its records, each with the ids that were sampled: the text of an
    untaught policy does not survive decoding."""
    config = dataclasses.replace(study(temperature=1.0, steps=1), scaffold=scaffold)
    sampled = []

    def keep(trainer, output):
        for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True):
            sampled.append(ids[mask.bool()].tolist())
        return record(trainer, output)

    record = RecordingTrainer._record
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordingTrainer, "_record", keep)
        found = run(config, folder, cache)
    for one, ids in zip(found.records, sampled, strict=True):
        one["ids"] = ids
    return found


@pytest.fixture(scope="module")
def removed(tmp_path_factory, cache):
    return scaffolded(ON, tmp_path_factory.mktemp("removed"), cache)


def logprob(found, messages, record):
    """log p(completion | messages) at the initial weights, by hand."""
    tokenizer, model = found.trainer.processing_class, found.trainer.model
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    ids = torch.tensor([[*prompt, *record["ids"]]])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found.start[name])
        logits = model(ids).logits[0, len(prompt) - 1 : -1]
    model.load_state_dict(trained)
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None]).sum().item()


def shown_to(record, steps):
    row = {row.prompt_id: row for row in TASKS[TASK.name].rows(TASK, "train")}[record["prompt_id"]]
    return row, show(ON, row, record["member"], 4, record["step"], steps, 0)


def test_the_gap_is_what_the_scaffold_added(removed):
    for record in removed.records:
        row, shown = shown_to(record, 1)
        assert record["scaffold_items"] == list(shown.items)
        gap = record["component/scaffold_gap"]
        plain, helped = (logprob(removed, list(m), record) for m in (row.messages, shown.messages))
        assert record["logprob_sum"] == pytest.approx(plain, abs=1e-3)
        assert gap == pytest.approx(helped - plain, abs=2e-3)
        assert (abs(gap) < 1e-3) == (record["member"] >= 2)
    assert removed.lines[0]["metrics"]["scaffold/ratio"] == 0.5


def test_rollouts_that_see_nothing_are_those_of_an_unscaffolded_run(removed, tmp_path, cache):
    """The scaffold reaches the sampler: those who see it answer otherwise."""
    plain = scaffolded(Scaffold(), tmp_path, cache)
    same = [
        a["completion"] == b["completion"]
        for a, b in zip(removed.records, plain.records, strict=True)
    ]
    members = [record["member"] for record in plain.records]
    assert not any(s for s, member in zip(same, members, strict=True) if member < 2)
    assert "component/scaffold_gap" not in plain.records[0]


def test_a_kept_scaffold_is_trained_on(tmp_path, cache):
    kept = scaffolded(dataclasses.replace(ON, keep=True), tmp_path, cache)
    for record in kept.records:
        _, shown = shown_to(record, 1)
        assert record["component/scaffold_gap"] == pytest.approx(0.0, abs=1e-3)
        by_hand = logprob(kept, list(shown.messages), record)
        assert record["logprob_sum"] == pytest.approx(by_hand, abs=1e-3)


def test_nothing_is_shown_in_evaluation(removed):
    trainer = removed.trainer
    trainer.model.eval()
    asked = []
    trainer._scaffold, before = lambda *given: asked.append(given), trainer._scaffold
    row = TASKS[TASK.name].rows(TASK, "train")[0]
    inputs = [{"prompt": list(row.messages), "prompt_id": row.prompt_id}] * 4
    try:
        trainer._generate_and_score_completions(inputs)
    finally:
        trainer._scaffold = before
        trainer.model.train()
    assert asked == []
