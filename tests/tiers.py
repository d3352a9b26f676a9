"""Which values of a test the standard tier has; the longest has all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], standard: Collection[Any]) -> list[Any]:
    """All values as parameters; those that are not ``standard`` are ``long``. A tuple is several
    parameters."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[pytest.mark.long] * (value not in standard),
        )
        for value in values
    ]
