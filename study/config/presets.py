"""The presets of ``conf/``: a folder is a group, a YAML file in it a preset."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from study.config.bounds import shown
from study.errors import UserError
from study.system.files import read_yaml

CONF = Path(__file__).resolve().parents[2] / "conf"
NEAREST = 3
"""Names that a message offers in place of one that is not known."""
OTHER = "openai-compatible"
"""The preset of models that have none of their own."""
FEW = 5
"""Names that are all listed."""


def preset_names(group: str) -> list[str]:
    """The presets of a config group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def preset_groups() -> list[str]:
    """The config groups."""
    return sorted({path.parent.name for path in CONF.glob("*/*.yaml")})


def nearest(word: str, words: Iterable[str], most: int = NEAREST) -> list[str]:
    """The words that are most like ``word``: those that are spelled nearly so, then those that
    contain it."""
    names = list(words)
    close = difflib.get_close_matches(word, names, n=most)
    inside = [name for name in names if len(word) > 2 and word.lower() in name.lower()]
    return list(dict.fromkeys([*close, *inside]))[:most]


def any_of(words: list[str]) -> str:
    """``a, b or c``."""
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def read_preset(group: str, name: str) -> Mapping[str, Any]:
    """What the file of a preset sets itself, without Hydra and without the presets it builds on.
    Raises UserError: there is no such preset, or its file cannot be read."""
    if name not in preset_names(group):
        raise UserError(no_preset(group, name))
    content = read_yaml(CONF / group / f"{name}.yaml")
    content.pop("defaults", None)
    return content


def no_preset(group: str, name: str) -> str:
    """What to say of a name that no preset of a group has."""
    names = preset_names(group)
    near = nearest(name, names)
    if near:
        offered = f"Did you mean {any_of(near)}?"
    elif len(names) <= FEW:
        offered = f"There is {any_of(names)}."
    else:
        offered = f"There are {', '.join(names[:NEAREST])} and {len(names) - NEAREST} more."
    example = f" Type for example {group}={near[0]}." if near else ""
    if not near and OTHER in names:
        example = f" Type {group}={OTHER} for any other model behind an OpenAI-compatible endpoint."
    return (
        f"{group}={shown(name)} is not a preset. {offered}{example} Presets are the files of"
        f" conf/{group}; for a new one, write conf/{group}/NAME.yaml."
    )
