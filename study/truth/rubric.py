"""The points of a rubric as one score."""

from __future__ import annotations

import math
from collections.abc import Sequence

from study.rows import Criterion


def rubric_score(criteria: Sequence[Criterion], labels: Sequence[str]) -> float | None:
    """Points of the met criteria / positive points, both over the criteria with a known label;
    None where no positive one is known."""
    labelled_points = [(item.points, label) for item, label in zip(criteria, labels, strict=True)
             if label != "unknown"]  # fmt: skip
    possible = math.fsum(points for points, _ in labelled_points if points > 0)
    if not possible > 0:
        return None
    return math.fsum(points for points, label in labelled_points if label == "met") / possible
