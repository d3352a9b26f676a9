"""A cell's hash: which settings make two runs the same, and which make them different.

A key at its default is left out, so that a key which a later version adds leaves the hash of every
older run as it was:

    >>> identifying({"seed": 0, "trainer": {"steps": 40, "group_size": 16}})
    {'trainer.group_size': 16}

So a default is part of every hash that leaves it out, and must not change in silence: a field whose
default changes keeps the old one in its hash with `study.config.marks.changed_default`; a test
holds the list. What a run really had is in its ``config.yaml``, where nothing is left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from typing import Any

from study.config.marks import OLD_DEFAULT, RUN_TIME, dataclass_of, default_of, field_types
from study.config.schema import Study

ABSENT = "(absent)"


def flatten(data: object, prefix: str = "") -> dict[str, object]:
    """Nested dicts and lists as ``{"judge.sampling.votes": 1, ...}``; empty ones stay as leaves."""
    if not isinstance(data, dict | list) or not data:
        return {prefix: data}
    items = data.items() if isinstance(data, dict) else enumerate(data)
    flat: dict[str, object] = {}
    for key, value in items:
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def identifying(data: Mapping[str, object], cls: type = Study, at: str = "") -> dict[str, object]:
    """The flat config that makes a cell what it is: no run-time key, and no value at its default.

    An optional part that is there, and a shadow judge, stand as an empty dict beside what they
    differ in: one with every default is not the same as none. A key that the schema ``cls`` does
    not have counts too; ``at`` is the key of ``data`` in the study, with a dot behind it."""
    fields = {item.name: item for item in dataclasses.fields(typing.cast(Any, cls))}
    flat: dict[str, object] = {}
    for name, value in data.items():
        key, item = f"{at}{name}", fields.get(name)
        if item is None:
            flat |= flatten(value, key)
        elif not item.metadata.get(RUN_TIME):
            flat |= _changed(value, field_types(cls)[name], hashed_default(item), key)
    return flat


def _changed(value: object, hint: object, default: object, key: str) -> dict[str, object]:
    part = dataclass_of(hint)
    if part is not None and isinstance(value, dict):
        there = {key: {}} if default is None else {}
        return {**there, **identifying(value, part, f"{key}.")}
    if part is not None and isinstance(value, list):
        flat: dict[str, object] = {}
        for place, member in enumerate(value):
            flat |= _changed(member, part, None, f"{key}.{place}")
        return flat
    return {} if value == default else flatten(value, key)


def hashed_default(item: dataclasses.Field[Any]) -> Any:
    """The value of a field that hashes leave out: its default, or the first it had."""
    return item.metadata[OLD_DEFAULT] if OLD_DEFAULT in item.metadata else default_of(item)


def left_out(key: str, cls: type = Study) -> Any:
    """What a flat config without ``key`` has there: its default, or `ABSENT` where it has none."""
    name, _, rest = key.partition(".")
    fields = {item.name: item for item in dataclasses.fields(typing.cast(Any, cls))}
    if name not in fields:
        return ABSENT
    if not rest:
        return hashed_default(fields[name])
    part = dataclass_of(field_types(cls)[name])
    return left_out(rest, part) if part else ABSENT


def digest(data: Mapping[str, object], cls: type = Study) -> str:
    """Ten hex digits over `identifying`: the end of a cell's name."""
    canonical = json.dumps(identifying(data, cls), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]
