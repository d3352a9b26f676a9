"""Checks of `analysis.selfcheck` for the way from bias to behaviour.

Forecast, predicted shift, dose slope, slope on a measured bias, mediation.
"""

from __future__ import annotations

import numpy as np

from analysis.dose.errors_in_variables import slopes
from analysis.dose.estimate import trend_p
from analysis.dose.mediation import mediate
from analysis.forecast.estimate import Rollouts, pushes
from analysis.planted.trials import Trials, replicated, silent, trials
from analysis.planted.truth import Tabular
from analysis.propagation.calibration import fit_scale
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import line
from study.rows import Row


def forecast(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The first step's push E Cov(A, z) of a dosed judge, from 64 groups, against every group."""
    truth = np.array([1.0, 0.0, 1.0, 0.0])
    length = np.array([-1.0, 0.0, 0.5, 2.0])
    policy = Tabular(truth, length[:, None], np.zeros(4))
    reward = truth + 0.2 * length
    rows = tuple(Row(str(number), ()) for number in range(64))
    pushed = []
    for _ in range(count):
        members = policy.sample(rng, 64, 8)
        rollouts = Rollouts(rows, (), length[members][..., None], ("length",))
        pushed += [line.push for line in pushes("j", reward[members], rollouts, "group")]
    return {"forecast push, t over prompts": trials(policy.expected_cov(reward, 8)[0], pushed)}


@replicated({"dose slope, t over runs": 30.0, "dose trend p <= .05, no response": 0.0})
def doses(rng: np.random.Generator, seed: int) -> tuple[Estimate, ...]:
    """The dose-response slope over 20 runs, and its trend test where there is no response."""
    dose = np.repeat([-0.2, -0.1, 0.0, 0.1, 0.2], 4)
    noise = rng.normal(0, 2, len(dose))
    return line(dose, 30 * dose + noise).slope, silent(trend_p(dose, noise, seed, draws=399))


@replicated({"predicted shift, 8 other runs": 0.0})
def prediction(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """One more run's shift from a scale fitted on eight others, less the shift it will have: 0.

    Three behaviours of SD 1, 10 and .1 have one step size, and it is the second that is compared.
    """
    sd = np.array([1.0, 10.0, 0.1])
    push = rng.normal(0, sd, (9, 3))
    shift = 20 * push + rng.normal(0, [2, 40, 0.1], (9, 3))
    scale = fit_scale(push[:8], shift[:8], np.tile(sd, (8, 1)))
    predicted = scale.at(push[8, 1], 1)
    ends = (predicted.value, predicted.low, predicted.high)
    return (Estimate(*(end - shift[8, 1] for end in ends)),)


@replicated({f"measured bias, {name}, 12 judges": 2.0 for name in ("moments", "deming", "simex")})
def measured(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """Slope 2 on the bias of 12 judges of SD 1, measured with error .3; mean shifts with .4.

    At .5 the slope by moments has no mean any more: some draws are nearly all error.
    """
    error, spread = np.full(12, 0.3), np.full(12, 0.4)
    true = rng.normal(0, 1, 12)
    bias, shift = true + rng.normal(0, error), 2 * true + rng.normal(0, spread)
    by_method = slopes(bias, error, shift, spread)
    return tuple(by_method[name] for name in ("moments", "deming", "simex"))


@replicated({"mediated effect, Monte Carlo": -0.4})
def mediated(rng: np.random.Generator, seed: int) -> tuple[Estimate, ...]:
    """An effect of 40 x -.01 through the behaviour, beside a direct one, over 20 runs."""
    dose = np.repeat([-0.1, 0.0, 0.05, 0.1, 0.15], 4)
    length = 40 * dose + rng.normal(0, 2, len(dose))
    truth = -0.01 * length - 0.3 * dose + rng.normal(0, 0.02, len(dose))
    return (mediate(dose, length, truth, seed).indirect,)


CHECKS = (forecast, prediction, doses, measured, mediated)
