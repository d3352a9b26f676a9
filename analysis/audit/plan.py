"""What an audit of some share of the groups would tell, before anybody is asked.

A run's audited groups come a few at a time, so the alarm looks at a step when it has
`GROUPS_A_LOOK` new ones. How long it takes to notice a gap that grows is simulated with that alarm
itself (`analysis.onset.overopt`); the width of a gap's interval is Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.onset.overopt import calibrated, first_alarms
from analysis.statistics.estimate import NAN
from analysis.statistics.intervals import student
from study.cell.audit import FEWEST, STRETCHES

SHARES = (0.01, 0.02, 0.05, 0.10, 0.20)
GROUPS_A_LOOK = 2
SPREAD = 0.15
"""SD over groups of score - truth, a group's mean, where no answer was audited yet: that of eight
answers that are right or wrong, and of a judge that is right of four in five."""
RISES = (0.1, 0.2, 0.4)
"""Rises of score - truth over a run, in score units, whose delay is said."""
SIMULATED = 2_000


@dataclass(frozen=True)
class Share:
    """What a share of the groups of a run would tell.

    Attributes:
        share: of the groups, as it would be typed.
        groups: of a run that would be drawn: `FEWEST` of each stretch at least.
        half: half the width of the 95 % interval of a run's gap over all steps.
        shift_half: the same of how far the gap moved from the first stretch to the last.
        delays: for each of `RISES` the median steps from the start of the rise to the alarm; NaN
            where it rings in less than half of the runs.
    """

    share: float
    groups: int
    half: float
    shift_half: float
    delays: tuple[float, ...]


def plan(
    steps: int,
    groups_a_step: float,
    *,
    spread: float = SPREAD,
    shares: Sequence[float] = SHARES,
    rises: Sequence[float] = RISES,
) -> list[Share]:
    """What each share would tell of a run.

    Args:
        steps: of the run.
        groups_a_step: of which no truth is known.
        spread: SD over groups of a group's mean of score - truth.
    """
    lines = []
    for share in shares:
        size = steps * groups_a_step / STRETCHES
        drawn = min(size, max(FEWEST, math.ceil(round(share * size, 9))))
        groups = int(drawn) * STRETCHES
        left = 1 - drawn / size
        half = student(groups - STRETCHES) * spread * (left / groups) ** 0.5
        shift = student(2 * drawn - 2) * spread * (2 * left / drawn) ** 0.5
        delays = tuple(delay(steps, groups, rise, spread) for rise in rises)
        lines.append(Share(share, groups, float(half), float(shift), delays))
    return lines


def delay(steps: int, groups: int, rise: float, spread: float) -> float:
    """Median steps from the start of a gap's rise to the alarm, of runs whose gap grows evenly by
    ``rise`` from the end of the alarm's baseline to the end; NaN where most runs never ring."""
    looks = min(groups // GROUPS_A_LOOK, steps)
    groups_a_look = groups // looks
    rule = calibrated(looks, groups_a_look)
    rng = np.random.default_rng(0)
    grown = np.clip(np.arange(looks) - rule.baseline + 1, 0, None) / (looks - rule.baseline)
    of_groups = spread * rng.standard_normal((SIMULATED, looks, groups_a_look))
    gaps = of_groups.mean(axis=2) + rise * grown
    errors = of_groups.std(axis=2, ddof=1) / groups_a_look**0.5
    alarms = first_alarms(gaps, errors, rule)
    looks_taken = np.where(alarms >= 0, alarms - rule.baseline + 1, np.inf)
    median = float(np.median(looks_taken))
    return median * steps / looks if math.isfinite(median) else NAN
