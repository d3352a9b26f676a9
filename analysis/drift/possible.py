"""Where the interval of an effect ends because nothing can be beyond: a share cannot fall below 0.

cut({"metric": "bold", "first": 0.2, "shift": -0.1, "low": -0.4, "high": 0.2})  # (-0.2, 0.2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis.statistics.estimate import ENDS
from study.features import FEATURES, possible

_ENDS = {"truth": (0.0, 1.0), "judge_score": (0.0, 1.0), "reward": ENDS, "gap": (-1.0, 1.0)}
"""Ends of a mean score where what is known of it lies between them; a judge may have another
scale."""


def _ends_of(metric: str) -> tuple[float, float]:
    """The least and the most that a mean of a score or a behaviour can be."""
    if metric in FEATURES or metric.startswith("op/"):
        return possible(metric)
    return _ENDS.get(metric, ENDS)


def cut(row: Mapping[str, Any]) -> tuple[float, float]:
    """The interval of a shift, as far as its start leaves room; NaN where there is none."""
    low, high = _room(row)
    return _within(row["low"], row["high"], low, high)


def cut_difference(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> tuple[float, float]:
    """The interval of an arm's difference from the base arm, as far as the arm's start leaves room
    beside any shift of the base that its own interval holds.

    Args:
        row: of a shift table, with ``diff``, ``diff_low`` and ``diff_high``.
        base: the base arm's row of the same measure.
    """
    ends = row["diff_low"], row["diff_high"]
    if base is None or math.isnan(base["shift"]) or math.isnan(row["shift"]):
        return ends
    least, most = _room(row)
    low, high = cut(base)
    low, high = (base["shift"] if math.isnan(end) else end for end in (low, high))
    return _within(*ends, min(least - high, row["diff"]), max(most - low, row["diff"]))


def _room(row: Mapping[str, Any]) -> tuple[float, float]:
    """How far a shift could go from its start: at least as far as it went."""
    low, high = _ends_of(row["metric"])
    means = row["first"], row["first"] + row["shift"]
    if row["metric"] in _ENDS and not low <= min(means) <= max(means) <= high:
        return ENDS
    return min(low, *means) - row["first"], max(high, *means) - row["first"]


def _within(low: float, high: float, least: float, most: float) -> tuple[float, float]:
    """Two ends cut at two others; NaN stays NaN."""
    return (
        low if math.isnan(low) else max(low, least),
        high if math.isnan(high) else min(high, most),
    )
