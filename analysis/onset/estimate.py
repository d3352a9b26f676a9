"""When a run's judge and truth part: a change point, the threshold grid of CHERRL, an alarm.

The gap is judge - truth of the same rollouts. Change point and alarm look at what the judge's
calibration on the first steps leaves of it, because the gap of a judge that compresses, is lenient
or stops at an end of its scale rises by itself where the truth falls. Everything is per run: groups
of rollouts within a step are what is resampled. docs/onset.md has the definitions and how they were
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.ledger import judge_error
from analysis.onset.overopt import (
    Rule,
    bias_free_gaps,
    calibrated,
    doubt,
    false_alarms,
    first_alarms,
)
from analysis.onset.threshold_grid import (
    FEWEST_HIGH,
    HIGH,
    OWN_FEWEST,
    Grid,
    grid_of,
    own_high,
)
from analysis.records.runs import Run
from analysis.statistics.bootstrap import step_noise
from analysis.statistics.estimate import FLAT, LEVEL, NAN, Estimate, group_sums
from study.cell.audit import drawn_places
from study.rewards.corrections.checks import FEWEST_STEPS

REPLICATES = 1_000
REFITS = 300
"""Replicates of noise in which the best rise of a begin is looked for again."""
REFUTED = 0.96
"""Share of refits that lose less than a refuted begin: above `LEVEL`, as the best rise has fitted
some noise and is found again too easily (oracles that know the shape cover .94 at .95)."""
KNOTS = 48
"""Most places where a rise may begin or end; longer runs are searched on that many steps."""
POOLED = 9
"""Steps around each over which the variance of its mean is averaged: one step has few groups."""
NO_STEP = Estimate(NAN, unit="step")
FEWEST_GROUPS = 2
"""Groups with a gap that a standard error takes."""
MISFIT = 0.99
"""Share of refits to pure group noise that leave fewer squares than a rise said not to fit."""
BENDS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], ...]] = {
    "bent down": (np.sqrt, lambda u: np.expm1(-3 * u) / np.expm1(-3)),
    "straight": (lambda u: u,),
    "S-shaped": (lambda u: u**2 * (3 - 2 * u), lambda u: u**3 * (10 - 15 * u + 6 * u**2)),
    "bent up": (
        lambda u: u**2,
        lambda u: u**3,
        lambda u: u**4,
        lambda u: np.expm1(3 * u) / np.expm1(3),
        lambda u: np.expm1(6 * u) / np.expm1(6),
    ),
}
"""Shapes of a rise from 0 to 1 over u = (t - begin) / (end - begin) by how they bend."""


@dataclass(frozen=True)
class Onset:
    """When the gap begins to rise; ``step`` is NaN where it is not seen to rise."""

    step: Estimate
    """The first step whose expected gap is above the gap before the rise."""
    p: float = NAN
    """Chance of as good a rise from group-sampling noise around a constant gap."""
    before: float = NAN
    rise: float = NAN
    """Gap before the rise, and how much it rose by the end of it; score units."""
    note: str = ""


@dataclass(frozen=True)
class Rises:
    """Every rise searched over T steps, in order of its begin; M of them."""

    begin_M: np.ndarray
    """Last step without a rise; one before the first step where the rise is on from the start."""
    bend_M: np.ndarray
    """Index in `BENDS`."""
    curve_M_T: np.ndarray
    """From 0 before the begin to 1 after the end."""
    unit_M_T: np.ndarray
    """The curves around their means, of length 1."""


def change_point(
    step_P: np.ndarray,
    gap_P_2: np.ndarray,
    *,
    refits_B_T: np.ndarray | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Onset:
    """Least-squares fit of flat - rise - flat to the step means of the gap, over the `BENDS`.

    The interval spans the begins that the data do not refute: a begin is refuted where its best
    rise leaves more squares over the best of all than it would in `REFUTED` of refits to that rise
    plus resampled group noise. p compares the best rise with the best one through that noise alone.

    Args:
        step_P: the step of every group.
        gap_P_2: sum of the gap over each group's rollouts that have one, and their number.
        refits_B_T: how far refits of a calibration move each step's gap, where it is less what a
            calibration explains; that doubt is added to the noise.
    """
    unseen = NO_STEP
    scored = gap_P_2[:, 1] > 0
    rng = np.random.default_rng(seed)
    steps, means, errors, noise = step_noise(step_P[scored], gap_P_2[scored], replicates, rng)
    if len(steps) < FEWEST_STEPS:
        few = f"{len(steps)} steps with judge and truth, at least {FEWEST_STEPS} are needed"
        return Onset(unseen, note=few)
    if not np.isfinite(errors).all():
        return Onset(unseen, note="steps of one group: no noise to compare with")
    noise = noise * _pooling(errors)
    if refits_B_T is not None:
        noise = noise + np.resize(refits_B_T, noise.shape)
    if np.ptp(means) < FLAT:
        return Onset(unseen, before=float(means.mean()), note="the gap is constant")
    rises = _rises(steps)
    by_means = rises.unit_M_T @ means
    by_noise = noise.astype(np.float32) @ rises.unit_M_T.astype(np.float32).T
    # Of equally good rises, the latest: what the data do not show has not begun.
    best = np.flatnonzero(by_means >= by_means.max() - FLAT)[-1]
    fitted, by_chance = by_means[best], by_noise.max(axis=1)
    p = float((1 + (by_chance >= fitted).sum()) / (1 + replicates))
    curve = rises.curve_M_T[best]
    rise = float(fitted / np.sqrt(((curve - curve.mean()) ** 2).sum()))
    before = float(means.mean() - rise * curve.mean())
    notes = [] if len(steps) <= KNOTS else [f"searched on {KNOTS} of {len(steps)} steps"]
    if not (fitted > 0 and p < 1 - LEVEL):
        note = "; ".join(["the gap is not seen to rise", *notes])
        return Onset(unseen, p, before, note=note)
    left, usual = _squares(means, fitted), _squares(noise, by_chance)
    stretch = 1.0
    if left > np.quantile(usual, MISFIT) and np.median(usual) > FLAT**2:
        stretch = float(np.sqrt(left / np.median(usual)))
        notes.insert(0, f"no shape fits the rise: noise taken {stretch:.1f}-fold, one step added")
    refits = stretch * by_noise[:REFITS]
    begins = rises.begin_M[_not_refuted(rises.begin_M, by_means, refits, rises.unit_M_T)]
    ends = _ends(begins, steps, stretch > 1 or len(steps) > KNOTS)
    if ends[0] < ends[1]:
        bends = rises.bend_M[_not_refuted(rises.bend_M, by_means, refits, rises.unit_M_T)]
        if len(told := [list(BENDS)[bend] for bend in bends]) > 1:
            notes.insert(0, f"the shape of the rise is not told: {', '.join(told)}")
    onset = _after(steps, rises.begin_M[best])
    return Onset(Estimate(onset, *ends, len(steps), "step"), p, before, rise, "; ".join(notes))


def _pooling(errors_T: np.ndarray) -> np.ndarray:
    """By how much to stretch each step's noise to the mean variance of the `POOLED` around it.

    The begin of a fast rise rests on one or two steps, whose own groups tell their variance badly.
    Steps without noise keep none.
    """
    noisy, near = errors_T > 0, np.ones(POOLED)
    squares, counted = (
        np.convolve(values, near)[POOLED // 2 :][: len(errors_T)] for values in (errors_T**2, noisy)
    )
    stretch = np.ones_like(errors_T)
    stretch[noisy] = np.sqrt(squares[noisy] / counted[noisy]) / errors_T[noisy]
    return stretch


def _rises(steps_T: np.ndarray) -> Rises:
    """Every rise searched: begins and ends at the `_knots`, all of `BENDS`."""
    knots = _knots(steps_T)
    first, last = np.triu_indices(len(knots), 1)
    # A rise that ends at the first step is none.
    first, last = first[last > 1], last[last > 1]
    begin, end = knots[first, None], knots[last, None]
    along = np.clip((steps_T - begin) / (end - begin), 0.0, 1.0)
    curves = np.stack([shape(along) for shapes in BENDS.values() for shape in shapes], axis=1)
    bends = [bend for bend, shapes in enumerate(BENDS.values()) for _ in shapes]
    curves = curves.reshape(-1, len(steps_T))
    centred = curves - curves.mean(axis=1, keepdims=True)
    units = centred / np.sqrt((centred**2).sum(axis=1, keepdims=True))
    return Rises(np.repeat(knots[first], len(bends)), np.tile(bends, len(first)), curves, units)


def _squares(values: np.ndarray, explained: np.ndarray) -> np.ndarray:
    """Squares around each row's mean that the best rise leaves."""
    return values.shape[-1] * values.var(axis=-1) - explained**2


