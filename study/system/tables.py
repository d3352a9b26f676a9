"""Reads the TOML table beside a module: ``study/cell/records.toml`` is that of
``study/cell/records.py``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def table(module: str) -> dict[str, Any]:
    """The table of the module whose ``__file__`` this is."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))
