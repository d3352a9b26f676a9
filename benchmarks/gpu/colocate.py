"""Trains a policy whose completions vLLM draws in its own process, and shows that its weights
arrive there.

    python -m benchmarks.gpu.colocate                                # random weights, on a GPU
    python -m benchmarks.gpu.colocate policy.path=FOLDER trainer.steps=3

Words are settings of a sweep; with runs_dir= the cell stays. After the last step vLLM's greedy
tokens are compared with the policy's by transformers, then both under a changed weight, and vLLM's
once more after its return.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import make_model
from experiments.sweep import cells_of
from experiments.train import run_cell
from study.cell.cells import save_cell
from study.cell.parts import read_all
from study.cell.records import read_metrics

SETTINGS = (
    *("study=gpu", "seed=0", "tracking=none", "judge=sim-fair", "task=instruct-mini"),
    "trainer=small-real",
    *("policy=smollm2-135m-instruct", "policy.dtype=bfloat16", "trainer.vllm.mode=colocate"),
    *("trainer.steps=3", "trainer.max_completion_length=32", "trainer.learning_rate=0.001"),
)
ROLLOUTS = 24
GREEDY_TOKENS = 16
CHANGES = (0.03, 0.06, 0.12, 0.24)
"""What is added to the adapter's weights, one after the other, until greedy tokens are others."""
RATIO = (0.8, 1.25)
"""What the mean over steps of how much likelier the policy finds vLLM's completions than vLLM may
be. Of one step of 8 completions it came to .88 to 1.26 where both have the same weights."""
DIFFERENCE = 0.1
"""How far both may be apart in a step, in nats a token; .04 to .05 by a vLLM in bfloat16."""


@dataclass(frozen=True)
class Engines:
    """Policy and vLLM on the same completions.

    Attributes:
        ratios: mean over completions of policy's over vLLM's probability, by step.
        differences: mean over tokens of how far their log-probabilities are apart, by step.
    """

    ratios: list[float]
    differences: list[float]

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, float | None]]) -> Engines:
        """Those of a cell's metrics. Raises KeyError or AssertionError: vLLM did not draw the
        completions of every step."""
        ratios = [step["policy/vllm_ratio"] for step in steps]
        differences = [step["policy/vllm_logp_difference"] for step in steps]
        known = [value for value in (*ratios, *differences) if value is not None]
        assert len(known) == 2 * len(steps) > 0, f"not in every step: {ratios}, {differences}"
        return cls(ratios=known[: len(steps)], differences=known[len(steps) :])

    def __str__(self) -> str:
        ratios = " ".join(f"{ratio:.3f}" for ratio in self.ratios)
        differences = " ".join(f"{difference:.3f}" for difference in self.differences)
        return f"policy to vLLM by step: {ratios}, nats a token apart: {differences}"

    def check(self) -> None:
        """Raise AssertionError where vLLM's probabilities are not the policy's."""
        assert RATIO[0] < statistics.fmean(self.ratios) < RATIO[1], str(self)
        assert max(self.differences) < DIFFERENCE, str(self)


@dataclass(frozen=True)
class Proof:
    """What a training with vLLM came to.

    Attributes:
        engines: how likely the policy finds vLLM's completions, by step.
        same: greedy tokens of vLLM and transformers that agree, as a share, before the change.
        moved: vLLM's greedy tokens that the changed weight changed, as a share.
        same_after: as ``same``, under the changed weight.
        stale: as ``same_after``, had the change not arrived.
        returned: vLLM's tokens that came back with the weight, as a share.
        rollouts: records of the cell.
    """

    engines: Engines
    same: float
    moved: float
    same_after: float
    stale: float
    returned: float
    rollouts: int

    def check(self) -> None:
        """Raise AssertionError where something did not arrive. Engines round differently, and vLLM
        takes the dtype of the folder, so that not every greedy token is the same."""
        assert self.rollouts == ROLLOUTS, f"{self.rollouts} records of {ROLLOUTS} rollouts"
        self.engines.check()
        assert self.same >= 0.5, f"{self.same:.0%} of the greedy tokens are the policy's"
        assert self.moved > 0, "a changed weight did not reach vLLM"
        assert self.same_after > self.stale, "what reached vLLM is not the changed weight"
        assert self.returned > 1 - self.moved / 2, "the weight's return did not reach vLLM"


