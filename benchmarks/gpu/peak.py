"""Peak memory of one update against what the plan says of it, at Qwen2.5's shapes.

    python -m benchmarks.gpu.peak [shape=1.5B|7B|tiny]

The update is ours with a LoRA adapter and its optimizer; `judgedrift plan` refuses and warns by
the figure that it is compared with. Without a GPU the plan's figure alone is printed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.trainer.gpu import SIZES, SMALL
from benchmarks.trainer.peers import GROUP, make_batch, make_trainer, qwen25
from benchmarks.trainer.update import update
from experiments.plan.memory import GIB, peak, read_shape, step_memory
from study.config.schema import Lora, Policy, Study, Trainer

WITHIN = (0.6, 1.1)
"""Measured over planned: the plan may promise more than is taken, hardly less."""


def main() -> None:
    """AssertionError where the plan is far off."""
    size = dict(word.split("=") for word in sys.argv[1:]).get("shape", "1.5B")
    sizes = SMALL if size == "tiny" else SIZES
    rows = sizes["prompts"] * GROUP
    model = qwen25(size)
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        shape = read_shape(Path(folder))
    assert shape is not None
    trainer = make_trainer(model, sizes["rank"], rows, beta=0.0)
    dtype = str(model.dtype).removeprefix("torch.")
    settings = Trainer(
        prompts_per_step=sizes["prompts"],
        group_size=GROUP,
        micro_batch=rows,
        max_completion_length=sizes["longest"],
        gradient_checkpointing=False,
        beta=0.0,
    )
    config = Study(policy=Policy(dtype=dtype, lora=Lora(r=sizes["rank"])), trainer=settings)
    planned = step_memory(shape, config, sizes["prompt"])
    planned["generation"] = 0  # an update is measured
    print(f"planned {peak(planned) / GIB:.2f} GiB of {size}: ", end="")
    print(", ".join(f"{name} {value / GIB:.2f}" for name, value in planned.items()))
    batch = make_batch(trainer, sizes["prompt"], sizes["mean"], sizes["longest"], sizes["prompts"])
    optimizer = torch.optim.AdamW([w for w in trainer.model.parameters() if w.requires_grad])
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        update(trainer, batch, ours=True)
        optimizer.step()
    assert trainer.shares_prefixes, "the packed forward is not taken here"
    if torch.cuda.is_available():
        taken = torch.cuda.max_memory_allocated()
        print(f"taken {taken / GIB:.2f} GiB, {taken / peak(planned):.2f} of what is planned")
        assert WITHIN[0] < taken / peak(planned) < WITHIN[1], "the plan's figure is far off"


if __name__ == "__main__":
    main()
