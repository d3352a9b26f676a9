"""Says what a setting, a part of the settings or a command is: ``judgedrift help WORD``.

A setting is named by its key, trainer.learning_rate, or as other programs call it, lr.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from analysis.display.printed import aligned
from judgedrift.commands import COMMANDS, NAME
from judgedrift.other_names import instead_of
from judgedrift.presets import about, names
from study.cli import command, word
from study.config.bounds import shown
from study.config.field_names import meant
from study.config.identity import flatten
from study.config.presets import GROUPS, any_of, nearest, preset_groups, read_preset
from study.config.settings import Setting, parts, settings
from study.errors import UserError
from study.screen import columns, visible

SET_BY = 6
"""Presets that are named as setting a key."""


@dataclass(frozen=True)
class Options:
    """Options of `judgedrift.help`: the word to explain."""

    name: str = word("a setting, such as trainer.learning_rate, a part, such as trainer")


@command("judgedrift.help trainer.learning_rate", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0, 2 for a word that is not known."""
    print(visible("\n".join(explained(options.name.partition("=")[0].strip(" -+~")))))
    return 0


def explained(name: str) -> list[str]:
    """What there is to say of a setting, a part, a group of presets or a preset.
    Raises UserError: it is none of them."""
    if name in settings():
        return list(of_setting(settings()[name]))
    if name in parts() or name in preset_groups():
        return list(of_part(name))
    part, _, last = name.rpartition(".")
    within = [key for key in meant(last) if key.startswith(f"{part}.")] if part else meant(name)
    keys = within or [key for key in (*settings(), *parts()) if key.rpartition(".")[2] == name]
    if keys:
        one = explained(keys[0]) if len(keys) == 1 else []
        others = [f"{key}: {_short(key)}" for key in keys] if len(keys) > 1 else []
        return [f"{shown(name)} is {any_of(keys)} here.", "", *(one or _filled(others))]
    if group := next((each for each in preset_groups() if name in names(each)), ""):
        return _filled([f"{group}={name} is a preset: {about(group, name)}."])
    if instead := instead_of(name):
        return _filled([instead])
    near = nearest(name, [*settings(), *parts(), *COMMANDS])
    guess = f" Did you mean {any_of(near)}?" if near else ""
    raise UserError(
        f"{shown(name)!r} is no setting, preset or command.{guess} To see all settings of a part,"
        f" type for example: {NAME} help trainer"
    )


def of_setting(setting: Setting) -> Iterator[str]:
    """A line for each fact of a setting."""
    yield f"{setting.key}={setting.value}"
    facts = {
        "meaning": setting.meaning,
        "type": setting.kind,
        "unit": setting.unit or "none",
        "default": setting.default_text,
        "legal": setting.legal_text or f"any value of its type: {setting.kind}",
        "changes": setting.effect,
        "set by": ", ".join(set_by(setting.key)),
        "type it": f"{NAME} sweep {setting.key}={example(setting)}",
    }
    for label, text in facts.items():
        if text:
            yield from _wrapped(text, f"  {label:<9}")


def example(setting: Setting) -> str:
    """A value that may stand behind a key."""
    if setting.default in (None, "", [], {}):
        return "VALUE"
    return setting.default_text


def set_by(key: str) -> Iterator[str]:
    """Presets of the key's group that set it, and to what."""
    group, _, rest = key.partition(".")
    values_by_preset = [
        (name, values[rest])
        for name in (names(group) if group in preset_groups() else [])
        if rest in (values := flatten(dict(read_preset(group, name))))
    ]
    for name, value in values_by_preset[:SET_BY]:
        yield f"{group}={name} ({'null' if value is None else value})"
    if len(values_by_preset) > SET_BY:
        yield f"and {len(values_by_preset) - SET_BY} more presets"


def of_part(name: str) -> Iterator[str]:
    """A part of the settings: what it is, its presets, and a line for each of its keys."""
    text = parts().get(name) or GROUPS.get(name, "")
    yield from _filled(
        [f"{name}: {text}".rstrip(".") + f". Its settings are typed {name}.KEY=VALUE."]
    )
    if name in preset_groups() and name in GROUPS:
        yield f"Its presets: {NAME} presets {name}"
    inside = [each for each in parts() if each.rpartition(".")[0] == name]
    rows = [
        {
            "setting": f"{key.removeprefix(f'{name}.')}=",
            "default": setting.default_text,
            "meaning": _plain(setting.meaning),
        }
        for key, setting in settings().items()
        if key.rpartition(".")[0] == name
    ]
    rows += [
        {
            "setting": f"{each.removeprefix(f'{name}.')}.",
            "default": "",
            "meaning": _plain(parts()[each]),
        }
        for each in inside
    ]
    yield from ["", *aligned(rows)] if rows else []


def _short(key: str) -> str:
    """What a key or a group of presets is, in a sentence."""
    return settings()[key].meaning if key in settings() else GROUPS.get(key, parts().get(key, ""))


def _filled(texts: list[str]) -> list[str]:
    return [line for text in texts for line in _wrapped(text)]


def _plain(text: str) -> str:
    return text.replace("`", "")


def _wrapped(text: str, label: str = "") -> list[str]:
    """A text without marks of code, in lines; those after the first begin below it."""
    return textwrap.wrap(
        _plain(text),
        columns(),
        initial_indent=label,
        subsequent_indent=len(label) * " ",
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    sys.exit(main())
