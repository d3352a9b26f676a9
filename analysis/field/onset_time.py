"""When an arm's judge leaves the truth, over runs some of which end before it is seen to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from statsmodels.duration.survfunc import SurvfuncRight

from analysis.statistics.estimate import NAN, Estimate
from analysis.statistics.proportions import logit_share

ROUNDING = 1e-9


@dataclass(frozen=True)
class OnsetTime:
    """Of one arm, in steps: the median onset, and the mean of the steps before it."""

    runs: int
    """Runs in which an onset was looked for."""
    seen: int
    """Runs with an onset; the others are censored at their last step."""
    followed: float
    """Last step of the longest of them; NaN of none."""
    horizon: float
    """The step up to which `restricted` counts."""
    median: Estimate
    """Kaplan and Meier's, the middle of the line where the curve is flat at a half; NaN where half
    of the runs have not reached an onset."""
    restricted: Estimate
    """Mean number of steps before the onset, up to the horizon (restricted mean survival time)."""


def onset_time(
    onset_S: Sequence[float] | np.ndarray,
    last_S: Sequence[float] | np.ndarray,
    horizon: float | None = None,
) -> OnsetTime:
    """Kaplan-Meier median and restricted mean of the onsets of S runs of one arm.

    The median's interval is that of Brookmeyer and Crowley (1982, Biometrics 38) on the
    complementary log-log scale. The restricted mean's is a t interval over the runs' jackknife
    pseudo-values (Andersen, Hansen and Klein 2004, Lifetime Data Analysis 10), which are
    min(onset, horizon) where no run ended early, on the logit scale of its share of the horizon.

    Args:
        onset_S: step of each run's onset; NaN where none was seen.
        last_S: last step of each run; NaN where an onset could not be looked for. Such a run is
            left out: it is not censored, because nothing of it is known.
        horizon: the same for every arm that is compared. The longest run where it is None.

    Raises:
        ValueError: an onset after its run's last step.
    """
    onset, last = np.asarray(onset_S, dtype=float), np.asarray(last_S, dtype=float)
    is_followed = np.isfinite(last)
    onset, last = onset[is_followed], last[is_followed]
    has_onset = np.isfinite(onset)
    if (onset[has_onset] > last[has_onset]).any():
        raise ValueError("an onset lies after its run's last step")
    time, runs = np.where(has_onset, onset, last), len(last)
    if not runs:
        nothing = Estimate(NAN, unit="run", note="an onset was looked for in no run")
        return OnsetTime(0, 0, NAN, NAN if horizon is None else float(horizon), nothing, nothing)
    followed = float(last.max())
    end = followed if horizon is None else float(horizon)
    restricted = _restricted(time, has_onset, end)
    return OnsetTime(
        runs, int(has_onset.sum()), followed, end, _median(time, has_onset), restricted
    )


def _restricted(time_S: np.ndarray, has_onset_S: np.ndarray, end: float) -> Estimate:
    runs, mean = len(time_S), _area(time_S, has_onset_S, end)
    if time_S.max() < end and not has_onset_S[time_S == time_S.max()].all():
        note = f"no run without an onset is followed up to step {end:g}"
        return Estimate(NAN, n=runs, unit="run", note=note)
    variance = NAN
    if runs > 1:
        others = ~np.eye(runs, dtype=bool)
        areas = np.array([_area(time_S[kept], has_onset_S[kept], end) for kept in others])
        variance = float((runs - 1) ** 2 / runs * areas.var(ddof=1)) / end**2
    share = logit_share(mean / end, variance, runs - 1, runs)
    return replace(share, value=mean, low=share.low * end, high=share.high * end)


def _median(time_S: np.ndarray, has_onset_S: np.ndarray) -> Estimate:
    if not has_onset_S.any():
        return Estimate(NAN, n=len(time_S), unit="run", note="no run has an onset")
    curve = SurvfuncRight(time_S, has_onset_S.astype(int))
    with np.errstate(divide="ignore", invalid="ignore"):  # where the curve has come down to 0
        low, high = (float(end) for end in curve.quantile_ci(0.5, method="cloglog"))
    here = np.flatnonzero(curve.surv_prob <= 0.5 + ROUNDING)
    if not len(here):
        return Estimate(NAN, low, high, len(time_S), "run", "fewer than half have an onset")
    note = "" if np.isfinite(high) else "no upper end" if np.isfinite(low) else "no interval"
    first = here[0]
    flat = curve.surv_prob[first] > 0.5 - ROUNDING and len(here) > 1
    value = float(curve.surv_times[first : first + 1 + flat].mean())
    return Estimate(value, low, high, len(time_S), "run", note)


def _area(time_S: np.ndarray, has_onset_S: np.ndarray, end: float) -> float:
    """Area under Kaplan and Meier's curve up to ``end``, flat from the last run on (Gill's way)."""
    if not has_onset_S.any():
        return end
    curve = SurvfuncRight(time_S, has_onset_S.astype(int))
    before = curve.surv_times < end
    steps = np.concatenate([[0.0], curve.surv_times[before], [end]])
    return float(np.diff(steps) @ np.concatenate([[1.0], curve.surv_prob[before]]))
