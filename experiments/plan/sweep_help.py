"""The help of the sweep: its presets and settings, read from ``conf/`` and the schema."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Sequence
from typing import Any

from study.cli import INDENTED, WRAPPED, shown_examples
from study.config import schema
from study.config.compose import preset_names
from study.config.marks import dataclass_of, default_of, field_types
from study.config.schema import Study

USAGE = "[GROUP=PRESET,...] [KEY=VALUE,...]"
ABOUT = """Trains a policy under each judge: one cell for each combination of what is typed with
commas between them. Finished cells are skipped and interrupted ones resume; the report
is written at the end. plan=true prints what would run and cost, and writes nothing."""
ABOUT_PLAN = """Prints what a sweep would run, cost and take, and the smallest
difference that it could see; runs and writes nothing. It takes every setting of a sweep."""
EXAMPLES = (
    "python -m experiments.sweep judge=sim-fair,sim-verbose seed=0,1,2",
    "python -m experiments.sweep judge=sim-fair,sim-verbose seed=0,1,2 plan=true",
)
FIRST = (
    *("experiment", "judge", "policy", "task", "reward", "trainer", "scaffold", "executor"),
    *("arm", "profile", "variant", "tracking", "debug"),
)
"""Groups of presets, those first that most sweeps name."""
HIDDEN = ("shadow_judges",)
EVERY = """Every key with its value: --cfg job. What each means: study/config/schema.py. Hydra's own
words, such as those of its launchers: --hydra-help"""


def text(typed: str, examples: Sequence[str] = EXAMPLES, about: str = ABOUT) -> str:
    """The whole help of a sweep that is typed so."""
    presets = [_wrapped(f"{group}=", ", ".join(names)) for group, names in _groups().items()]
    meanings = _meanings(Study)
    settings, parts = [], []
    for item in dataclasses.fields(typing.cast(Any, Study)):
        hint = field_types(Study)[item.name]
        part = dataclass_of(hint)
        if item.name in HIDDEN:
            continue
        if part is None:
            settings.append(_setting(item, hint, meanings.get(item.name, "")))
        else:
            keys = ", ".join(each.name for each in dataclasses.fields(typing.cast(Any, part)))
            parts.append(_wrapped(f"{item.name}.KEY=", keys))
    return "\n\n".join(
        [
            f"usage: {typed} {USAGE}",
            about,
            "\n".join(["presets (files of conf/GROUP; one or several with commas):", *presets]),
            "\n".join(["settings:", *settings]),
            "\n".join(["settings of parts:", *parts]),
            EVERY,
            shown_examples(examples),
        ]
    )


def _groups() -> dict[str, list[str]]:
    presets = {group: preset_names(group) for group in FIRST}
    return {group: [name for name in names if name != "base"] for group, names in presets.items()}


def _setting(item: dataclasses.Field[Any], hint: Any, meaning: str) -> str:
    legal, default = item.metadata.get("legal"), default_of(item)
    notes = [meaning.rstrip(".")] if meaning else []
    notes += [legal.describe()] if legal is not None and not isinstance(default, list) else []
    if default not in ("", None, []):
        default_text = ",".join(default) if isinstance(default, list) else str(default)
        notes.append(
            f"default {default_text.lower() if isinstance(default, bool) else default_text}"
        )
    return _wrapped(f"{item.name}={_kind(hint)}", "; ".join(notes))


def _kind(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    words = {int: "WHOLE_NUMBER", float: "NUMBER", bool: "true|false"}
    listed = typing.get_origin(hint) is list
    return "[NAME,...]" if listed else words.get(hint, "TEXT")


def _wrapped(head: str, rest: str) -> str:
    lines = [textwrap.fill(head, 100, initial_indent="  ", **WRAPPED)]
    return "\n".join([*lines, *([textwrap.fill(rest, 100, **INDENTED)] if rest else [])])


def _meanings(cls: type) -> dict[str, str]:
    """Field of a dataclass of the schema -> the text that stands below it in the source."""
    tree = ast.parse(inspect.getsource(schema))
    (definition,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    ]
    meanings = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            meanings[field.target.id] = " ".join(str(below.value.value).split())
    return meanings
