"""What other programs call our settings: ``field_names.toml``, a name and the keys it means."""

from __future__ import annotations

from study.system.tables import table

_TABLE = table(__file__)
FIELD_NAMES: dict[str, list[str]] = _TABLE["keys"]
"""Name -> keys and groups of presets, the likeliest first."""
NEEDLESS: dict[str, str] = _TABLE["needless"]
"""Name of a setting that is not needed here -> why."""


def meant(word: str) -> list[str]:
    """The keys that a word of another program stands for; none for a word that is not known."""
    return FIELD_NAMES.get(word.strip("-").replace("-", "_").lower(), [])
