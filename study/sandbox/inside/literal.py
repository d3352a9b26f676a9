"""Python values as text that ast.literal_eval reads: built-in types only, never a subclass."""

from __future__ import annotations

import math
from typing import Any


class NotLiteral(ValueError):
    """A value that is no literal. ``subclass`` tells one that poses as a built-in type."""

    def __init__(self, text: str, subclass: bool = False) -> None:
        super().__init__(text)
        self.subclass = subclass


BUILTIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set)
DEPTH = 50
"""Containers inside of each other, at most."""


def dumps(value: Any, depth: int = DEPTH) -> str:
    """``value`` as one literal. Infinity is written 1e999; not-a-number has no literal.

    Raises:
        NotLiteral: a type other than the built-in ones, nan, or nesting beyond ``depth``.
    """
    kind = type(value)
    if depth < 0:
        raise NotLiteral("nested too deeply")
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        if math.isnan(value):
            raise NotLiteral("nan has no literal")
        return ("-1e999" if value < 0 else "1e999") if math.isinf(value) else repr(value)
    if kind is complex and math.isfinite(value.real) and math.isfinite(value.imag):
        return repr(value)
    if kind is dict:
        pairs = (f"{dumps(k, depth - 1)}:{dumps(v, depth - 1)}" for k, v in value.items())
        return "{" + ",".join(pairs) + "}"
    if kind in (list, tuple, set):
        items = [dumps(item, depth - 1) for item in value]
        if kind is list:
            return "[" + ",".join(items) + "]"
        if kind is tuple:
            return "(" + "".join(f"{item}," for item in items) + ")"
        return "{" + ",".join(items) + "}" if items else "set()"
    mro = type.__getattribute__(kind, "__mro__")
    subclass = any(base in BUILTIN for base in mro[1:])
    raise NotLiteral(f"{kind.__name__} is not a literal", subclass)
