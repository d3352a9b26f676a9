"""Whether a run is to be ended: the alarm of `analysis.onset.estimate` on the rollouts so far."""

from __future__ import annotations

from analysis.ledger import judge_error
from analysis.onset.estimate import alarmed
from analysis.records.runs import Run


def stops(run: Run, steps: int) -> bool:
    """Whether the alarm on what the judge's calibration leaves of judge - truth says stop by now.

    Args:
        run: as far as it has come.
        steps: that it is to make in all; the rule is calibrated for so many.
    """
    return alarmed(run, judge_error.calibrated(run, run.judge), steps)[1] is not None
