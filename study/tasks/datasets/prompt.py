"""The prompts of the sets: one text file for each, with slots such as ``{question}``."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from study.system.files import sha256

FOLDER = Path(__file__).with_name("prompts")
_SLOT = re.compile(r"\{(question|context|tests|choices)\}")


def render(name: str, **values: str) -> str:
    """The prompt file ``name`` with each slot filled; braces in the values stay what they are."""
    return _SLOT.sub(lambda slot: values[slot[1]], _template(name))


def hashes(name: str) -> dict[str, str]:
    """File name -> sha256 of the prompt files of a set."""
    paths = [FOLDER / f"{name}.txt", *sorted(FOLDER.glob(f"{name}-*.txt"))]
    return {path.name: sha256(path) for path in paths}


@functools.cache
def _template(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")
