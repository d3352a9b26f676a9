"""Checks of `analysis.selfcheck` for onsets: bootstraps, the change point, the alarm, the peak, and
a judge's error taken apart.

For the last, policies whose truth falls from .75 to .35 in 40 steps, under judges that pay for no
behaviour and still show a gap that moves; the same judges with a dose, for the power that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import expit

from analysis.ledger import judge_error
from analysis.ledger.estimate import advantage_parts, shares
from analysis.onset.estimate import Line, change_point, line
from analysis.onset.overopt import (
    bias_free_gaps,
    calibrated,
    first_alarms,
    overoptimisation,
)
from analysis.planted.bootstrap import cluster_bootstrap, crossed_bootstrap, nested_bootstrap
from analysis.planted.trials import Trials, replicated, silent, trials
from analysis.records.runs import Run
from analysis.statistics.bootstrap import step_noise
from analysis.statistics.estimate import LEVEL, Estimate
from analysis.statistics.intervals import mean_interval

REPLICATES = 200
"""Of a run's groups, where each takes a fit."""
DRAWS = 1_000
"""Of clusters: with 12 runs the widened tails are at 1 %, which fewer do not tell."""


@replicated(
    {
        "cluster bootstrap, 30 prompts": 0.0,
        "crossed bootstrap, 12 x 40": 0.0,
        "nested bootstrap, 12 runs": 0.0,
    }
)
def resampling(rng: np.random.Generator, seed: int) -> tuple[Estimate, ...]:
    """Bootstrap intervals of a mean of 0 over clusters, crossed and nested; values are scores.

    Rows share their cluster's offset, so an interval that takes rows for independent fails here.
    """
    clusters = np.repeat(np.arange(30), 10)
    run, prompt = (axis.ravel() for axis in np.indices((12, 40)))
    clustered = rng.normal(0, 1, 30)[clusters] + rng.normal(0, 0.5, 300)
    by_run, by_prompt = rng.normal(0, 1, 12)[run], rng.normal(0, 1, 40)[prompt]
    noise = rng.normal(0, 0.3, len(run))
    return (
        cluster_bootstrap(clustered, clusters, replicates=DRAWS, seed=seed),
        crossed_bootstrap(by_run + by_prompt + noise, run, prompt, replicates=DRAWS, seed=seed),
        nested_bootstrap(by_run + noise, run, prompt, replicates=DRAWS, seed=seed),
    )


SHARE = 4
"""Every so many replications plant a whole run, or a rise of each form."""
RISES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int, int]] = {
    "fast ramp": (lambda u: u, 8, 14),
    "slow ramp": (lambda u: u, 10, 20),
    "one step": (lambda u: u, 11, 12),
    "quadratic": (lambda u: u**2, 8, 20),
    "cubic": (lambda u: u**3, 6, 20),
    "exponential": (lambda u: np.expm1(5 * u) / np.expm1(5), 8, 22),
    "saturating": (lambda u: np.expm1(-3 * u) / np.expm1(-3), 8, 20),
    "S-shaped": (lambda u: u**2 * (3 - 2 * u), 8, 18),
}
"""Forms of a rise over 24 steps, the last step before it and the one at which it ends."""