def _not_refuted(
    labels_M: np.ndarray, fitted_M: np.ndarray, by_noise_B_M: np.ndarray, units_M_T: np.ndarray
) -> np.ndarray:
    """Index of the best rise of each label that the data do not refute; the best is among them.

    Args:
        labels_M: of the rises: those of one label are what is refuted as one.
        fitted_M: projections of the step means on the rises.
        by_noise_B_M: those of noise.
    """
    fitted = np.maximum(fitted_M, 0.0)
    hopeless = 25 * by_noise_B_M.var(axis=0).max()
    plausible = []
    for label in np.unique(labels_M):
        members = np.flatnonzero(labels_M == label)
        here = members[fitted[members].argmax()]
        loss, ties = fitted.max() ** 2 - fitted[here] ** 2, fitted.max() - fitted[here] <= FLAT
        if loss > hopeless and not ties:
            continue
        # Products are linear, so those of rise plus noise are those of noise moved along.
        moved = (fitted[here] * (units_M_T @ units_M_T[here])).astype(by_noise_B_M.dtype)
        refitted = by_noise_B_M + moved
        best, near = refitted.max(axis=1), refitted[:, members].max(axis=1)
        usual = np.maximum(best, 0.0) ** 2 - np.maximum(near, 0.0) ** 2
        if ties or loss <= np.quantile(usual, REFUTED):
            plausible.append(here)
    return np.array(plausible)


