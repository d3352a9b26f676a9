"""FlexAttention over a packed batch, forward and backward, against plain attention of each answer.

    python -m benchmarks.gpu.flex [device=cpu]

It needs torch and transformers alone. On a GPU the kernel is compiled, in bfloat16 and at the heads
of Qwen2.5-1.5B; on a CPU it is plain arithmetic in float32 on few tokens, and forward alone.
"""

from __future__ import annotations

import sys
import warnings

import torch

from experiments.trainer import prefix

HEADS, KEYS, WIDTH = 12, 2, 128
PROMPTS = {"cuda": ([512, 300, 700, 129], 256), "cpu": ([40, 9], 12)}
"""Lengths of prompts, and the longest of the eight answers to each."""
ALLOWED = {"cuda": 0.02, "cpu": 1e-5}
"""Relative difference, of rounding to bfloat16 twice and of float32."""


def packed(device: str, layout: type[prefix.PrefixLayout]) -> tuple[prefix.Layout, int]:
    """A layout over prompts with eight answers each, and its number of tokens."""
    prompts, longest = PROMPTS[device]
    width = max(prompts)
    rows = [(size, 2 + (k * 7) % (longest - 1)) for size in prompts for k in range(8)]
    ids, mask = torch.zeros(2, len(rows), width + longest, dtype=torch.long)
    for row, (prompt, answer) in enumerate(rows):
        mask[row, width - prompt : width + answer] = 1
        ids[row, width - prompt : width] = 2 + row // 8
    batch = prefix.pack(ids.to(device), mask.to(device), longest, 0, layout)
    return batch.layout, batch.ids_1_N.shape[1]


def main() -> None:
    """AssertionError where result or gradients are not those of plain attention."""
    device = dict(word.split("=") for word in sys.argv[1:]).get("device", "cuda")
    if device == "cpu":
        warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    draw = torch.Generator().manual_seed(0)
    _, tokens = packed(device, prefix.Flex)
    sizes = (HEADS, KEYS, KEYS, HEADS)  # queries, keys, values, and what flows back
    *inputs, upstream = (
        torch.randn(1, heads, tokens, WIDTH, generator=draw).to(device, dtype) for heads in sizes
    )
    results = []
    for kind in (prefix.Flex, prefix.Loop):
        layout, _ = packed(device, kind)
        q, k, v = (x.clone().requires_grad_(device == "cuda") for x in inputs)
        out = layout.attend(q, k, v, None)
        results.append([out])
        if device == "cuda":  # on a CPU it has no backward
            out.backward(upstream)
            results[-1] += [q.grad, k.grad, v.grad]
    apart = [
        ((ours - plain).norm() / plain.norm()).item() for ours, plain in zip(*results, strict=True)
    ]
    named = zip(("result", "dQ", "dK", "dV"), apart, strict=False)
    print(f"{tokens} tokens, {dtype}: " + ", ".join(f"{name} {value:.1e}" for name, value in named))
    assert max(apart) < ALLOWED[device], "FlexAttention differs from plain attention"


if __name__ == "__main__":
    main()