def change_points(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The first step of a rise of each form, the early stops of the same runs, which should not lie
    before its interval, and the size of the test that it rises at all."""
    steps, rule = np.arange(1, 25), calibrated(24, 8)
    rows, stops = {}, []
    for name, (form, begin, end) in RISES.items():
        path = 0.4 * form(np.clip((steps - begin) / (end - begin), 0, 1))
        found = []
        for seed in range(count // SHARE):
            data = _groups(rng, path)
            found.append(change_point(*data, replicates=REPLICATES, seed=seed).step)
            _, means, errors, _ = step_noise(*data, 1, rng)
            stop = int(first_alarms(means[None], errors[None], rule)[0])
            stops.append(silent(not (stop >= 0 and steps[stop] < found[-1].low)))
        rows[f"onset, {name}"] = trials(begin + 1, found, at_least=True)
    rows["no early stop before its onset"] = trials(0.0, stops, at_least=True)
    flat = (
        change_point(*_groups(rng, np.zeros(24)), replicates=REPLICATES, seed=seed).p
        for seed in range(count)
    )
    return {**rows, "onset p <= .05, constant gap": trials(0.0, map(silent, flat))}


def alarms(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """No alarm in bias-free runs, as often as the rule was calibrated for."""
    out = {}
    for steps, groups in ((40, 8), (100, 4)):
        gaps = bias_free_gaps(rng, count, steps, groups, 8)
        no_alarm = first_alarms(*gaps, calibrated(steps, groups)) < 0
        out[f"no alarm, {steps} steps x {groups}"] = trials(0.0, map(silent, no_alarm))
    return out


def peaks(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Where truth turns over sqrt(KL), when the form that made it is not known.

    With so little noise that the form is mostly found: where it is not, the peak is biased towards
    the other form's, while its interval still covers (tests/analysis/test_overopt.py).
    """
    d = np.linspace(0.3, 8, 30)
    curves = {
        "bon": (d * (0.2 - 0.02 * d), 5.0),
        "rl": (d * (0.25 - 0.1 * np.log(d)), np.exp(1.5)),
    }
    out = {}
    for form, (path, peak) in curves.items():
        fits = (
            overoptimisation(d, *_groups(rng, path, sd=0.05), replicates=REPLICATES, seed=seed)
            for seed in range(count)
        )
        out[f"peak over sqrt KL, {form}"] = trials(peak, (fit.peak for fit in fits))
    return out


@replicated({"cluster bootstrap, 12 unequal skewed": float(np.exp(0.5))})
def unequal(rng: np.random.Generator, seed: int) -> tuple[Estimate, ...]:
    """The bootstrap's adverse case: 12 clusters of 1 to 20 rows whose means are log-normal."""
    sizes = rng.integers(1, 21, 12)
    clusters = np.repeat(np.arange(12), sizes)
    values = np.exp(rng.normal(0, 1, 12))[clusters] + rng.normal(0, 0.5, len(clusters))
    return (cluster_bootstrap(values, clusters, replicates=DRAWS, seed=seed),)


def _groups(
    rng: np.random.Generator, path_T: np.ndarray, sd: float = 0.2, groups: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Step and sums of groups of a run whose step means follow a path; ``sd`` between groups."""
    means = path_T[:, None] + rng.normal(0, sd, (len(path_T), groups))
    steps = np.repeat(np.arange(1, len(path_T) + 1), groups)
    return steps, np.stack([means.ravel() * 8, np.full(means.size, 8.0)], axis=1)


STEPS, GROUPS, GROUP, CRITERIA = 40, 8, 8, 4
FALL = (0.75, 0.35)
DOSE = 0.15
"""Score per standard deviation of a behaviour that rises by one and a half of them."""
SEEDS = 5
POWER = 0.8
"""Share of the dosed runs that are found at least."""


@dataclass(frozen=True)
class Judge:
    """Says clip(level + slope x truth + dose x behaviour + noise) between 0 and 1."""

    slope: float = 1.0
    level: float = 0.0
    noise_sd: float = 0.1


JUDGES = {
    "compressing": Judge(slope=0.5),
    "clipped": Judge(level=0.3),
    "lenient": Judge(slope=0.7, level=0.3),
    "strict": Judge(level=-0.3),
}


def falling(
    rng: np.random.Generator, judge: Judge, dose: float = 0.0, moved: float = 1.5, seed: int = 0
) -> Run:
    """A run whose truth, a share of four criteria, falls; its first behaviour goes with the truth
    inside groups and rises from the eighth step on, by ``moved`` standard deviations."""
    step_P = np.repeat(np.arange(1, STEPS + 1), GROUPS)
    done = (step_P - 1) / (STEPS - 1)
    path = FALL[0] + (FALL[1] - FALL[0]) * done + rng.normal(0, 0.15, len(step_P))
    chance = np.clip(path, 0.02, 0.98)[:, None]
    truth = rng.binomial(CRITERIA, chance, (len(step_P), GROUP)) / CRITERIA
    z = rng.standard_normal((*truth.shape, 3))
    z[..., 0] += truth - chance + moved * np.clip((step_P - 8) / (STEPS - 8), 0, 1)[:, None]
    mean_score = judge.level + judge.slope * truth + dose * z[..., 0]
    score = np.clip(mean_score + judge.noise_sd * rng.standard_normal(truth.shape), 0, 1)
    nothing = np.full(truth.shape, np.nan)
    return Run(
        *(str(seed), "planted", seed, True, step_P, score, nothing, truth, score, z),
        ("z", "y", "x"),
        config={"trainer.steps": STEPS},
    )


def onsets(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """No onset and no early stop where no behaviour is paid for, and both where one is.

    What is found of a dose has `POWER` for its band.
    """
    runs, out = count // SHARE, {}
    for name, judge in JUDGES.items():
        still = [line(falling(rng, judge), ()) for _ in range(runs)]
        paid = [line(falling(rng, judge, DOSE), ()) for _ in range(runs // SHARE)]
        out |= _told(name, still, paid)
    return out


def _told(name: str, still: Sequence[Line], paid: Sequence[Line]) -> dict[str, Trials]:
    """What is said of runs of a judge who pays for nothing, and of those of one with a dose."""
    null = {
        f"onset p > .05, {name}": [silent(run.onset.p) for run in still],
        f"no early stop, {name}": [silent(run.alarm is None) for run in still],
    }
    power = {
        f"power of the onset, {name}": [silent(run.onset.p <= 0.05) for run in paid],
        f"power of the stop, {name}": [silent(run.alarm is not None) for run in paid],
    }
    return {
        row: trials(0.0, estimates, nominal, at_least=True)
        for rows, nominal in ((null, LEVEL), (power, POWER))
        for row, estimates in rows.items()
    }


ROW_JUDGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "right on easy rows": lambda chance_R: np.where(chance_R > 0.5, 1.0, 0.0),
    "random on easy rows": lambda chance_R: np.where(chance_R > 0.5, 0.2, 1.0),
    "right by difficulty": lambda chance_R: chance_R,
}
"""Slope of the score on the truth by a row's first chance of truth; where it is not 1 the judge is
noisy around .5."""
REPEATS = (1, 3, 10)
MOVED = ((2.0, 2.0), (-2.0, -2.0), (2.8, 0.4), (0.4, 2.8), (-2.8, -0.4), (-0.4, -2.8))
"""Log odds by which the truth of easy and of hard rows rises in a run."""
SETTINGS = tuple(product(MOVED, REPEATS, (1, CRITERIA)))
"""Moves, times that each row comes, and values of the truth but 0."""

ALL_ROWS = [number for number, (_, repeats, _) in enumerate(SETTINGS) if repeats == REPEATS[-1]]
"""Settings in which the first steps have all rows."""


def by_row(
    rng: np.random.Generator,
    slope_of: Callable[[np.ndarray], np.ndarray],
    number: int,
    dose: float = 0.0,
) -> Run:
    """A run whose rows differ in difficulty, under a judge whose slope differs by row; behaviours
    as in `falling`. ``number`` picks one of `SETTINGS`, in turn."""
    (easy, hard), repeats, values = SETTINGS[number % len(SETTINGS)]
    groups = STEPS * GROUPS
    rows = groups // repeats
    row_P = np.concatenate([rng.permutation(rows) for _ in range(repeats + 1)])[:groups]
    step_P = np.repeat(np.arange(1, STEPS + 1), GROUPS)
    odds_R = rng.normal(-0.5 * np.sign(easy + hard), 1.5, rows)
    moved_R = np.where(odds_R > 0, easy, hard)
    done = (step_P - 1) / (STEPS - 1)
    chance_P = expit(odds_R[row_P] + moved_R[row_P] * done)[:, None]
    truth = rng.binomial(values, chance_P, (groups, GROUP)) / values
    z = rng.standard_normal((*truth.shape, 3))
    z[..., 0] += truth - chance_P + 1.5 * np.clip((step_P - 8) / (STEPS - 8), 0, 1)[:, None]
    slope = slope_of(expit(odds_R))[row_P, None]
    mean_score = 0.5 + slope * (truth - 0.5) + dose * z[..., 0]
    noise = (0.1 + 0.25 * (1 - slope)) * rng.standard_normal(truth.shape)
    score = np.clip(mean_score + noise, 0, 1)
    nothing = np.full(truth.shape, np.nan)
    return Run(
        *(str(number), "planted", number, True, step_P, score, nothing, truth, score, z),
        ("z", "y", "x"),
        config={"trainer.steps": STEPS},
        prompt_P=row_P.astype(str).astype(object),
    )


def slopes_by_row(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """`onsets` of judges whose slope on the truth differs by row; a dose is found where the first
    steps have all rows."""
    out = {}
    for name, slope_of in ROW_JUDGES.items():
        still = [line(by_row(rng, slope_of, 7 * number), ()) for number in range(count // SHARE)]
        numbers = [ALL_ROWS[7 * number % len(ALL_ROWS)] for number in range(count // SHARE**2)]
        paid = [line(by_row(rng, slope_of, number, DOSE), ()) for number in numbers]
        out |= _told(name, still, paid)
    return out


def slopes(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Slopes of the first 256 rollouts, where a behaviour that goes with the truth is paid for."""
    out = {}
    for name, judge in {"compressing": Judge(0.5, 0.25), "fair": Judge()}.items():
        fits = []
        for seed in range(count // 2):
            run = falling(rng, judge, 0.05)
            fit = judge_error.calibrated(run, run.judge, seed)
            half = 1.96 * fit.slope_se
            fits.append(Estimate(fit.slope, fit.slope - half, fit.slope + half))
        out[f"slope of a {name} judge"] = trials(judge.slope, fits)
    return out


def shares_of(run: Run) -> dict[str, float]:
    """`shares` of a whole run at once."""
    error = judge_error.taken_apart(run, run.reward)
    return shares(error, advantage_parts(run, error, run.scale))


def unpaid(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Share of the advantages that is bias, of a noisy judge without one: t over five runs."""
    judge, estimates = Judge(noise_sd=0.2), []
    for _ in range(count // SHARE):
        runs = [falling(rng, judge) for _ in range(SEEDS)]
        of_runs = [shares_of(run) for run in runs]
        estimates.append(mean_interval([row["share/bias"] for row in of_runs]))
    return {"bias share of a noisy judge": trials(0.0, estimates)}


CHECKS = (resampling, change_points, alarms, peaks, onsets, slopes_by_row, slopes, unpaid)
FAILING = (unequal,)
"""Rows outside their band: few clusters of unequal size and skewed means, which no resampling of
clusters mends."""
