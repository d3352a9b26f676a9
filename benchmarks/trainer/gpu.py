"""Update and generation against TRL's at the shapes of Qwen2.5, random weights, bfloat16, LoRA.

    python -m benchmarks.trainer.gpu shape=1.5B        # or 7B; on a GPU
    python -m benchmarks.trainer.gpu shape=tiny device=cpu rounds=2

Further words: rounds=5 prompts=4 prompt=512 mean=512 longest=1024 rank=64 stop=512. Gradients are
compared first, then all take turns. Peers are TRL with and without gradient checkpointing, and the
packed forward of its experimental trainer, which computes shared prefixes once, too.

The share of a GPU's peak counts the operations that the packed batch needs, none that are repeated.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from trl.experimental.async_grpo import packing

from benchmarks.race import race, read_sizes, seconds
from benchmarks.trainer.generation import ours as our_tokens
from benchmarks.trainer.generation import prepare
from benchmarks.trainer.generation import theirs as their_tokens
from benchmarks.trainer.peers import GROUP, make_batch, make_trainer, qwen25
from benchmarks.trainer.update import update
from experiments.plan.memory import GIB, Shape, read_shape
from experiments.trainer import prefix

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bfloat16 operations per second by the maker's data sheet."""
SIZES = {"prompts": 4, "prompt": 512, "mean": 512, "longest": 1024, "rank": 64, "stop": 512}
SMALL = {"prompts": 2, "prompt": 24, "mean": 8, "longest": 16, "rank": 4, "stop": 16}


