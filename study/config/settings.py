"""What each setting of a study is: its type, unit, default, bounds and meaning, from the schema.

A meaning is the text that stands below the field in its source; everything else is the field's.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from study.config.bounds import Legal
from study.config.marks import (
    JUDGE_ID,
    RUN_TIME,
    dataclass_of,
    default_of,
    field_types,
    marked_keys,
    under,
)
from study.config.schema import Judge, Study

HIDDEN = ("shadow_judges", "correction.parts")
"""What the sweep fills in."""
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True)
class Setting:
    """One key of a study's config, as it is typed."""

    key: str
    hint: Any
    """The type of its field."""
    default: Any
    legal: Legal | None
    unit: str
    """Of a number; empty where it has none."""
    meaning: str

    @property
    def kind(self) -> str:
        """Its type in words."""
        parts = [part for part in typing.get_args(self.hint) if part is not type(None)]
        origin = typing.get_origin(self.hint)
        if origin is list:
            return "a list of texts"
        if origin is dict:
            return "a table of names and values"
        if isinstance(self.hint, types.UnionType):
            return f"{WORDS[parts[0]]}, or null"
        return WORDS[self.hint]

    @property
    def value(self) -> str:
        """What stands behind the = in a usage."""
        words = {int: "WHOLE_NUMBER", float: "NUMBER", bool: "true|false"}
        parts = [part for part in typing.get_args(self.hint) if part is not type(None)]
        origin = typing.get_origin(self.hint)
        if origin in (list, dict):
            return "[NAME,...]" if origin is list else "{NAME:VALUE}"
        return words.get(parts[0] if parts else self.hint, "TEXT")

    @property
    def default_text(self) -> str:
        """The default as it is typed, or empty."""
        if self.default is None:
            return "null"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, list):
            return f"[{','.join(map(str, self.default))}]"
        return str(self.default) if self.default not in ("", {}) else "empty"

    @property
    def legal_text(self) -> str:
        """The legal values in words; empty for all of its type."""
        if self.legal is None:
            return ""
        several = typing.get_origin(self.hint) in (list, dict)
        return f"{'each ' * several}{self.legal.describe()}"

    @property
    def effect(self) -> str:
        """Whether another value makes another cell, or another judge."""
        if under(self.key, marked_keys(Study, RUN_TIME)):
            return "only where, how or how fast a cell runs: the cell stays the same"
        group, _, rest = self.key.partition(".")
        if group == "judge" and under(rest, marked_keys(Judge, JUDGE_ID)):
            return "what the judge says: another value is another judge, asked anew"
        return "what a cell is: another value is another cell"


@functools.cache
def settings() -> dict[str, Setting]:
    """Every setting by its full key, in the order of the schema."""
    return {setting.key: setting for setting in _settings(Study, "")}


def _settings(cls: type, at: str) -> Iterator[Setting]:
    texts = meanings(cls)
    for item in dataclasses.fields(typing.cast(Any, cls)):
        key, hint = f"{at}{item.name}", field_types(cls)[item.name]
        if key in HIDDEN:
            continue
        part = dataclass_of(hint)
        if part is not None and typing.get_origin(hint) is not list:
            yield from _settings(part, f"{key}.")
            continue
        legal, unit = item.metadata.get("legal"), item.metadata.get("unit", "")
        yield Setting(key, hint, default_of(item), legal, unit, texts.get(item.name, ""))


@functools.cache
def parts() -> dict[str, str]:
    """Every part of the config, such as ``trainer`` and ``judge.endpoint``, and what it is."""
    return dict(_parts(Study, ""))


def _parts(cls: type, at: str) -> Iterator[tuple[str, str]]:
    texts = meanings(cls)
    for name, hint in field_types(cls).items():
        part = dataclass_of(hint)
        if part is None or typing.get_origin(hint) is list or f"{at}{name}" in HIDDEN:
            continue
        yield f"{at}{name}", texts.get(name) or " ".join((part.__doc__ or "").split())
        yield from _parts(part, f"{at}{name}.")


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """Field of a dataclass, also an inherited one -> the text below it in the source."""
    texts: dict[str, str] = {}
    for each in reversed([base for base in cls.__mro__ if dataclasses.is_dataclass(base)]):
        tree = ast.parse(inspect.getsource(sys.modules[each.__module__]))
        (definition,) = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name == each.__name__
        ]
        for item, below in zip(definition.body, definition.body[1:], strict=False):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and is_text:
                texts[item.target.id] = " ".join(str(below.value.value).split())
    return texts
