"""Checks of `analysis.selfcheck` for the way from bias to behaviour.

Forecast, predicted shift, dose slope, slope on a measured bias, mediation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.arm.calibration import fit_scale
from analysis.arm.dose import line, trend_p
from analysis.arm.errors_in_variables import slopes
from analysis.arm.forecast import Rollouts, pushes
from analysis.arm.mediation import mediate
from analysis.planted.trials import Trials, quiet, trials
from analysis.planted.truth import Tabular
from analysis.statistics.estimate import Estimate
from study.rows import Row

if TYPE_CHECKING:
    import numpy as np


def forecast(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The first step's push E Cov(A, z) of a dosed judge, from 64 groups, against every group."""
    truth = np.array([1.0, 0.0, 1.0, 0.0])
    length = np.array([-1.0, 0.0, 0.5, 2.0])
    policy = Tabular(truth, length[:, None], np.zeros(4))
    reward = truth + 0.2 * length
    exact = float(policy.expected_cov(reward, 8)[0])
    rows = tuple(Row(str(number), ()) for number in range(64))
    pushed = []
    for _ in range(count):
        members = policy.sample(rng, 64, 8)
        rollouts = Rollouts(rows, (), length[members][..., None], ("length",))
        pushed += [line.push for line in pushes("j", reward[members], rollouts, "group")]
    return {"forecast push, t over prompts": trials(exact, pushed)}


def doses(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The dose-response slope over 20 runs, and its trend test where there is no response."""
    dose = np.repeat([-0.2, -0.1, 0.0, 0.1, 0.2], 4)
    fitted, silent = [], []
    for seed in range(count):
        noise = rng.normal(0, 2, len(dose))
        fitted.append(line(dose, 30 * dose + noise).slope)
        silent.append(trend_p(dose, noise, seed, draws=399) > 0.05)
    return {
        "dose slope, t over runs": trials(30.0, fitted),
        "dose trend p <= .05, no response": quiet(np.array(silent)),
    }


def prediction(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """One more run's shift from a scale fitted on eight others, less the shift it will have: 0."""
    errors = []
    for _ in range(count):
        push = rng.normal(0, 1, 9)
        shift = 20 * push + rng.normal(0, 2, 9)
        fit = fit_scale(push[:8], shift[:8])
        error, half = fit.factor * push[8] - shift[8], fit.half(float(push[8]))
        errors.append(Estimate(error, error - half, error + half))
    return {"predicted shift, 8 other runs": trials(0.0, errors)}


def measured(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Slope 2 on the bias of 12 judges of SD 1, measured with error .3; mean shifts with .4.

    At .5 the slope by moments has no mean any more: some draws are nearly all error.
    """
    error, spread = np.full(12, 0.3), np.full(12, 0.4)
    by_method: dict[str, list[Estimate]] = {}
    for _ in range(count):
        true = rng.normal(0, 1, 12)
        bias, shift = true + rng.normal(0, error), 2 * true + rng.normal(0, spread)
        for one in slopes(bias, error, shift, spread):
            by_method.setdefault(one.method, []).append(one.slope)
    return {
        f"measured bias, {name}, 12 judges": trials(2.0, by_method[name])
        for name in ("moments", "deming", "simex")
    }


def mediated(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """An effect of 40 x -.01 through the behaviour, beside a direct one, over 20 runs."""
    dose = np.repeat([-0.1, 0.0, 0.05, 0.1, 0.15], 4)
    effects = []
    for seed in range(count):
        length = 40 * dose + rng.normal(0, 2, len(dose))
        truth = -0.01 * length - 0.3 * dose + rng.normal(0, 0.02, len(dose))
        effects.append(mediate(dose, length, truth, seed).indirect)
    return {"mediated effect, Monte Carlo": trials(-0.4, effects)}


CHECKS = (forecast, prediction, doses, measured, mediated)
