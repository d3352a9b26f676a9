"""Signed points of a rubric over its positive points, items that code checks included."""

from __future__ import annotations

import math

from study.rewards.parts import Parts
from study.schema import Reward


def rubric(reward: Reward, parts: Parts) -> float | None:
    """(points of the met criteria + points of the passed rules) / positive points of both.

    The judge's part comes as its grading made it: ``judge.grading.options.clip`` is what cuts off
    negative scores. None where the judge gave no score, or a rule that was run no verdict: an item
    of the rubric that is unknown leaves the sum unknown.
    """
    if parts.judge is None or None in parts.rules:
        return None
    items = list(zip(parts.rules, parts.rule_points, strict=True))
    possible = parts.judge_points + math.fsum(points for _, points in items if points > 0)
    met = parts.judge * parts.judge_points + math.fsum(points for passed, points in items if passed)
    return met / possible if possible > 0 else None
