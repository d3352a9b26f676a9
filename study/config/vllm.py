"""How a policy's completions are drawn by vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from study.config import bounds
from study.config.marks import run_time


@dataclass(frozen=True)
class Vllm:
    """Completions by vLLM through TRL's own client and engine; the update stays as it is.

    TRL weighs each completion by how much likelier the policy finds it than vLLM did.
    """

    mode: str = bounds.choice("none", "none", "server", "colocate")
    """server asks a vLLM server that has GPUs of its own; colocate runs vLLM in the cell's
    processes, on the GPUs that train."""
    url: str = run_time("")
    """Address of the server of mode=server, such as http://127.0.0.1:8000. A server serves one
    cell."""
    gpu_memory: float = run_time(bounds.number(0.3, above=0, high=1, unit="share of memory"))
    """Share of each GPU for vLLM's weights and cache with mode=colocate."""
    tensor_parallel: int = bounds.number(1, low=1, high=1024, unit="GPUs")
    """Of mode=colocate: GPUs that share one copy of the model; the cell's processes divide by
    it."""
    max_model_length: int = bounds.number(0, low=0, high=100_000_000, unit="tokens")
    """Context in tokens with mode=colocate; 0 takes the model's own."""
