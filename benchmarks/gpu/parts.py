"""What `make gpu` tries: each part is a command of its own, which may break without the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRAINER = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
HOUSE = (*TRAINER, "hydra", "omegaconf", "mlflow", "pyarrow", "xxhash", "aiohttp")
"""What training a cell by `judgedrift sweep` imports."""


@dataclass(frozen=True)
class Part:
    """One line of the page.

    Attributes:
        command: words behind ``python -m``.
        on_cpu: the words of a rehearsal without a GPU; None where there is none.
        modules: that have to be there.
        gpus: how many it takes.
        shows: expression for the lines of its output that the page has; empty for all.
        limit_s: seconds after which it counts as hung.
    """

    name: str
    command: tuple[str, ...]
    on_cpu: tuple[str, ...] | None
    modules: Sequence[str]
    gpus: int = 1
    programs: tuple[str, ...] = ()
    shows: str = ""
    limit_s: int = 900


RACE = "gradients differ|ratio: median|TFLOP/s|rows alike|at its peak|layout:|out of memory"
CELLS = "rollouts, gradient norms"


def _race(shape: str) -> Part:
    race = "benchmarks.trainer.gpu"
    rehearsal = (race, "shape=tiny", "device=cpu", "rounds=2")
    return Part(f"race-{shape}", (race, f"shape={shape}"), rehearsal, TRAINER, shows=RACE)


def _cell(kind: str, gpus: int = 1, on_cpu: bool = False, **needs: tuple[str, ...]) -> Part:
    command = ("benchmarks.gpu.cells", kind)
    rehearsal = (*command, "device=cpu") if on_cpu else None
    modules = (*HOUSE, *needs.get("modules", ()))
    return Part(kind, command, rehearsal, modules, gpus, needs.get("programs", ()), CELLS)


PARTS = (
    Part(
        "doctor",
        ("judgedrift", "doctor"),
        ("judgedrift", "doctor"),
        HOUSE,
        shows="^(note|problem) |torch|GPU|vLLM",
    ),
    Part(
        "flex",
        ("benchmarks.gpu.flex",),
        ("benchmarks.gpu.flex", "device=cpu"),
        ("torch", "transformers"),
    ),
    _race("1.5B"),
    _race("7B"),
    *(
        Part(
            f"memory-{shape}",
            ("benchmarks.gpu.peak", f"shape={shape}"),
            ("benchmarks.gpu.peak", "shape=tiny"),
            (*TRAINER, "omegaconf"),
            shows="planned|taken",
        )
        for shape in ("1.5B", "7B")
    ),
    _cell("bf16", on_cpu=True),
    Part(
        "colocate",
        ("benchmarks.gpu.colocate",),
        None,
        (*HOUSE, "vllm"),
        shows="policy to vLLM|greedy tokens|rollouts recorded",
    ),
    _cell("server", gpus=2, modules=("vllm",), programs=("trl",)),
    _cell("fsdp", gpus=2, on_cpu=True),
    _cell("zero2", gpus=2, modules=("deepspeed",)),
    _cell("zero3", gpus=2, modules=("deepspeed",)),
    _cell("leases", modules=("vllm",), programs=("vllm",)),
)


def ifeval(checkpoint: str, limit: str = "541") -> Part:
    """IFEval of a model folder, an adapter's or a run's, answered by transformers or, where it is,
    vLLM."""
    words = ("judgedrift", "evaluate", "ifeval", checkpoint, f"limit={limit}", "allow_missing=true")
    return Part("ifeval", words, words, (*HOUSE, "if_verifiable"), shows="prompt_|instruction_")