def _ends(begins: np.ndarray, steps_T: np.ndarray, further: bool) -> tuple[float, float]:
    """First and last onset of the begins, or of the knots beside them where it may lie between."""
    knots, first, last = _knots(steps_T), begins[0], begins[-1]
    if further:
        first = knots[knots < first].max(initial=knots[0])
        last = knots[:-1][knots[:-1] > last].min(initial=knots[-2])
    return _after(steps_T, first), _after(steps_T, last)


def _after(steps_T: np.ndarray, begin: float) -> float:
    """The first step after a begin."""
    return float(steps_T[np.searchsorted(steps_T, begin, side="right")])


def _knots(steps_T: np.ndarray) -> np.ndarray:
    """Places where a rise may begin or end: steps, and one before the first."""
    places = np.unique(np.linspace(0, len(steps_T) - 1, min(KNOTS, len(steps_T))).round())
    earlier = 2 * steps_T[0] - steps_T[1]
    return np.array([earlier, *steps_T[places.astype(int)]], dtype=float)


@dataclass(frozen=True)
class Line:
    """What is said of one run; `line` makes it."""

    cell: str
    arm: str
    seed: int
    steps: int
    gap_first: float
    gap_last: float
    onset: Onset
    """Of what the judge's calibration leaves of the gap."""
    grid: Grid
    own_grid: Grid
    """The same with the best-scored tenth of the run's rollouts for the high-score bucket."""
    alarm: int | None
    rule: Rule | None
    shortcut: str
    explained: float = NAN
    """How much of the gap's rise the judge's calibration explains."""


def line(
    run: Run,
    features: Sequence[str],
    high: float = HIGH,
    min_high: int = FEWEST_HIGH,
    calibration: judge_error.Calibrated | None = None,
) -> Line:
    """Onset by all three definitions for one run; see `change_point` for what cannot be had.

    The alarm of a run that it could end (``correction.stop``) is about the scores that it heard,
    the corrected ones. ``calibration`` is that of the judge's scores, where it was made; a run that
    is looked at otherwise than it was made gets its own.
    """
    looked_at = by_looks(run)
    if calibration is None or looked_at is not run:
        calibration = judge_error.calibrated(looked_at, looked_at.judge)
    run = looked_at
    expected = calibration.expected(run) if calibration.is_known else run.truth
    residual_sums = group_sums(run.judge - expected)
    scored = residual_sums[:, 1] > 0
    at = run.step_P[scored]
    raw = group_sums(run.judge - run.truth)[scored]
    steps, means, _, _ = step_noise(at, raw, 1, np.random.default_rng(0))
    gaps = dict(zip(steps.tolist(), means.tolist(), strict=True))
    grid = grid_of(run, features, gaps, high, min_high)
    own_grid = grid_of(run, features, gaps, own_high(run), OWN_FEWEST)
    gap_first, gap_last = _ends_of(means)
    onset, explained = Onset(NO_STEP, note=calibration.note), NAN
    if calibration.is_known or not len(steps):
        _, rest, _, _ = step_noise(at, residual_sums[scored], 1, np.random.default_rng(0))
        first, last = _ends_of(rest)
        explained = gap_last - gap_first - (last - first)
        refits = calibration.deviations(run)
        onset = change_point(at, residual_sums[scored], refits_B_T=refits)
        onset = replace(onset, note="; ".join(filter(None, [onset.note, calibration.note])))
    alarm_run, alarm_calibration = run, calibration
    if run.config.get("correction.stop") and run.corrected is not None:
        alarm_run = replace(run, judge=run.corrected)
        alarm_calibration = judge_error.calibrated(alarm_run, alarm_run.judge)
    rule, alarm = alarmed(alarm_run, alarm_calibration, _whole(run, len(steps)))
    shortcut = "+".join(name for name in features if name in run.names)
    axes = (run.cell, run.arm, run.seed, len(steps))
    ends = (gap_first, gap_last)
    return Line(*axes, *ends, onset, grid, own_grid, alarm, rule, shortcut, explained)


