"""Probes: controlled variants of the same content, by which a judge's biases are measured."""

from __future__ import annotations

from judges.probes.variants import BASES, SLOTS, Source, Variant, variants

__all__ = ["BASES", "SLOTS", "Source", "Variant", "variants"]


def __dir__() -> list[str]:
    return [*__all__]
