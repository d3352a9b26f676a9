"""Compares what untrusted code returned with what was expected, by type and value."""

from __future__ import annotations

import math
from typing import Any

from study.sandbox.inside.literal import dumps


def same(value: Any, expected: Any, tolerance: float = 1e-9) -> bool:
    """Whether ``value`` is of the type of ``expected`` and equals it, in every part.

    Args:
        tolerance: relative and absolute, for floats and complex numbers only.
    """
    if type(value) is not type(expected):
        return False
    if isinstance(expected, float):
        if math.isnan(expected) or math.isinf(expected):
            return repr(value) == repr(expected)
        return math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(expected, complex):
        parts = ((value.real, expected.real), (value.imag, expected.imag))
        return all(same(mine, theirs, tolerance) for mine, theirs in parts)
    if isinstance(expected, (list, tuple)):
        return len(value) == len(expected) and all(
            same(mine, theirs, tolerance) for mine, theirs in zip(value, expected, strict=True)
        )
    if isinstance(expected, dict):
        mine = {dumps(key): item for key, item in value.items()}
        theirs = {dumps(key): item for key, item in expected.items()}
        return (
            len(value) == len(expected)
            and mine.keys() == theirs.keys()
            and all(same(mine[key], theirs[key], tolerance) for key in theirs)
        )
    if isinstance(expected, set):
        return set(map(dumps, value)) == set(map(dumps, expected))
    return value == expected