def shared(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> float:
    """The share of tokens that stand at the same place in both."""
    pairs = [
        pair
        for one, other in zip(first, second, strict=True)
        for pair in zip(one, other, strict=True)
    ]
    return sum(a == b for a, b in pairs) / len(pairs)


def by_vllm(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of the trainer's engine, after the policy's weights were sent to it."""
    from vllm import SamplingParams  # ty: ignore[unresolved-import]

    trainer.vllm_generation.sync_weights()
    greedy = SamplingParams(temperature=0.0, max_tokens=GREEDY_TOKENS, ignore_eos=True)
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    outputs = trainer.vllm_generation.llm.generate(inputs, greedy, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def by_transformers(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of the policy itself."""
    import torch

    policy = trainer.accelerator.unwrap_model(trainer.model)
    was_training = policy.training
    policy.eval()
    completions = []
    with torch.no_grad():
        for prompt in prompts:
            ids = torch.tensor([prompt], device=policy.device)
            for _ in range(GREEDY_TOKENS):
                ids = torch.cat([ids, policy(ids).logits[:, -1:].argmax(-1)], dim=1)
            completions.append(ids[0, len(prompt) :].tolist())
    policy.train(was_training)
    return completions


def weights_arrive(trainer: Any, texts: Sequence[str]) -> tuple[float, ...]:
    """(same, moved, same after, stale, returned) of `Proof`; the policy is left as it was."""
    import torch

    prompts = [trainer.processing_class(text)["input_ids"] for text in texts]
    weights = [w for name, w in trainer.model.named_parameters() if "lora_B" in name]
    before, expected = by_vllm(trainer, prompts), by_transformers(trainer, prompts)
    kept = [weight.detach().clone() for weight in weights]
    draw, changed = torch.Generator().manual_seed(0), expected
    for size in CHANGES:  # how much moves most of the tokens depends on what was learned
        if shared(expected, changed) < 0.25:
            break
        with torch.no_grad():
            for weight in weights:
                weight.add_(size * torch.randn(weight.shape, generator=draw).to(weight))
        changed = by_transformers(trainer, prompts)
    after = by_vllm(trainer, prompts)
    with torch.no_grad():
        for weight, value in zip(weights, kept, strict=True):
            weight.copy_(value)
    again = by_vllm(trainer, prompts)
    return (
        shared(before, expected),
        1 - shared(before, after),
        shared(after, changed),
        shared(before, changed),
        shared(before, again),
    )


def prove(words: Sequence[str], runs_dir: Path) -> Proof:
    """Train the one cell that ``SETTINGS`` and ``words`` make in this process, and see what came of
    it. Raises AssertionError: the training failed."""
    from experiments.trainer.grpo import RecordingTrainer

    (cell,) = cells_of([*SETTINGS, f"runs_dir={runs_dir}", *words])
    save_cell(cell)
    arrived = []
    learn = RecordingTrainer.learn

    def learn_and_look(trainer: Any, checkpoint: Path | None) -> None:
        learn(trainer, checkpoint)
        arrived.append(weights_arrive(trainer, ["The capital of France is", "One, two, three,"]))

    RecordingTrainer.learn = learn_and_look  # ty: ignore[invalid-assignment]
    try:
        assert run_cell(cell.folder) == 0, (cell.folder / "status.json").read_text()
    finally:
        RecordingTrainer.learn = learn
    lines, _ = read_metrics(cell.folder.path)
    # a step whose groups are all equal has none
    assert any(line["metrics"]["policy/grad_norm"] for line in lines), "no step had a gradient"
    engines = Engines.of([line["metrics"] for line in lines])
    rows = [row for _, table in read_all(cell.folder / "rollouts") for row in table.to_pylist()]
    assert all(row["logprob_sum"] < 0 and row["reward"] is not None for row in rows)
    return Proof(engines, *arrived[0], len(rows))


def main() -> None:
    """Print what came of it; AssertionError where weights do not arrive."""
    with tempfile.TemporaryDirectory() as folder:
        words = sys.argv[1:]
        if not any(word.startswith("policy.path=") for word in words):
            words = [f"policy.path={make_model(Path(folder) / 'policy', '0.5B')}", *words]
        proof = prove(words, Path(folder) / "runs")
    print(proof.engines)
    print(
        f"greedy tokens alike in both engines {proof.same:.0%}, a changed weight changed"
        f" {proof.moved:.0%}, alike then {proof.same_after:.0%} and {proof.stale:.0%} without it,"
        f" back again {proof.returned:.0%}"
    )
    print(f"{proof.rollouts} rollouts recorded")
    proof.check()


if __name__ == "__main__":
    main()
