"""Update, reference log-probabilities and peak memory against TRL's, at SmolLM2's shape.

    python -m benchmarks.trainer.update [rounds=5] [prompt=192] [mean=64] [longest=128]

Gradients are compared first. TRL runs with gradient checkpointing, its default, and without. Times
are CPU seconds on one thread; each round lets all take turns. Memory is the growth of the peak of a
process of its own that makes one update; where the system does not tell it, that is printed.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import torch

from benchmarks.memory import UNKNOWN, peak_mib
from benchmarks.race import race, read_sizes
from benchmarks.trainer.peers import make_batch, make_trainer, smollm2


def update(trainer: Any, batch: dict[str, Any], ours: bool, checkpointing: bool = False) -> Any:
    """One loss and backward; the gradient of the adapter."""
    trainer.shares_prefixes = ours
    if checkpointing:
        trainer.model.gradient_checkpointing_enable({"use_reentrant": False})
    trainer.model.zero_grad()
    trainer._compute_loss(trainer.model, batch).backward()
    if checkpointing:
        trainer.model.gradient_checkpointing_disable()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def reference(trainer: Any, batch: dict[str, Any], ours: bool) -> torch.Tensor:
    """Log-probabilities under the model without its adapter, (G, longest)."""
    trainer.shares_prefixes = ours
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    keep = batch["completion_ids"].shape[1]
    with torch.no_grad(), trainer.model.disable_adapter():
        return trainer._logprobs_and_entropies(trainer.model, ids, mask, keep)[0]


def growth(sizes: dict[str, int], ours: bool, checkpointing: bool) -> float | None:
    """GiB that one update adds to the peak of a fresh process; None where none are seen."""
    torch.set_num_threads(1)
    trainer = make_trainer(smollm2(), rank=8)
    batch = make_batch(trainer, sizes["prompt"], sizes["mean"], sizes["longest"])
    trainer._checked = {True, False}
    before = peak_mib()
    update(trainer, batch, ours, checkpointing)
    after = peak_mib()
    if before is None or after is None or after <= before:
        return None
    return (after - before) / 1024


def compare_peaks(ours: float | None, theirs: float | None, without: float | None) -> str:
    """The line that says what an update of ours adds to the peak, and TRL's with and without
    gradient checkpointing."""
    if ours is None or theirs is None or without is None:
        return f"peak memory of the update: {UNKNOWN}"
    return (
        f"peak memory of the update: ours {ours:.2f} GiB, TRL as it is {theirs:.2f} "
        f"({theirs / ours:.1f}x), without checkpointing {without:.2f} ({without / ours:.1f}x)"
    )


def main() -> None:
    """Assert that both give the same, then race them."""
    sizes = read_sizes(rounds=5, prompt=192, mean=64, longest=128)
    torch.set_num_threads(1)
    trainer = make_trainer(smollm2(), rank=8)
    batch = make_batch(trainer, sizes["prompt"], sizes["mean"], sizes["longest"])
    trainer._checked = {True, False}
    theirs, mine = (update(trainer, batch, ours) for ours in (False, True))
    apart = ((mine - theirs).norm() / theirs.norm()).item()
    assert apart < 1e-5, apart
    tokens = int(batch["completion_mask"].sum())
    print(f"group of 8, prompt {sizes['prompt']}, {tokens} tokens; gradients differ by {apart:.1e}")
    expected, logprobs = (reference(trainer, batch, ours) for ours in (False, True))
    difference = ((logprobs - expected) * batch["completion_mask"]).abs().max().item()
    assert difference < 1e-4, difference
    race(
        lambda: update(trainer, batch, True),
        {
            "update, TRL as it is": lambda: update(trainer, batch, False, checkpointing=True),
            "update, TRL without checkpointing": lambda: update(trainer, batch, False),
        },
        sizes["rounds"],
        repeats=1,
        clock=time.process_time,
    )
    race(
        lambda: reference(trainer, batch, True),
        {"reference, TRL": lambda: reference(trainer, batch, False)},
        sizes["rounds"],
        repeats=1,
        clock=time.process_time,
    )
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        cases = [(True, False), (False, True), (False, False)]
        print(compare_peaks(*(pool.apply(growth, (sizes, *case)) for case in cases)))


if __name__ == "__main__":
    main()
