"""How forecasts came out, judge by judge, beside simple ones, oracles, and what could be known.

One definition for every method: R2 = 1 - SSE / SS about the mean over judges, both over the means
of each judge's runs. The best that any forecast could reach is to know those means: what of their
variance is no chance of seeds, the intraclass correlation of the mean of S seeds (McGraw and Wong's
ICC(1,k) with its F interval), after what goes with the exposure is taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from analysis.dose.estimate import trend_p
from analysis.forecast.baselines import DOSE, SEED, SIMPLER
from analysis.forecast.candidates import Candidates
from analysis.forecast.estimate import BaseRewards
from analysis.forecast.units import (
    FORECAST,
    OF_FAMILY,
    UPDATED,
    Fitted,
    Shifts,
    Trained,
    estimates,
    fit_of,
    runs_to_score,
    shift_of,
    shifts,
    updated,
)
from analysis.statistics.agreement import icc_family, jackknife
from analysis.statistics.estimate import (
    FLAT,
    NAN,
    NO_ESTIMATE,
    Estimate,
    columns,
    known_mean,
    known_means,
)
from analysis.statistics.intervals import line, mean_interval
from analysis.statistics.prediction import FEWEST, pearson, r2

MOVES = 0.5
"""SDs from which a behaviour is said to move: the mean shift of some judge."""
RELIABLE = 0.3
"""Least lower end of the agreement of two seeds from which a share of the ceiling is shown."""


@dataclass(frozen=True)
class Ceiling:
    """What of a behaviour could be forecast.

    Attributes:
        moves: whether the mean shift of some judge is `MOVES` SDs or more.
        seeds: agreement of two runs of one judge, an intraclass correlation.
        best: that of the means of its runs: the R2 of who knows each judge's mean.
    """

    feature: str
    moves: bool
    seeds: Estimate
    best: Estimate

    @property
    def reliable(self) -> bool:
        """Whether seeds agree well enough that a share of the ceiling says something."""
        return self.seeds.low >= RELIABLE


@dataclass(frozen=True)
class MethodScore:
    """How one method's forecasts of a behaviour came out over judges, in SDs of the behaviour.

    Attributes:
        r2: over the means of judges, and ``share`` of what could be reached; NaN where seeds do not
            agree.
        slope: of observed on forecast, with its t interval: 1 is calibrated.
        rho, p: rank correlation over judges, and its permutation p.
        inside: share of the runs in their prediction interval; of forecasts that have one.
        behind: R2 of the forecast less that of this method, paired over judges, with a t interval.
    """

    method: str
    feature: str
    judges: int
    runs: int
    moves: bool
    r2: float
    share: float
    slope: Estimate
    rho: float
    p: float
    inside: float
    behind: Estimate

    def row(self) -> dict[str, str | float]:
        """As a row of a table."""
        return columns(self, slope="")


@dataclass(frozen=True)
class Pooled:
    """One method over all behaviours that moved, which are of all where none did.

    Attributes:
        r2, rho: means over behaviours.
        behind, rho_behind: of the forecast less those of this method, with intervals over judges:
            t, and the jackknife's.
    """

    method: str
    behaviours: int
    r2: float
    rho: float
    behind: Estimate
    rho_behind: Estimate


@dataclass(frozen=True)
class Scored:
    """How all methods did: by behaviour, and pooled over those that moved."""

    ceilings: Sequence[Ceiling] = ()
    methods: Sequence[MethodScore] = ()
    pooled: Sequence[Pooled] = ()

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return {
            "ceilings": [columns(line) for line in self.ceilings],
            "scores": [line.row() for line in self.methods],
            "pooled": [columns(line) for line in self.pooled],
        }


def ceiling(feature: str, shift_R: np.ndarray, judge_R: np.ndarray, size_R: np.ndarray) -> Ceiling:
    """What of a behaviour could be forecast, from R runs, with the exposure of each in ``size_R``;
    judges with fewer runs than most are left out of the agreement."""
    known = np.isfinite(shift_R)
    shifts, judges, sizes = shift_R[known], judge_R[known], size_R[known]
    means = [shifts[judges == judge].mean() for judge in np.unique(judges)]
    moves = bool(len(means) and max(map(abs, means)) >= MOVES)
    if len(shifts) and np.ptp(sizes) > 0:
        shifts = shifts - np.polyval(np.polyfit(sizes, shifts, 1), sizes)
    by_judge = [shifts[judges == judge] for judge in np.unique(judges)]
    seeds = int(np.median([len(each) for each in by_judge])) if by_judge else 0
    rows = [each[:seeds] for each in by_judge if len(each) >= seeds]
    if seeds < 2 or len(rows) < FEWEST:
        return Ceiling(feature, moves, NO_ESTIMATE, NO_ESTIMATE)
    family = icc_family(np.array(rows))
    return Ceiling(feature, moves, family["ICC(1,1)"], family["ICC(1,k)"])


def score(
    method: str,
    top: Ceiling,
    forecast_A: np.ndarray,
    observed_A: np.ndarray,
    ours_A: np.ndarray,
    inside: float,
    runs: int,
) -> MethodScore:
    """One method and behaviour over A judges.

    Args:
        forecast_A, observed_A: mean over the runs of each judge, in SDs; NaN is unknown.
        ours_A: what the method is compared with.
    """
    both = np.isfinite(forecast_A) & np.isfinite(observed_A)
    forecast, observed = forecast_A[both], observed_A[both]
    value = r2(observed, forecast)
    can_fit = len(forecast) >= FEWEST and np.ptp(forecast) > 0
    places = stats.rankdata(np.array([forecast, observed]), axis=1)
    paired = both & np.isfinite(ours_A)
    seen = observed_A[paired]
    total = ((seen - seen.mean()) ** 2).mean() if len(seen) else 0.0
    apart = (forecast_A - observed_A)[paired] ** 2 - (ours_A - observed_A)[paired] ** 2
    return MethodScore(
        method=method,
        feature=top.feature,
        judges=len(forecast),
        runs=runs,
        moves=top.moves,
        r2=value,
        share=value / top.best.value if top.reliable else NAN,
        slope=line(forecast, observed).slope if can_fit else NO_ESTIMATE,
        rho=pearson(*places),
        p=trend_p(*places) if can_fit else NAN,
        inside=inside,
        behind=mean_interval((apart / total).tolist(), unit="judge") if total else NO_ESTIMATE,
    )


def pooled(
    method: str, forecast_A_K: np.ndarray, observed_A_K: np.ndarray, ours_A_K: np.ndarray
) -> Pooled:
    """One method over K behaviours and A judges; NaN is unknown, and left out of both."""
    known = np.isfinite(forecast_A_K) & np.isfinite(observed_A_K) & np.isfinite(ours_A_K)
    seen = np.where(known, observed_A_K, NAN)
    theirs, ours = np.where(known, forecast_A_K, NAN), np.where(known, ours_A_K, NAN)
    has_spread = [
        of_judges.sum() >= FEWEST and np.ptp(values[of_judges]) > FLAT
        for of_judges, values in zip(known.T, observed_A_K.T, strict=True)
    ]
    shown = np.flatnonzero(has_spread).tolist()
    r2s = [r2(seen[:, k], theirs[:, k]) for k in shown]
    apart = (theirs - seen) ** 2 - (ours - seen) ** 2
    total = [np.nanmean((seen[:, k] - np.nanmean(seen[:, k])) ** 2) for k in shown]
    by_judge = known_means((apart[:, shown] / np.array(total)).T)

    def rho_behind(rows: np.ndarray) -> float:
        return _mean_rho(ours[rows], seen[rows]) - _mean_rho(theirs[rows], seen[rows])

    judges = np.arange(len(seen))
    whole = rho_behind(judges)
    without = [rho_behind(np.delete(judges, judge)) for judge in judges]
    return Pooled(
        method=method,
        behaviours=len(shown),
        r2=known_mean(np.array(r2s)),
        rho=_mean_rho(theirs, seen),
        behind=mean_interval(by_judge.tolist(), unit="judge"),
        rho_behind=replace(
            jackknife(whole, without, len(judges), "few judges", most=np.inf), unit="judge"
        ),
    )


def _mean_rho(forecast_A_K: np.ndarray, observed_A_K: np.ndarray) -> float:
    """Mean over behaviours of the rank correlation over judges."""
    rhos = []
    for forecast, observed in zip(forecast_A_K.T, observed_A_K.T, strict=True):
        both = np.isfinite(forecast) & np.isfinite(observed)
        rhos.append(pearson(*stats.rankdata([forecast[both], observed[both]], axis=1)))
    return known_mean(np.array(rhos))


def scored(
    kept: Fitted, base_rewards: BaseRewards, judged: Candidates, runs: Trained, count: int = 0
) -> Scored:
    """What of each behaviour could be forecast, and how every method did; none without runs.

    With a ``count`` of updates that are seen of each judge's first run, all methods are scored on
    its other runs.
    """
    start, arms = judged.start, np.unique(runs.arm).tolist()
    arms = [arm for arm in arms if len(runs_to_score(runs, arm, count))]
    of_arms = [runs.shift[runs_to_score(runs, arm, count)] for arm in arms]
    fits = [fit_of(kept, base_rewards, judged.arms[arm]) for arm in arms]
    made = [shifts(of.follows, judged, arm) for of, arm in zip(fits, arms, strict=True)]
    with_intervals = {FORECAST: made}
    if count:
        with_intervals[UPDATED] = [
            updated(of, judged, arm, each, runs, count)
            for of, arm, each in zip(fits, arms, made, strict=True)
        ]
    inside = {
        method: known_means(_hits(fits, judged, arms, of_method, of_arms))
        for method, of_method in with_intervals.items()
    }
    shape = (-1, len(start.names))
    by_method = {
        method: np.array([each.of_run for each in of_method]).reshape(shape)
        for method, of_method in with_intervals.items()
    }
    ours = by_method[FORECAST]
    if kept.study == base_rewards.study and kept.family_left_out:
        unseen = [kept.family_left_out.get(judged.arms[arm]) for arm in arms]
        by_method[OF_FAMILY] = np.array(
            [
                shifts(of.follows, judged, arm).of_run if of else np.full(len(start.names), NAN)
                for of, arm in zip(unseen, arms, strict=True)
            ]
        )
    for name in (*SIMPLER, DOSE):
        by_method[name] = np.array(
            [
                shift_of(name, of.simpler[name], judged)[arm]
                for of, arm in zip(fits, arms, strict=True)
            ]
        ).reshape(shape)
    observed = np.array([known_means(each) for each in of_arms]).reshape(shape)
    others = np.array([known_means(each[1:]) for each in of_arms]).reshape(shape)
    first = np.array([each[0] for each in of_arms]).reshape(shape)
    ceilings, lines = [], []
    for k in np.flatnonzero(start.varies & np.isfinite(runs.shift).any(axis=0)).tolist():
        top = ceiling(start.names[k], runs.shift[:, k], runs.arm, judged.exposure[runs.arm])
        ceilings.append(top)
        known = sum(int(np.isfinite(each[:, k]).sum()) for each in of_arms)
        for method, values in by_method.items():
            share = inside[method][k] if method in inside else NAN
            lines.append(score(method, top, values[:, k], observed[:, k], ours[:, k], share, known))
        lines.append(score(SEED, top, first[:, k], others[:, k], ours[:, k], NAN, known))
    shown = [start.names.index(top.feature) for top in ceilings if top.moves]
    shown = shown or [start.names.index(top.feature) for top in ceilings]
    if not shown:
        return Scored()
    means = [
        pooled(method, values[:, shown], observed[:, shown], ours[:, shown])
        for method, values in by_method.items()
    ]
    return Scored(ceilings, lines, means)


def _hits(
    fits: Sequence[Fitted],
    judged: Candidates,
    arms: Sequence[int],
    made: Sequence[Shifts],
    observed: Sequence[np.ndarray],
) -> np.ndarray:
    """Whether each run is in its prediction interval, shape (R, K1); NaN where it has none."""
    hits = [np.zeros((0, len(judged.start.names)))]
    for of, arm, each, observed_S_K1 in zip(fits, arms, made, observed, strict=True):
        row = estimates(of, judged, arm, each)
        low, high = np.array([[line.low, line.high] for line in row]).T
        known = np.isfinite(observed_S_K1) & np.isfinite(low) & np.isfinite(high)
        inside = (low <= observed_S_K1) & (observed_S_K1 <= high)
        hits.append(np.where(known, inside, NAN))
    return np.concatenate(hits)
