"""The name by which a model's weights are known: that of its folder, with their fingerprint."""

from __future__ import annotations

import hashlib
from pathlib import Path

EDGE = 1 << 20
"""Bytes at either end of a weight file that its fingerprint covers."""


def label(folder: Path) -> str:
    """Name of a model with a fingerprint of its weights, which any update of them changes."""
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if not weights:
        return str(folder)
    digest = hashlib.blake2b(digest_size=5)
    for path in weights:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(EDGE))
            file.seek(max(0, size - EDGE))
            digest.update(file.read(EDGE))
    parts = folder.resolve().parts
    last = len(parts) - 1
    cut = max((n for n, name in enumerate(parts) if name in ("checkpoints", "kept")), default=last)
    nested = cut < last or parts[-1] == "policy"
    return f"{'/'.join(parts[cut - 1 :] if nested else parts[-1:])}@{digest.hexdigest()}"


def label_of(model: str, adapter: Path | None) -> str:
    """That of a model, with its adapter where it has one."""
    return label(Path(model)) + (f" + {label(adapter)}" if adapter else "")
