"""Runs of a policy that is trained, and not of a formula: where first-order theory holds and stops.

The policy is a softmax over 120 answers of known length (0 to 29), tone and truth. Its parameters
are shared by all answers, as a network's are: one logit weight for each of the three. It is trained
by GRPO on sampled groups, with plain or Adam steps and a clipped gradient. Lengths are geometric:
a policy that is paid for them grows in mean and in variance at once, and so does the push.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from analysis.ledger.transmission import group_cov, split
from analysis.planted.trials import Trials, trials
from analysis.propagation.estimate import Trajectory, predict
from analysis.records.runs import shift
from analysis.statistics.estimate import Estimate
from study.rewards.advantages import advantages

FEWEST = 100
"""Replications, of which each is eight runs."""
LENGTHS, SHORTER = 30, 0.75
"""Lengths, and how much likelier each is than the next before training."""
PROMPTS, GROUP, STEPS = 8, 8, 30
NAMES = ("length", "tone", "truth")
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
"""Adam's, as torch has them."""


@dataclass(frozen=True)
class Optimiser:
    """Steps of ``rate`` on a gradient of norm ``clip`` at most (0 is any); ``adam`` or plain."""

    rate: float
    adam: bool = False
    clip: float = 0.0


@dataclass(frozen=True)
class Paths:
    """R runs of T steps: means of the K features, (R, T, K), pushes of the reward and of the truth,
    (R, T, K), gradient norms before clipping, (R, T), and first SDs, (R, K)."""

    level: np.ndarray
    push: np.ndarray
    of_truth: np.ndarray
    gradient: np.ndarray
    sd: np.ndarray


def answers() -> tuple[np.ndarray, np.ndarray]:
    """Features of every answer, (A, 3), and the log-probabilities of the untrained policy, (A,).
    Longer answers are less often right."""
    length, tone, right = (
        axis.ravel() for axis in np.meshgrid(np.arange(LENGTHS), [0, 1], [0, 1], indexing="ij")
    )
    chance = 0.6 * np.exp(-length / 20)
    odds = length * np.log(SHORTER) + np.log(np.where(tone, 0.2, 0.8))
    odds = odds + np.log(np.where(right, chance, 1 - chance))
    return np.stack([length, tone, right], axis=1).astype(float), odds


def train(rng: np.random.Generator, dose_R_2: np.ndarray, optimiser: Optimiser) -> Paths:
    """One run per row of doses on length and tone, in score units per SD, all at once."""
    features, odds = answers()
    start = softmax(odds)
    scale = np.sqrt(start @ (features - start @ features) ** 2)
    z = (features - start @ features) / scale
    reward_R_A = features[:, 2] + dose_R_2 @ z[:, :2].T
    runs, kinds = len(dose_R_2), z.shape[1]
    weights, moment, square = np.zeros((3, runs, kinds))
    row = np.arange(runs)[:, None, None]
    by_step: list[tuple[np.ndarray, ...]] = []
    for step in range(1, STEPS + 1):
        p_R_A = softmax(odds + weights @ z.T, axis=1)
        edges = p_R_A.cumsum(axis=1)
        draws = rng.random((runs, PROMPTS * GROUP))
        members = np.stack([np.searchsorted(e[:-1], d) for e, d in zip(edges, draws, strict=True)])
        members = members.reshape(runs, PROMPTS, GROUP)
        drawn, reward = features[members], reward_R_A[row, members]
        flat = (runs * PROMPTS, GROUP)
        paid = advantages(reward.reshape(flat))
        of_truth = split(reward.reshape(flat), drawn[..., 2].reshape(flat), "group")[1]
        by_part = [
            group_cov(part, drawn.reshape(*flat, kinds)).reshape(runs, PROMPTS, kinds).mean(axis=1)
            for part in (paid, of_truth)
        ]
        inside = z[members] - (p_R_A @ z)[:, None, None]
        gradient = (paid.reshape(runs, PROMPTS, GROUP, 1) * inside).mean(axis=(1, 2))
        norm = np.linalg.norm(gradient, axis=1)
        by_step.append((drawn.mean(axis=(1, 2)), *by_part, norm, drawn.std(axis=(1, 2))))
        if optimiser.clip:
            gradient *= np.minimum(1.0, optimiser.clip / np.maximum(norm, EPS))[:, None]
        if optimiser.adam:
            moment = BETA1 * moment + (1 - BETA1) * gradient
            square = BETA2 * square + (1 - BETA2) * gradient**2
            root = np.sqrt(square / (1 - BETA2**step)) + EPS
            gradient = moment / (1 - BETA1**step) / root
        weights = weights + optimiser.rate * gradient
    level, push, truth, norm, sd = (np.stack(part, axis=1) for part in zip(*by_step, strict=True))
    return Paths(level=level, push=push, of_truth=truth, gradient=norm, sd=sd[:, 0])


def trajectories(paths: Paths, optimiser: Optimiser) -> list[Trajectory]:
    """Runs as the prediction reads them; every run is an arm of its own."""
    return [
        Trajectory(
            cell=f"run-{run}",
            arm=f"arm-{run}",
            feature=name,
            level=paths.level[run, :, k],
            push=paths.push[run, :, k],
            of_truth=paths.of_truth[run, :, k],
            gradient=paths.gradient[run],
            rate=optimiser.rate,
            clip=optimiser.clip,
            sd=float(paths.sd[run, k]),
        )
        for run in range(len(paths.level))
        for k, name in enumerate(NAMES)
    ]


SMALL = np.array([[d, t] for d in (-0.02, 0.0, 0.02, 0.04) for t in (0.0, 0.05)])
LARGE = np.array([[d, t] for d in (0.0, 0.1, 0.2, 0.4) for t in (0.0, 0.2)])
"""Doses on length and tone of eight runs."""


def coverage(
    rng: np.random.Generator, count: int, doses: np.ndarray, optimiser: Optimiser
) -> Trials:
    """Length's shift of the run with the largest doses, from the step size of the others, less
    what it was. What theory leaves out of the others' shifts is in the interval too, which is
    therefore on the wide side; the bias says where theory stops."""
    paths = train(rng, np.tile(doses, (count, 1)), optimiser)
    estimates = []
    for number in range(count):
        part = slice(number * len(doses), (number + 1) * len(doses))
        of_study = Paths(**{name: values[part] for name, values in vars(paths).items()})
        predictions = predict(
            trajectories(of_study, optimiser), "adam" if optimiser.adam else "plain"
        )
        (row,) = (
            r for r in predictions if r.feature == "length" and r.cell == f"run-{len(doses) - 1}"
        )
        observed = shift(of_study.level[-1, :, 0])
        each = row.predicted
        estimates.append(Estimate(each.value - observed, each.low - observed, each.high - observed))
    return trials(0.0, estimates, at_least=True)


def policies(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Small doses, whose shifts are nearly the pushes, and large ones, under which the variance
    grows with the mean."""
    count = max(FEWEST, count // 5)
    plain, adam = Optimiser(0.1), Optimiser(0.01, adam=True)
    return {
        "trained policy, plain steps": coverage(rng, count, SMALL, plain),
        "trained policy, clipped": coverage(rng, count, SMALL, Optimiser(0.1, clip=0.15)),
        "trained policy, Adam": coverage(rng, count, SMALL, adam),
        "trained policy, large doses": coverage(rng, count, LARGE, plain),
        "trained policy, large doses, Adam": coverage(rng, count, LARGE, Optimiser(0.02, True)),
    }


CHECKS = (policies,)
