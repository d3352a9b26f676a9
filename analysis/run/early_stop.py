"""When a run is to be ended: the alarm of `analysis.run.overopt` on the rollouts so far."""

from __future__ import annotations

import numpy as np

from analysis.run.overopt import calibrated, first_alarms
from analysis.statistics.bootstrap import group_sums, ratio, ratio_se


def stop_at(
    step_P: np.ndarray, judge_P_G: np.ndarray, truth_P_G: np.ndarray, steps: int
) -> int | None:
    """The first step at which the alarm on judge - truth says stop; None where it has not yet.

    Steps before the last that have less than two groups with both scores say nothing, and are left
    out.

    Args:
        step_P: the step of each group that is on record, in order.
        steps: that the whole run is to make; the rule is calibrated for so many.
    """
    sums = group_sums(judge_P_G - truth_P_G)
    known = [sums[(step_P == step) & (sums[:, 1] > 0)] for step in np.unique(step_P)]
    told = [
        (step, ratio(of_step.sum(axis=0)), ratio_se(of_step), len(of_step))
        for step, of_step in zip(np.unique(step_P).tolist(), known, strict=True)
        if len(of_step) > 1
    ]
    if not told:
        return None
    at, means, errors, groups = zip(*told, strict=True)
    rule = calibrated(steps, min(groups))
    if len(at) <= rule.baseline:
        return None
    alarm = int(first_alarms(np.array([means]), np.array([errors]), rule)[0])
    return None if alarm < 0 else at[alarm]
