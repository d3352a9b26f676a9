"""Marks on config fields: which cannot change a result, make a judge, or are shown in MLflow.

``url: str = mlflow_param(run_time("asgi://simulated"))`` is a field that cannot change what a run
finds and that MLflow shows. A mark on a field that holds a dataclass counts for all of it.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any

RUN_TIME, JUDGE_ID, MLFLOW_PARAM, OLD_DEFAULT = "run_time", "judge_id", "listed", "was"


def run_time(default: Any) -> Any:
    """A field that says how, where or how fast a cell runs, and cannot change what it finds;
    ``default`` may be a field that already has bounds or other marks."""
    return _marked(default, RUN_TIME)


def judge_id(default: Any) -> Any:
    """A field that can change a verdict, and so is part of a judge's identity."""
    return _marked(default, JUDGE_ID)


def mlflow_param(default: Any) -> Any:
    """A field that becomes a parameter in MLflow; others stay in the cell's ``config.yaml``."""
    return _marked(default, MLFLOW_PARAM)


def changed_default(old: Any, default: Any) -> Any:
    """A field whose default was ``old`` in an earlier version: a hash goes on leaving that out.

    ``steps: int = changed_default(40, bounds.number(60, low=1))`` keeps every run of 40 steps its
    hash, and gives those of 60 one of their own.
    """
    return _marked(default, OLD_DEFAULT, old)


def _marked(default: Any, mark: str, value: Any = True) -> Any:
    spec = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
    spec.metadata = types.MappingProxyType({**spec.metadata, mark: value})
    return spec


@functools.cache
def marked_keys(cls: type, mark: str) -> tuple[str, ...]:
    """Dotted keys of the fields of ``cls`` with a mark; of a marked field, not those inside it.

    The members of a list are passed over: a shadow judge has the marks of ``judge``.
    """
    keys: list[str] = []
    for item in dataclasses.fields(typing.cast(Any, cls)):
        hint = field_types(cls)[item.name]
        if item.metadata.get(mark):
            keys.append(item.name)
        elif typing.get_origin(hint) is not list and (inner := dataclass_of(hint)) is not None:
            keys += [f"{item.name}.{key}" for key in marked_keys(inner, mark)]
    return tuple(keys)


def under(key: str, roots: typing.Iterable[str]) -> bool:
    """Whether ``key`` is one of ``roots`` or below one of them."""
    return any(key == root or key.startswith(f"{root}.") for root in roots)


def default_of(item: dataclasses.Field[Any]) -> Any:
    """The default of a field; a new one if it has a factory."""
    factory = item.default_factory
    return item.default if factory is dataclasses.MISSING else factory()


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Field -> type of a dataclass."""
    return typing.get_type_hints(cls)


def dataclass_of(hint: Any) -> type | None:
    """The dataclass that a field holds, as it is, or None, or in a list; None for other values."""
    if dataclasses.is_dataclass(hint):
        return typing.cast(type, hint)
    several = isinstance(hint, types.UnionType) or typing.get_origin(hint) in (typing.Union, list)
    parts = typing.get_args(hint) if several else ()
    return next(filter(None, map(dataclass_of, parts)), None)
