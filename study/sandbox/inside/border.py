"""What crosses between trusted tests and an untrusted candidate: values of built-in types, and
handles for anything else. Lines of JSON over two pipes; the tests ask, the candidate answers.

An instance of a subclass crosses as the built-in value that it holds, so that a `Counter` is
compared as a dict by the side that owns the comparison. A handle is a number: the object behind it
never leaves the candidate's process, and `Handle` refuses whatever could be a verdict on it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from study.sandbox.inside.literal import check_hashes, dumps, loads

ASK, REPLY = 4, 3
"""The handles over which a child hears and speaks."""
TYPES = {
    kind.__name__: kind
    for kind in (
        *(bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset),
        *(range, object, type(None)),
    )
}
"""The types that cross as themselves, by name."""
PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__pos__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: lambda value: bytes(memoryview(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
}
"""Built-in type -> the value that an instance of a subclass holds."""


def write(value: Any, keep: Callable[[Any], int]) -> str:
    """``value`` as text; ``keep`` gives the number of an object that crosses as a handle.
    Raises NotLiteral: it is nested too deeply."""

    def other(value: Any, describe: Callable[[Any], Any]) -> Any:
        kind = type(value)
        if kind is float:
            return {"float": "nan"}
        if kind is complex:
            return {"parts": [repr(value.real), repr(value.imag)]}
        if kind is frozenset:
            return {"frozenset": [describe(item) for item in value]}
        if kind is bytearray:
            return {"bytearray": value.decode("latin-1")}
        if kind is range:
            return {"range": [value.start, value.stop, value.step]}
        if kind is type and TYPES.get(value.__name__) is value:
            return {"type": value.__name__}
        for base in type.__getattribute__(kind, "__mro__")[1:]:
            if base in PLAIN:
                return describe(PLAIN[base](value))
        return {"handle": keep(value)}

    return dumps(value, other)


def read(text: str, handle: Callable[[int], Any]) -> Any:
    """The value that `write` wrote; ``handle`` returns the object of a number.
    Raises ValueError: anything else."""

    def other(tag: tuple[str, Any], value_of: Callable[[Any], Any]) -> Any:
        kind, parts = tag
        if kind == "float" and parts == "nan":
            return math.nan
        if kind == "parts":
            real, imaginary = parts
            return complex(float(real), float(imaginary))
        if kind == "frozenset" and isinstance(parts, list):
            items = [value_of(item) for item in parts]
            check_hashes(items)
            return frozenset(items)
        if kind == "bytearray":
            return bytearray(parts.encode("latin-1"))
        if kind == "range" and all(type(part) is int for part in parts):
            return range(*parts)
        if kind == "type":
            return TYPES[parts]
        if kind == "handle" and type(parts) is int:
            return handle(parts)
        return _refuse()

    try:
        return loads(text, other)
    except (KeyError, IndexError, OverflowError) as error:
        raise ValueError("not a value") from error


def _refuse() -> NoReturn:
    raise ValueError("not a value")


def say(message: Mapping[str, object]) -> None:
    """Write one line."""
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(REPLY, data) :]


def hear() -> Iterator[Any]:
    """What stands in every line that comes, until the other side closes."""
    data = bytearray()
    while chunk := os.read(ASK, 1 << 16):
        data += chunk
        if chunk.endswith(b"\n"):
            yield json.loads(data)
            data.clear()