def alarmed(
    run: Run, calibration: judge_error.Calibrated, whole: int
) -> tuple[Rule | None, int | None]:
    """The rule of the alarm on what a calibration leaves of a run's gap, and the step at which it
    first says stop; None each where it cannot be had.

    Args:
        calibration: of the run's judge, over the steps on record.
        whole: steps of the whole run, which may not have made all of them yet.
    """
    expected = calibration.expected(run) if calibration.is_known else run.truth
    residual_sums = group_sums(run.judge - expected)
    scored = residual_sums[:, 1] > 0
    at = run.step_P[scored]
    if not calibration.is_known or len(np.unique(at)) < FEWEST_STEPS:
        return None, None
    steps, rest, errors, _ = step_noise(at, residual_sums[scored], 1, np.random.default_rng(0))
    if not np.isfinite(errors).all():
        return None, None
    groups = int(np.bincount(np.searchsorted(steps, at)).min())
    rule = calibrated(whole, groups)
    if len(steps) <= rule.baseline:
        return rule, None
    excess = rest - doubt(calibration.deviations(run), rule)
    place = int(first_alarms(excess[None], errors[None], rule)[0])
    return rule, int(steps[place]) if place >= 0 else None


def by_looks(run: Run) -> Run:
    """A run as its gap is looked at. Of an audited run that is its audited groups: a step may have
    one of them or none, so steps are taken together until they have `FEWEST_GROUPS`, and stand as
    the last of them. Any other run is itself."""
    if run.told_P is None:
        return run
    run = run.where(np.isfinite(run.judge - run.truth).any(axis=1))
    ends = _ends_of_looks(run.step_P)
    if not ends:
        return run
    ends[-1] = int(run.step_P.max())  # what is left over goes with the last
    return replace(run, step_P=np.array(ends)[np.searchsorted(ends, run.step_P)])


def _ends_of_looks(step_P: np.ndarray) -> list[int]:
    """The last step of each look at groups of these steps."""
    ends, groups = [], 0
    for step, count in zip(*np.unique(step_P, return_counts=True), strict=True):
        groups += count
        if groups >= FEWEST_GROUPS:
            ends.append(int(step))
            groups = 0
    return ends


def _whole(run: Run, recorded: int) -> int:
    """Looks for which a run's alarm is calibrated: those on record, and all that were declared
    where the alarm may have ended it before them. It could not by an audit that came later."""
    config, reference = run.config, run.reference
    if not config.get("correction.stop"):
        return recorded
    declared = int(config.get("trainer.steps") or 0)
    if reference is None or run.told_P is None:
        return max(recorded, declared)
    if "truth.audit.0" not in config:
        return recorded
    if reference.truth_P.all():  # where a rule knows some, each step may be a look
        drawn = drawn_places(
            int(config["seed"]),
            declared,
            int(config["trainer.prompts_per_step"]),
            share=float(config["truth.share"]),
            draw_seed=int(config["truth.seed"]),
        )
        declared = len(_ends_of_looks(np.array([step for step, _ in drawn])))
    return max(recorded, declared)


def _ends_of(means_T: np.ndarray) -> tuple[float, float]:
    """Means of the first and the last tenth of the steps that have one."""
    tail = max(1, len(means_T) // 10)
    if not len(means_T):
        return NAN, NAN
    return float(means_T[:tail].mean()), float(means_T[-tail:].mean())


def planted_false_alarms(run: Run, rule: Rule) -> Estimate:
    """`false_alarms` on 500 bias-free runs of this run's steps, groups and spread of the gap."""
    run = by_looks(run)
    gap = run.judge - run.truth
    sums = group_sums(gap)
    steps = _whole(run, len(np.unique(run.step_P)))
    groups = int(np.bincount(run.step_P)[run.step_P].min())
    noise = float(np.nanstd(gap - (sums[:, 0] / np.maximum(sums[:, 1], 1))[:, None]))
    size = run.judge.shape[1]
    rng = np.random.default_rng(0)
    return false_alarms(rule, bias_free_gaps(rng, 500, steps, groups, size, max(noise, 1e-3)))


def dosed(run: Run) -> list[str]:
    """Features that the run's simulated judge has a dose for: the shortcuts that are known."""
    return sorted(name for name, dose in (run.doses or {}).items() if dose)


def own_line(run: Run, calibration: judge_error.Calibrated | None = None) -> Line:
    """`line` with the shortcuts that the run's judge is known to pay for."""
    return line(run, dosed(run), calibration=calibration)


def stops(run: Run) -> bool:
    """Whether the alarm on what the judge's calibration leaves of judge - truth says stop by now.

    Args:
        run: as far as it has come; its config says how far it is to come.
    """
    run = by_looks(run)
    whole = _whole(run, len(np.unique(run.step_P)))
    return alarmed(run, judge_error.calibrated(run, run.judge), whole)[1] is not None
