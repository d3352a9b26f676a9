"""Intervals of shifts, cut at what is possible: no count is below 0, no share or score above 1.

An interval over few runs is symmetric and wide, so it may reach where nothing can be. `cut` and
`cut_difference` take that part off, the same in tables, figures and sentences::

    cut({"metric": "bold", "first": 0.2, "shift": -0.1, "low": -0.4, "high": 0.2})  # (-0.2, 0.2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis.records.behaviour import possible
from analysis.statistics.estimate import ENDS
from study.features import FEATURES

SCORES = {"truth": (0.0, 1.0), "judge_score": (0.0, 1.0), "reward": ENDS, "gap": (-1.0, 1.0)}
"""Ends of a mean score where what is known of it lies between them; a judge may have another
scale."""


def ends_of(metric: str) -> tuple[float, float]:
    """The least and the most that a mean of a score or a behaviour can be."""
    if metric in FEATURES or metric.startswith("op/"):
        return possible(metric)
    return SCORES.get(metric, ENDS)


def cut(row: Mapping[str, Any]) -> tuple[float, float]:
    """The interval of a shift, as far as its start leaves room; NaN where there is none."""
    low, high = _room(row)
    return _within(row["low"], row["high"], low, high)


def cut_difference(
    row: Mapping[str, Any], base: Mapping[str, Any] | None, of: str = "diff"
) -> tuple[float, float]:
    """The interval of an arm's difference from the base arm, as far as the arm's start leaves room
    beside any shift of the base that its own interval holds.

    Args:
        row: of a shift table, with ``diff``, ``diff_low`` and ``diff_high``, or those of ``of``.
        base: the base arm's row of the same measure.
    """
    ends = row[f"{of}_low"], row[f"{of}_high"]
    if base is None or math.isnan(base["shift"]) or math.isnan(row["shift"]):
        return ends
    least, most = _room(row)
    low, high = cut(base)
    low, high = (base["shift"] if math.isnan(end) else end for end in (low, high))
    return _within(*ends, min(least - high, row[of]), max(most - low, row[of]))


def _room(row: Mapping[str, Any]) -> tuple[float, float]:
    """How far a shift could go from its start: at least as far as it went."""
    low, high = ends_of(row["metric"])
    means = row["first"], row["first"] + row["shift"]
    if row["metric"] in SCORES and not low <= min(means) <= max(means) <= high:
        return ENDS
    return min(low, *means) - row["first"], max(high, *means) - row["first"]


def _within(low: float, high: float, least: float, most: float) -> tuple[float, float]:
    """Two ends cut at two others; NaN stays NaN."""
    return (
        low if math.isnan(low) else max(low, least),
        high if math.isnan(high) else min(high, most),
    )