def operations(shape: Shape, batch: dict[str, Any], rank: int) -> float:
    """Floating-point operations of one update: each prompt once, the adapter alone trained.

    Two for each weight and token forward, two backward for what passes through, and for the adapter
    two more; attention counts pairs of tokens that see each other, its backward twice the forward.
    """
    lengths = (batch["completion_mask"].sum(1) - 1).clamp(min=0).tolist()
    prompts = batch["prompt_mask"].sum(1)[::GROUP].tolist()
    tokens = sum(prompts) + sum(lengths)
    pairs = sum(n * (n + 1) / 2 for n in prompts) + sum(
        n * prompts[row // GROUP] + n * (n + 1) / 2 for row, n in enumerate(lengths)
    )
    scored = int(batch["completion_mask"].sum())
    linear = tokens * (4 * shape.linear + 6 * shape.adapter(rank))
    attention = 12 * pairs * shape.query * shape.layers
    return linear + attention + 4 * scored * shape.vocabulary * shape.hidden


def packed_kernel() -> Any:
    """What TRL's packed forward calls for attention: its own choice where that can be had, else
    PyTorch's of variable lengths, and on a CPU one call for each segment."""
    if torch.cuda.is_available():
        try:
            return packing._flash_attn()
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            print(f"TRL's own kernel cannot be had ({type(error).__name__}); PyTorch's is taken")
            from torch.nn.attention.varlen import varlen_attn

            def by_torch(q: Any, k: Any, v: Any, *bounds: Any, softmax_scale: Any, **_: Any) -> Any:
                repeats = q.shape[1] // k.shape[1]
                k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
                return varlen_attn(q, k, v, *bounds, scale=softmax_scale, window_size=(-1, 0))

            return SimpleNamespace(flash_attn_varlen_func=by_torch)
    return SimpleNamespace(flash_attn_varlen_func=by_segment)


def by_segment(
    q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, *_: Any, softmax_scale: Any, **__: Any
) -> Any:
    """(N, H, D) of segments that end where ``ends_q`` and ``ends_k`` say; keys end with queries."""
    parts = []
    bounds = (pairwise(x.tolist()) for x in (ends_q, ends_k))
    for (start, end), (first, last) in zip(*bounds, strict=True):
        size, keys = end - start, last - first
        sees = torch.ones(size, keys, dtype=torch.bool).tril(keys - size)
        rows = (q[start:end], k[first:last], v[first:last])
        out = scaled_dot_product_attention(
            *(x.transpose(0, 1)[None] for x in rows),
            attn_mask=sees,
            scale=softmax_scale,
            enable_gqa=True,
        )
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


class Packed:
    """The update as TRL's experimental trainer makes it, on the policy of ``trainer``."""

    def __init__(self, trainer: Any, batch: dict[str, Any]) -> None:
        kernel = packed_kernel()
        packing._flash_attn = lambda: kernel
        packing.register_tree_attention()
        self.trainer, self.batch = trainer, batch
        self.base = trainer.model.get_base_model()

    def inputs(self) -> dict[str, torch.Tensor]:
        """One row of all rollouts, as the trainer's collator packs it."""
        row, batch = packing.TreeRow(), {n: v.cpu() for n, v in self.batch.items()}
        for index, advantage in enumerate(batch["advantages"].tolist()):
            is_answer = batch["completion_mask"][index].bool()
            prompt, answer = batch["prompt_ids"][index], batch["completion_ids"][index][is_answer]
            ids = torch.cat([prompt, answer])
            mask = torch.cat([torch.zeros_like(prompt), torch.ones_like(answer)])
            row.add(
                {
                    "input_ids": ids,
                    "completion_mask": mask,
                    "old_log_probs": torch.zeros(len(ids)),
                    "advantage": advantage,
                    "group_id": index // GROUP,
                }
            )
        device = self.trainer.accelerator.device
        return {name: value.to(device) for name, value in row.pack().items()}

    def __call__(self) -> torch.Tensor:
        """One loss and backward; the gradient of the adapter."""
        trainer = self.trainer
        trainer.model.zero_grad()
        inputs = self.inputs()
        longest_q, longest_k = inputs["tree_max_seqlens"].tolist()
        self.base.set_attn_implementation(packing.TREE_ATTENTION)
        try:
            with trainer.accelerator.autocast():
                outputs = trainer.model(
                    input_ids=inputs["input_ids"][None],
                    position_ids=inputs["position_ids"][None],
                    shift_labels=inputs["shift_labels"][None],
                    fused_lm_head=True,
                    tree_kv_index=inputs["tree_kv_index"],
                    tree_cu_seqlens_q=inputs["tree_cu_seqlens_q"],
                    tree_cu_seqlens_k=inputs["tree_cu_seqlens_k"],
                    tree_max_seqlen_q=longest_q,
                    tree_max_seqlen_k=longest_k,
                )
            logprobs = outputs.log_probs.flatten()[inputs["token_index"]]
            ratios = (logprobs - logprobs.detach()).exp()
            (-(ratios * inputs["advantages"]).sum() / len(logprobs)).backward()
        finally:
            self.base.set_attn_implementation(prefix.NAME)
        parameters = trainer.model.parameters()
        return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


def finished(call: Callable[[], Any]) -> Callable[[], None]:
    """The call and then all that it left on the GPU."""

    def whole() -> None:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return whole


def fits(name: str, call: Callable[[], Any]) -> torch.Tensor | None:
    """What the call returns, with its peak of memory on a GPU; None, said, where it is too much."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        gradient = call()
    except torch.OutOfMemoryError:
        print(f"{name}: out of memory")
        return None
    if torch.cuda.is_available():
        print(f"{name}: {torch.cuda.max_memory_allocated() / GIB:.1f} GiB at its peak")
    return gradient


def race_updates(trainer: Any, batch: dict[str, Any], sizes: dict[str, int]) -> None:
    """Assert that all give one gradient, race those that fit, and print our share of the peak."""
    ours = lambda: update(trainer, batch, True)  # noqa: E731
    mine = fits("ours", ours)
    assert mine is not None and trainer.shares_prefixes, "the packed forward is not taken here"
    layout = trainer._layouts[0]
    print(f"layout: {layout.__name__ if layout else 'by size'}")
    peers = {
        "update, TRL as it is": lambda: update(trainer, batch, False, checkpointing=True),
        "update, TRL without checkpointing": lambda: update(trainer, batch, False),
        "update, TRL's packed forward": Packed(trainer, batch),
    }
    limit = 1e-4 if trainer.model.dtype == torch.float32 else 0.1
    for name in list(peers):
        gradient = fits(name, peers[name])
        if gradient is None:
            del peers[name]
            continue
        apart = ((mine - gradient).norm() / gradient.norm()).item()
        print(f"{name}: gradients differ by {apart:.1e}")
        assert apart < limit, apart
    turns = {name: finished(peer) for name, peer in peers.items()}
    race(finished(ours), turns, sizes["rounds"], repeats=1)
    with tempfile.TemporaryDirectory() as folder:
        trainer.model.config.save_pretrained(folder)
        shape = read_shape(Path(folder))
    assert shape is not None
    taken = min(seconds(finished(ours)) for _ in range(sizes["rounds"]))
    rate = operations(shape, batch, sizes["rank"]) / taken
    print(f"ours: {rate / 1e12:.3g} TFLOP/s, {shares(rate, trainer.model.dtype)}")


def shares(rate: float, dtype: torch.dtype) -> str:
    """A rate as shares of what a large product reaches here, and of the data sheet."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    side = 8192 if device.type == "cuda" else 512
    left, right = torch.randn(2, side, side, device=device, dtype=dtype)
    product = finished(lambda: left @ right)
    product()
    reached = 2 * side**3 / min(seconds(product) for _ in range(5))
    sentences = [f"{rate / reached:.0%} of a product of {side} x {side} here"]
    if device.type == "cuda":
        name = torch.cuda.get_device_name()
        sentences += [
            f"{rate / peak:.0%} of {kind}'s" for kind, peak in PEAKS.items() if kind in name
        ]
    return ", ".join(sentences)


def race_generation(trainer: Any, sizes: dict[str, int]) -> None:
    """Greedy tokens of groups; rounding may part two paths of bfloat16, and how often is said."""
    vocabulary = trainer.model.config.vocab_size
    draw = torch.Generator().manual_seed(0)
    shape = (sizes["prompts"], sizes["prompt"])
    prompts = torch.randint(5, vocabulary, shape, generator=draw).tolist()
    owner = [u for u in range(len(prompts)) for _ in range(GROUP)]
    prepare(trainer, list(range(0, vocabulary, sizes["stop"])), sizes["longest"])
    mine, expected = our_tokens(trainer, prompts, owner), their_tokens(trainer, prompts, owner)
    same = sum(a == b for a, b in zip(mine, expected, strict=True))
    assert same == len(mine) or trainer.model.dtype != torch.float32
    drawn = [sum(map(len, rows)) for rows in (mine, expected)]
    print(f"generation: {same} of {len(mine)} rows alike; {drawn[0]} tokens, TRL {drawn[1]}")
    race(
        finished(lambda: our_tokens(trainer, prompts, owner)),
        {"generation, TRL": finished(lambda: their_tokens(trainer, prompts, owner))},
        sizes["rounds"],
        repeats=1,
    )


def main() -> None:
    """Race one shape on one device."""
    words = dict(word.partition("=")[::2] for word in sys.argv[1:] if not word[-1:].isdecimal())
    words = {"shape": "1.5B", "device": "cuda"} | words
    sys.argv[1:] = [word for word in sys.argv[1:] if word.partition("=")[0] not in words]
    shape, device = words.pop("shape"), words.pop("device")
    if shape not in ("tiny", "1.5B", "7B") or device not in ("cuda", "cpu") or words:
        sys.exit("legal are shape=tiny, 1.5B or 7B, device=cuda or cpu, and numbers")
    sizes = read_sizes(rounds=5, **(SMALL if shape == "tiny" else SIZES))
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        sys.exit("there is no GPU here; to run every line on a CPU: shape=tiny device=cpu")
    model = qwen25(shape)
    rows = sizes["prompts"] * GROUP
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    print(f"Qwen2.5's shape {shape} on {name}, {model.dtype}, {sizes}")
    trainer = make_trainer(model, sizes["rank"], rows, beta=0.0)
    batch = make_batch(trainer, sizes["prompt"], sizes["mean"], sizes["longest"], sizes["prompts"])
    race_updates(trainer, batch, sizes)
    race_generation(trainer, sizes)


if __name__ == "__main__":
    main()
