"""Why Hydra or OmegaConf refused a command line, in our words.

Their exceptions name a file, a node or a struct, and list all that there is. Here the arguments
themselves are looked at: which of them is no preset, no setting, or no legal value, what is nearest
to it, and what to type. Where nothing is found, their own words stand, on one line.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any

from study.config.bounds import shown
from study.config.field_names import NEEDLESS, meant
from study.config.marks import dataclass_of, field_types
from study.config.presets import (
    FEW,
    any_of,
    nearest,
    no_preset,
    preset_groups,
    preset_names,
)
from study.config.schema import Study, check_at
from study.errors import UserError, chain
from study.system.secret_names import may_hold_key
from study.system.secrets import redact

_SPAN = re.compile(r"([0-9]{1,9}) *(?:-|:|\.{2,3}) *([0-9]{1,9})")
"""A range of whole numbers, as other programs have it."""
FLAGS = frozenset(
    "-h --help --hydra-help --version --cfg -c --resolve --package -p --run -r --multirun -m"
    " --shell-completion -sc --config-path -cp --config-name -cn --config-dir -cd --info -i"
    " --experimental-rerun".split()
)
"""What Hydra takes beside settings."""
_KEY = re.compile(r"[A-Za-z_][\w.]*")
_IN_QUOTES = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|true|false|null", re.IGNORECASE
)
"""A text that had quotes around it, or it would be a number, a truth value or nothing."""


def reason(error: BaseException, arguments: Sequence[str]) -> str:
    """Why a command line was refused, and what to type; empty where its arguments do not tell.
    What is ours stands as it is."""
    if refused := next((link for link in chain(error) if isinstance(link, UserError)), None):
        return Exception.__str__(refused)
    if wrong := unknown_key(arguments):
        return wrong
    for text in arguments:
        if wrong := _no_setting(text) or _no_preset(text):
            return wrong
    for text in arguments:
        if wrong := _unread(text, error) or _illegal(text):
            return wrong
    return ""


def own_words(error: BaseException, arguments: Sequence[str] = ()) -> str:
    """What the library says of an error and of its cause, on one line and without keys. Of what is
    typed in ``arguments`` for a field that may hold one, nothing is repeated."""
    messages = [str(error)]
    if error.__cause__ is not None and str(error.__cause__) not in messages[0]:
        messages.append(str(error.__cause__).partition("full_key:")[0])
    pairs = [text.partition("=") for text in arguments]
    groups = preset_groups()
    secret_values = [value for key, _, value in pairs if may_hold_key(key) and key not in groups]
    secret_values += [value for key, _, value in pairs if key in groups and "{" in value]
    pieces = {piece for value in secret_values for piece in (value, *re.split(r"[^\w.+-]+", value))}
    return redact(" ".join(" ".join(messages).split()), pieces)


@contextmanager
def nothing_below_null(arguments: Sequence[str]) -> Generator[None]:
    """Raises UserError where composing these arguments meets a setting below one that is null,
    which OmegaConf takes for a fault of its caller."""
    try:
        yield
    except AssertionError as error:
        if not str(error).startswith("Unexpected type"):  # for one just below, or further down
            raise
        below = [(key, part) for key, part in map(_optional_above, arguments) if part]
        parts = list(dict.fromkeys(part for _, part in below))
        if len(parts) == 1:
            reason = f"{below[0][0]} is a part of {parts[0]}, which is null"
        else:  # OmegaConf does not say of which
            reason = f"A part of {any_of(parts) or 'a setting'} is set, which is null"
        raise UserError(
            f"{reason} in what is composed here. Leave it out, or choose a preset that has it."
        ) from error


def _optional_above(argument: str) -> tuple[str, str]:
    """The key of a setting, and the one above it that may be null; empty for none."""
    key = argument.partition("=")[0].strip().lstrip("+~")
    names, kind = key.split("."), Study
    for place, name in enumerate(names[:-1], 1):
        part = dataclass_of(kind)
        kind = field_types(part).get(name) if part else None
        if kind is None:
            break
        if NoneType in typing.get_args(kind):
            return key, ".".join(names[:place])
    return key, ""


def unknown_key(arguments: Sequence[str]) -> str:
    """A sentence on the first setting that the schema does not have; empty where it has all."""
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        key = key.strip()
        bare = key.lstrip("+~")
        if not (equals or key.startswith("~")) or not _KEY.fullmatch(bare):
            continue
        if wrong := _unknown(bare.split(".")):
            return wrong
    return ""


def _unknown(names: list[str]) -> str:
    if names[0] == "hydra" or (len(names) == 1 and names[0] in preset_groups()):
        return ""
    kind: Any = Study
    for place, name in enumerate(names):
        part = dataclass_of(kind)
        if part is None:  # a table of free keys, whose names the schema does not know
            return ""
        fields = field_types(part)
        if name not in fields:
            return _describe_missing_key(
                names[:place], name if place else ".".join(names), list(fields)
            )
        kind = fields[name]
    return ""


def _describe_missing_key(above: list[str], name: str, fields: list[str]) -> str:
    """What is said of a key that is not there."""
    at = ".".join(above)
    if at and len(fields) <= FEW:
        return f"{at} has no {shown(name)}; it has {', '.join(fields)}."
    near = [".".join([*above, each]) for each in nearest(name, fields)]
    if not at:
        near += [group for group in nearest(name, preset_groups(), 1) if group not in near]
    last = name.rpartition(".")[2]
    below = f"{at}." if at else ""
    theirs = [key for key in meant(last) if key.startswith(below)]
    elsewhere = [key for key in keys() if key.startswith(below) and key.rpartition(".")[2] == last]
    offered = sorted(elsewhere, key=lambda key: key.count("."))[:FEW] or near
    head = f"{at} has no {shown(name)}" if at else f"{shown(name)} is not a setting of a study"
    if not at and (why := NEEDLESS.get(name, "")):
        return f"{head}. {why}"
    if theirs:
        keys_meant = any_of([f"{key}=" for key in theirs])
        return f"{head}. Did you mean {keys_meant}, which judgedrift help {theirs[0]} explains?"
    if offered:
        return f"{head}. Did you mean {any_of([f'{key}=' for key in offered])}?"
    return f"{head}; it has {', '.join(fields[:FEW])} and {len(fields) - FEW} more."


def keys(kind: Any = Study, at: str = "") -> list[str]:
    """Every full key of the schema, as it is typed."""
    full_keys: list[str] = []
    for name, hint in field_types(kind).items():
        if name == "shadow_judges":
            continue
        part = dataclass_of(hint)
        is_list = typing.get_origin(hint) is list
        full_keys += keys(part, f"{at}{name}.") if part and not is_list else [f"{at}{name}"]
    return full_keys


def refuse_words(arguments: Sequence[str]) -> None:
    """Refuse what is neither a setting nor a flag of Hydra, before Hydra answers with its usage.
    Raises UserError: with what to type."""
    flags = [text.partition("=")[0] for text in arguments if text.startswith("-")]
    for flag in flags:
        if flag in FLAGS:
            continue
        bare = flag.lstrip("-").replace("-", "_")
        value = next(text for text in arguments if text.startswith(flag)).partition("=")[2]
        is_key = _KEY.fullmatch(bare) and not _unknown(bare.split("."))
        key = bare if is_key else next(iter(meant(bare)), "")
        form = f"{key}={shown(value) or 'VALUE'}" if key else "KEY=VALUE"
        raise UserError(
            f"{shown(flag)} is not an option of a sweep: settings have no dashes. Type {form}; to"
            " list the settings, type judgedrift sweep --help"
        )
    if flags:  # whose values stand behind them as words
        return
    for text in arguments:
        if wrong := _no_setting(text):
            raise UserError(wrong)


def _no_setting(text: str) -> str:
    """What is said of a word without ``KEY=``."""
    if "=" in text or text.startswith(("-", "~")):
        return ""
    word = text.strip(" ,")
    if _KEY.fullmatch(word) and not _unknown(word.split(".")):
        return (
            f"{word} has no value. Settings are typed KEY=VALUE, without spaces around the =. Type"
            f" {word}=VALUE."
        )
    groups = [group for group in preset_groups() if word in preset_names(group)]
    if groups:
        return f"{shown(word)} has no key. Settings are typed KEY=VALUE. Type {groups[0]}={word}."
    return (
        f"{shown(text)!r} is not a setting. Settings are typed KEY=VALUE, without spaces around"
        " the = or after commas. Type for example judge=sim-fair,sim-verbose seed=0,1"
    )


def _no_preset(text: str) -> str:
    """What is said of a preset that is not there."""
    key, _, value = text.partition("=")
    group = key.strip().lstrip("+~").partition("@")[0]
    if group not in preset_groups() or key.startswith("~"):
        return ""
    for word in value.strip().split(","):
        name = word.strip().strip("\"'")
        if not name:
            return (
                f"{shown(text)} lacks a name after the = or after a comma. Names are the files of"
                f" conf/{group}. Type for example judge=sim-fair,sim-verbose"
            )
        if name not in (*preset_names(group), "null") and re.fullmatch(r"[\w.:/ -]*", name):
            return no_preset(group, name)
    return ""


def _unread(text: str, error: BaseException) -> str:
    """What is said of an argument that Hydra cannot read."""
    if (getattr(error, "override", None) or "").lstrip("+~") != text.lstrip("+~"):
        return ""
    key, _, value = text.partition("=")
    rule = (
        " A value with spaces or with any of ( ) [ ] { } : = , needs quotes inside those of the"
        " shell. If it is one text, type"
    )
    if may_hold_key(key) or value.lstrip("\"' ").startswith(("{", "[{")):
        return (
            f"The value of {shown(key)} cannot be read (it is not shown, for it may hold a key)."
            f"{rule} \"{shown(key)}='VALUE'\"."
        )
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    setting = f"\"{key}='{shown(quoted)}'\""
    return f"{shown(text)} cannot be read.{rule} {setting}."


def _illegal(text: str) -> str:
    """What is said of a value that its key cannot have."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(text)
        swept = override.is_sweep_override() and override.is_discrete_sweep()
        values = list(override.sweep_iterator()) if swept else [override.value()]
    except (HydraException, ValueError):
        return ""
    if override.is_delete() or override.key_or_group in preset_groups():
        return ""
    for value in values:
        if isinstance(value, str) and (_IN_QUOTES.fullmatch(value) or "${" in value):
            continue
        try:
            check_at(override.key_or_group, value)
        except UserError as refused:
            return f"{refused}{_several(override.key_or_group, value)}"
    return ""


def _several(key: str, value: Any) -> str:
    """How the numbers from one to another are typed, where that seems to be meant."""
    span = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if span is None or int(span[1]) >= int(span[2]):
        return ""
    first, last = int(span[1]), int(span[2])
    if last - first < 10:
        return f"; for several, {key}={','.join(map(str, range(first, last + 1)))}"
    return f"; for several, '{key}=range({first},{last + 1})'"
