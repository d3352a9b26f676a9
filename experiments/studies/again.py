"""The command line that makes a cell again, found from the cell's config.

Presets are chosen for each group, the rest are settings; what comes of that is composed, and
compared with the cell by its hash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from experiments.sweep import cells_of
from study.cell.cells import Cell
from study.config.identity import ABSENT, flatten, identifying, left_out
from study.config.presets import preset_names, read_preset
from study.errors import UserError

GROUPS = ("judge", "executor", "policy", "task", "reward", "scaffold", "trainer")
FILLED = ("shadow_judges", "correction.parts")
"""What a sweep fills in by itself, from ``shadow`` and ``correction``."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:+-]*")


def arguments_of(cell: Cell) -> list[str]:
    """The arguments of a sweep of this one cell; empty where none makes a cell of its hash, as for
    one of an older version."""
    arguments = [
        f"{group}={name}" for group in GROUPS if (name := _preset(group, cell.data[group]))
    ]
    arguments += [f"study={cell.config.study}", f"seed={cell.config.seed}"]
    if cell.config.shadow:
        arguments.append(f"shadow={value_text(list(cell.config.shadow))}")
    try:
        (rebuilt,) = cells_of(arguments)
        settings = _settings(rebuilt.data, cell.data)
        typed = [*arguments, *(f"{key}={value_text(value)}" for key, value in settings.items())]
        (rebuilt,) = cells_of(typed)
    except (UserError, ValueError):
        return []
    if rebuilt.id != cell.id:
        return []
    factors = value_text(list(cell.config.factors))
    return (
        typed if rebuilt.config.factors == cell.config.factors else [*typed, f"factors={factors}"]
    )


def _preset(group: str, data: object) -> str:
    """The preset of a group that a part of a config is nearest to: that of its name, else the one
    with which it has the most values in common."""
    names = [name for name in preset_names(group) if name != "base"]
    flat = flatten(data)
    if flat.get("name") in names and group not in ("reward", "scaffold"):
        return str(flat["name"])
    best, most = "", float("-inf")
    for name in names:
        values = flatten(read_preset(group, name))
        equal = sum(1 if flat.get(key) == value else -1 for key, value in values.items())
        if equal > most:
            best, most = name, equal
    return best


def _settings(data: Mapping[str, object], target: Mapping[str, object]) -> dict[str, object]:
    """Keys to set in ``data`` so that it is what ``target`` is, as far as that is in the hash."""
    here, there = identifying(data), identifying(target)
    settings: dict[str, object] = {}
    for key in sorted({*here, *there}):
        if here.get(key, ABSENT) != there.get(key, ABSENT) and not key.startswith(FILLED):
            path, value = _at(target, key)
            if value != ABSENT:
                settings[path] = value
    return settings


def _at(data: Mapping[str, object], key: str) -> tuple[str, object]:
    """The value at a flat key, or the whole list that it is in, with the key of that."""
    value: object = data
    names = key.split(".")
    for place, name in enumerate(names):
        if not isinstance(value, Mapping):
            return ".".join(names[:place]), value
        if name not in value:
            return key, left_out(key)
        value = value[name]
    return key, value


def value_text(value: Any) -> str:
    """A value as Hydra reads it behind ``key=``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{value_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(value_text, value)) + "]"
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.fullmatch(text) and not _is_other(text)):
        return text
    # Hydra takes a backslash for itself, but where a quote stands behind it
    quoted = re.sub(r"(\\*)('|$)", lambda at: at[1] * 2 + "\\'" * bool(at[2]), text)
    return f"'{quoted}'"


def _is_other(text: str) -> bool:
    """Whether Hydra would read a text without quotes as a number, a truth value or nothing."""
    if text.lower() in ("null", "true", "false", "nan", "inf"):
        return True
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True
