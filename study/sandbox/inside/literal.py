"""Python values as JSON text and back: built-in types only, never a subclass.

What JSON has stands for itself; any other value is an object of one entry, its type and its parts:
``{"tuple": [1, 2]}``, ``{"dict": [["key", 1]]}``, ``{"complex": [0.0, 1.0]}``. Both directions are
hostile ground: they take time in proportion to the text, and what `loads` makes are objects of the
process that reads, so no object of untrusted code has a say in whether it equals another.
"""

from __future__ import annotations

import cmath
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

Describe = Callable[[Any], Any]
Other = Callable[[Any, Describe], Any]
"""What to do with a value that is no literal, or with the ``(type, parts)`` of a tag that is
none: returns its description, or its value. The second argument does the same for a part."""


class NotLiteral(ValueError):
    """A value that is not a literal. ``subclass`` tells one that poses as a built-in type."""

    def __init__(self, text: str, subclass: bool = False) -> None:
        super().__init__(text)
        self.subclass = subclass


BUILTIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set)
DEPTH = 50
"""Containers inside of each other, at most."""
SHARED = 256
"""Members of a set or dictionary that may have the same hash: each is compared with the others."""


MOST_BITS = 4096
"""Whole numbers beyond it are written in base 16, which is read in proportion to its length."""


def dumps(value: Any, other: Other | None = None) -> str:
    """``value`` as text; ``other`` describes what is no literal.
    Raises NotLiteral: a type other than the built-in ones, nan, an infinite complex number, or
        nesting beyond `DEPTH`."""
    return json.dumps(_described(value, DEPTH, other))


def _described(value: Any, depth: int, other: Other | None) -> Any:
    kind = type(value)
    if depth < 0:
        raise NotLiteral("nested too deeply")
    if kind is int and value.bit_length() > MOST_BITS:
        return {"int": hex(value)}
    if value is None or kind in (bool, int, str) or (kind is float and not math.isnan(value)):
        return value
    if kind is bytes:
        return {"bytes": value.decode("latin-1")}
    if kind is complex and cmath.isfinite(value):
        return {"complex": [value.real, value.imag]}
    if kind is dict:
        return {
            "dict": [
                [_described(part, depth - 1, other) for part in pair] for pair in value.items()
            ]
        }
    if kind in (list, tuple, set):
        items = [_described(item, depth - 1, other) for item in value]
        return items if kind is list else {kind.__name__: items}
    if other is not None:
        return other(value, lambda part: _described(part, depth - 1, other))
    mro = type.__getattribute__(kind, "__mro__")
    subclass = any(base in BUILTIN for base in mro[1:])
    raise NotLiteral(f"{kind.__name__} is not a literal", subclass)


def loads(text: str, other: Other | None = None) -> Any:
    """The value that `dumps` wrote; two surrogates in a row are read as the character they spell.
    ``other`` reads the tags that are none of ours. Raises ValueError: anything else."""
    try:
        return _value(json.loads(text, parse_constant=_infinity), DEPTH, other)
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a literal") from error


def _infinity(word: str) -> float:
    if word == "NaN":
        raise ValueError("nan is not a literal")
    return float(word)


def _value(data: Any, depth: int, other: Other | None) -> Any:
    if depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(data, list):
        return [_value(item, depth - 1, other) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, parts),) = data.items()
    if kind == "bytes":
        return parts.encode("latin-1")
    if kind == "int" and isinstance(parts, str):
        return int(parts, 16)
    if kind == "complex":
        real, imaginary = parts
        if type(real) is float is type(imaginary):
            number = complex(real, imaginary)
            if cmath.isfinite(number):
                return number
    elif kind == "dict":
        pairs = [
            (_value(key, depth - 1, other), _value(item, depth - 1, other)) for key, item in parts
        ]
        check_hashes([key for key, _ in pairs])
        return dict(pairs)
    elif kind in ("tuple", "set") and isinstance(parts, list):
        items = [_value(item, depth - 1, other) for item in parts]
        if kind == "tuple":
            return tuple(items)
        check_hashes(items)
        return set(items)
    elif other is not None:
        return other((kind, parts), lambda part: _value(part, depth - 1, other))
    raise ValueError("not a literal")


def check_hashes(members: list[Any]) -> None:
    """Refuse members that were chosen to have one hash. Raises TypeError: a member has none.
    Raises ValueError: more than ``SHARED`` have the same."""
    if max(Counter(map(hash, members)).values(), default=0) > SHARED:
        raise ValueError("members with the same hash")
