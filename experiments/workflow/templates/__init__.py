"""Programs that everybody knows: where AFlow's search starts, and three that people write by hand.

They are what baselines run, and what may take the place of an invalid program as a treatment.
"""

from __future__ import annotations

from pathlib import Path

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parent.glob("*.txt"))
}
"""Name -> program."""
AFLOW = {
    "gsm8k": "custom",
    "math": "custom",
    "humaneval": "code",
    "mbpp": "code",
    "hotpotqa": "answer",
    "drop": "answer",
}
"""Data set -> the template that AFlow's search starts from."""
FIRST = {"math": "custom", "code": "code", "qa": "answer"}
"""Domain -> the same."""

__all__ = ["AFLOW", "FIRST", "TEMPLATES"]


def __dir__() -> list[str]:
    return [*__all__]
