"""What other programs call a command: ``other_names.toml``, a word and what is typed here."""

from __future__ import annotations

from judgedrift.commands import NAME
from study.system.tables import table

OTHER_NAMES: dict[str, list[str]] = table(__file__)
"""Word -> what to type behind ``judgedrift``, and what that does."""


def instead_of(word: str) -> str:
    """What does here what a word of another program means, and what to type; empty for a word that
    is not known."""
    typed, what = OTHER_NAMES.get(word.lower(), ("", ""))
    return f"{what} Type: {NAME} {typed}" if typed else ""
