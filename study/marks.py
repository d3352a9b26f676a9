"""What a config field is for, said beside the field: three marks, and the keys that carry one.

``url: str = listed(run_time("asgi://simulated"))`` is a field that cannot change what a run finds
and that MLflow shows. A mark on a field that holds a dataclass counts for all of it.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any

RUN_TIME, JUDGE_ID, LISTED = "run_time", "judge_id", "listed"


def run_time(default: Any) -> Any:
    """A field that says how, where or how fast a cell runs, and cannot change what it finds.

    Args:
        default: the field's default, or a field that already has bounds or other marks.
    """
    return _marked(default, RUN_TIME)


def judge_id(default: Any) -> Any:
    """A field that can change a verdict, and so is part of a judge's identity."""
    return _marked(default, JUDGE_ID)


def listed(default: Any) -> Any:
    """A field that becomes a parameter in MLflow; others stay in the cell's ``config.yaml``."""
    return _marked(default, LISTED)


def _marked(default: Any, mark: str) -> Any:
    spec = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
    spec.metadata = types.MappingProxyType({**spec.metadata, mark: True})
    return spec


@functools.cache
def marked_keys(cls: type, mark: str) -> tuple[str, ...]:
    """Dotted keys of the fields of ``cls`` with a mark; of a marked field, not those inside it.

    The members of a list are passed over: a shadow judge has the marks of ``judge``.
    """
    keys: list[str] = []
    for item in dataclasses.fields(typing.cast(Any, cls)):
        if item.metadata.get(mark):
            keys.append(item.name)
        elif (inner := dataclass_of(field_types(cls)[item.name])) is not None:
            keys += [f"{item.name}.{key}" for key in marked_keys(inner, mark)]
    return tuple(keys)


def under(key: str, roots: typing.Iterable[str]) -> bool:
    """Whether ``key`` is one of ``roots`` or lies below one of them."""
    return any(key == root or key.startswith(f"{root}.") for root in roots)


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Field -> type of a dataclass."""
    return typing.get_type_hints(cls)


def dataclass_of(hint: Any) -> type | None:
    """The dataclass that a field's type is, or is one of; None for lists and plain values."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(filter(None, map(dataclass_of, typing.get_args(hint))), None)
    return hint if dataclasses.is_dataclass(hint) else None
