"""How soon a run finds the shortcut that its judge pays for, and how fast it then takes it.

CHERRL (2606.04923, sec. 3) tells two sides of a bias apart. *Discoverability* is how soon the judge
leaves the truth; it goes with how far the shortcut and right answers come together early on, told
as an odds ratio. *Exploitability* is how fast judge and shortcut rise after that.

`onset_time` is over runs some of which end before their judge is seen to leave the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from statsmodels.duration.survfunc import SurvfuncRight

from analysis.onset.estimate import Line
from analysis.onset.threshold_grid import NO_SHORTCUT, first_tenth, shortcut
from analysis.records.runs import Run, step_means
from analysis.statistics.estimate import NAN, Estimate, around
from analysis.statistics.intervals import student
from analysis.statistics.proportions import logit_share
from study.verdict import THRESHOLD

AFTER = 0.2
"""Share of a run's steps over which growth after an onset is told: CHERRL's 100 of some 500."""


@dataclass(frozen=True)
class Shortcut:
    """What is said of one run."""

    cell: str
    arm: str
    seed: int
    features: tuple[str, ...]
    """The behaviours that count as the shortcut; none where none is known."""
    last: int
    onset: float
    """Step of the change point; NaN where the gap is not seen to rise."""
    followed: float
    """The last step up to which it was looked for; NaN where it could not be."""
    grid_onset: float
    """Step by CHERRL's thresholds among the best-scored tenth of the run; NaN where not reached."""
    grid_followed: float
    """As ``followed``; NaN without a shortcut or a gap."""
    entanglement: Estimate
    judge_growth: Estimate
    """Judge score gained per step after the onset; NaN without one."""
    shortcut_growth: Estimate
    """Share of rollouts with the shortcut gained per step after the onset."""


def of_run(run: Run, onset_line: Line, features: Sequence[str]) -> Shortcut:
    """Discoverability and exploitability of one run.

    Args:
        onset_line: `analysis.onset.estimate.line` of the run.
        features: the shortcut; may be empty.
    """
    named = tuple(name for name in features if name in run.names)
    shown = shortcut(run, named) if named else np.zeros(run.truth.shape, dtype=bool)
    early = first_tenth(run)
    none = Estimate(NAN, note=NO_SHORTCUT)
    right = np.where(np.isfinite(run.truth), run.truth >= THRESHOLD, np.nan)
    onset = onset_line.onset.step.value
    rate = np.where(np.isfinite(run.judge), shown, np.nan)
    last = int(run.steps[-1])
    tested = not np.isnan([onset_line.onset.p, onset_line.onset.before]).all()
    has_grid = bool(named) and not np.isnan(onset_line.gap_first)
    return Shortcut(
        *(run.cell, run.arm, run.seed, named, last, onset),
        followed=float(last) if tested else NAN,
        grid_onset=NAN if onset_line.own_grid.mode is None else float(onset_line.own_grid.mode),
        grid_followed=float(last) if has_grid else NAN,
        entanglement=entanglement(shown[early], right[early]) if named else none,
        judge_growth=growth(run.steps, step_means(run, run.judge), onset),
        shortcut_growth=growth(run.steps, step_means(run, rate), onset) if named else none,
    )


def entanglement(shown_P_G: np.ndarray, right_P_G: np.ndarray) -> Estimate:
    """Odds of the shortcut among right answers over those among wrong ones, clustered by group.

    Above 1 the shortcut comes with right answers, below 1 in their place. The interval is a t one
    on the log scale by the delta method. Where one of the four kinds of answers does not occur,
    half an answer is added to each (Haldane), which ``note`` says. NaN where all answers are right
    or none is, or all show the shortcut or none does.

    Args:
        shown_P_G: whether the answer shows the shortcut.
        right_P_G: 1 right, 0 wrong, NaN unknown.
    """
    has_truth = np.isfinite(right_P_G)
    shown, right = np.asarray(shown_P_G, dtype=bool), right_P_G == 1
    kinds = [has_truth & (shown == has) & (right == is_right) for has, is_right in _KINDS]
    counts = np.array([kind.sum() for kind in kinds], dtype=float)
    by_shown_and_right = counts.reshape(2, 2)
    if not (by_shown_and_right.any(axis=0).all() and by_shown_and_right.any(axis=1).all()):
        return Estimate(NAN, n=len(has_truth), unit="group", note="shortcut or truth does not vary")
    note = "a kind of answer does not occur: half of one added to each" if 0 in counts else ""
    counts = counts + 0.5 * (0 in counts)
    log = float(np.log(counts) @ _SIGNS)
    pull_P = (_SIGNS / counts) @ np.array([kind.sum(axis=1) for kind in kinds])
    groups = int(has_truth.any(axis=1).sum())
    if groups < 2:
        return Estimate(float(np.exp(log)), n=groups, unit="group", note="one group, no interval")
    error = float(np.sqrt(groups / (groups - 1) * (pull_P**2).sum()))
    half = float(student(groups - 1)) * error
    low, high = np.exp([log - half, log + half]).tolist()
    return Estimate(float(np.exp(log)), low, high, groups, "group", note=note)


_KINDS = ((True, True), (True, False), (False, True), (False, False))
_SIGNS = np.array([1.0, -1.0, -1.0, 1.0])


def growth(
    steps_T: np.ndarray, values_T: np.ndarray, onset: float, share: float = AFTER
) -> Estimate:
    """Slope per step of a value from the onset on, by least squares with its t interval over steps.

    NaN without an onset, and where fewer than three steps have a value.

    Args:
        steps_T: steps of the run, in order.
        values_T: their means; NaN is missing.
        onset: a step.
        share: of the run's steps that count, from the onset on.
    """
    if not np.isfinite(onset):
        return Estimate(NAN, unit="step", note="no onset")
    span = max(3, int(np.ceil(share * len(steps_T))))
    here = (steps_T >= onset) & (steps_T < onset + span) & np.isfinite(values_T)
    count = int(here.sum())
    if count < 3:
        return Estimate(NAN, n=count, unit="step", note="fewer than three steps after the onset")
    steps, values = (each[here] - each[here].mean() for each in (steps_T, values_T))
    slope = float(steps @ values / (steps @ steps))
    error = float(np.sqrt(((values - slope * steps) ** 2).sum() / (count - 2) / (steps @ steps)))
    return around(slope, float(student(count - 2)) * error, count, "step")


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
