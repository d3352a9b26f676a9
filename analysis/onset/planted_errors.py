"""Checks of `analysis.selfcheck` for a judge's error taken apart: what truth that falls shows.

Policies whose truth falls from .75 to .35 in 40 steps, under judges that pay for no behaviour and
still show a gap that moves; the same judges with a dose, for the power that is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.ledger.estimate import advantage_parts, shares
from analysis.ledger.judge_error import calibrated, taken_apart
from analysis.onset.estimate import line
from analysis.planted.trials import Trials, silent, trials
from analysis.records.runs import Run
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import mean_interval

STEPS, GROUPS, GROUP, CRITERIA = 40, 8, 8, 4
FALL = (0.75, 0.35)
DOSE = 0.15
"""Score per standard deviation of a behaviour that rises by one and a half of them."""
SHARE = 4
"""Every so many replications plant a whole run."""
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
        estimates_by_row = {
            f"onset p > .05, {name} judge": [silent(run.onset.p) for run in still],
            f"no early stop, {name} judge": [silent(run.alarm is None) for run in still],
        }
        power = {
            f"power of the onset, {name}": [silent(run.onset.p <= 0.05) for run in paid],
            f"power of the stop, {name}": [silent(run.alarm is not None) for run in paid],
        }
        out |= {
            row: trials(0.0, estimates, at_least=True)
            for row, estimates in estimates_by_row.items()
        }
        out |= {
            row: trials(0.0, estimates, POWER, at_least=True) for row, estimates in power.items()
        }
    return out


def slopes(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Slopes of the first 256 rollouts, where a behaviour that goes with the truth is paid for."""
    out = {}
    for name, judge in {"compressing": Judge(0.5, 0.25), "fair": Judge()}.items():
        fits = []
        for seed in range(count // 2):
            run = falling(rng, judge, 0.05)
            fit = calibrated(run, run.judge, seed)
            half = 1.96 * fit.slope_se
            fits.append(Estimate(fit.slope, fit.slope - half, fit.slope + half))
        out[f"slope of a {name} judge"] = trials(judge.slope, fits)
    return out


def shares_of(run: Run) -> dict[str, float]:
    """`shares` of a whole run at once."""
    error = taken_apart(run, run.reward)
    return shares(error, advantage_parts(run, error, run.scale))


def unpaid(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Share of the advantages that is bias, of a noisy judge without one: t over five runs."""
    judge, estimates = Judge(noise_sd=0.2), []
    for _ in range(count // SHARE):
        runs = [falling(rng, judge) for _ in range(SEEDS)]
        of_runs = [shares_of(run) for run in runs]
        estimates.append(mean_interval([row["share/bias"] for row in of_runs]))
    return {"bias share of a noisy judge": trials(0.0, estimates)}


CHECKS = (onsets, slopes, unpaid)
