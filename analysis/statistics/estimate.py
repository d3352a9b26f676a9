"""`Estimate`: one number with its interval, what it was taken over, and why not to trust it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

LEVEL = 0.95
NAN = float("nan")


@dataclass(frozen=True)
class Estimate:
    """A number from ``n`` units with its interval; NaN where there is none, and ``note`` says why.

    An estimator with more to say of the same number, such as a p, adds fields of its own.
    """

    value: float
    low: float = NAN
    high: float = NAN
    n: int = 0
    unit: str = ""
    """What ``n`` counts: run, prompt, item."""
    level: float = LEVEL
    """Share of such intervals that hold the truth."""
    note: str = ""
    """Why there is no interval, or why not to trust it; empty where nothing is wrong."""

    def __str__(self) -> str:
        """``+12.3 [+4.5, +20.1] over 3 runs``"""
        over = f" over {self.n} {self.unit}s" if self.unit else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.value:+.4g} [{self.low:+.4g}, {self.high:+.4g}]{over}{note}"

    def row(self, value: str = "value", n: str = "n") -> dict[str, Any]:
        """One row of a table, in which ``value`` and ``n`` are the names of those two columns.

        Unit and level are the same down a table: its heading says them.
        """
        names = {"value": value, "n": n}
        return {
            names.get(field.name, field.name): getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("unit", "level")
        }


NO_ESTIMATE = Estimate(NAN)


def columns(record: Any, **prefixes: str) -> dict[str, Any]:
    """A dataclass that holds Estimates as one row of a table, in the order of its fields.

    Args:
        record: the dataclass. An Estimate becomes its value under the field's own name, and its
            ends ``<prefix>low`` and ``<prefix>high``.
        prefixes: of fields whose ends are not called ``<field>_low`` and ``<field>_high``.
    """
    row: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Estimate):
            prefix = prefixes.get(field.name, f"{field.name}_")
            row |= {field.name: value.value, f"{prefix}low": value.low, f"{prefix}high": value.high}
        else:
            row[field.name] = value
    return row
