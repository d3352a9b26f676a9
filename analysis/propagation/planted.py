"""Runs of a policy that is trained, and not of a formula: where first-order theory holds and stops.

The policy is a softmax over 120 answers of known length (0 to 29), tone and truth. Its parameters
are shared by all answers, as a network's are: one logit weight for each of the three. It is trained
by GRPO on sampled groups, with plain or Adam steps and a clipped gradient. Lengths are geometric:
a policy that is paid for them grows in mean and in variance at once, and so does the push.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import softmax

from analysis.drift.estimate import difference, run_variances
from analysis.drift.pairs import Tail
from analysis.ledger.transmission import group_cov, split
from analysis.planted.trials import Trials, trials
from analysis.propagation.estimate import Trajectory, predict
from analysis.records.runs import shift, tenths
from analysis.statistics.estimate import Estimate, ratio_se
from analysis.statistics.intervals import Paired
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
    """R runs of T steps: means of the K features, (R, T, K), those of each group, (R, T, P, K),
    pushes of the reward and of the truth, (R, T, K), gradient norms before clipping, (R, T), and
    first SDs, (R, K)."""

    level: np.ndarray
    groups: np.ndarray
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


def train(
    rng: np.random.Generator, dose_R_2: np.ndarray, optimiser: Optimiser, arms: int = 1
) -> Paths:
    """One run per row of doses on length and tone, in score units per SD, all at once. Every
    ``arms`` of them in a row are of one seed, and share their first rollouts."""
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
        shared = arms if step == 1 else 1
        draws = np.repeat(rng.random((runs // shared, PROMPTS * GROUP)), shared, axis=0)
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
        by_group = drawn.mean(axis=2)
        by_step.append((by_group.mean(axis=1), by_group, *by_part, norm, drawn.std(axis=(1, 2))))
        if optimiser.clip:
            gradient *= np.minimum(1.0, optimiser.clip / np.maximum(norm, EPS))[:, None]
        if optimiser.adam:
            moment = BETA1 * moment + (1 - BETA1) * gradient
            square = BETA2 * square + (1 - BETA2) * gradient**2
            root = np.sqrt(square / (1 - BETA2**step)) + EPS
            gradient = moment / (1 - BETA1**step) / root
        weights = weights + optimiser.rate * gradient
    level, groups, push, truth, norm, sd = (
        np.stack(part, axis=1) for part in zip(*by_step, strict=True)
    )
    return Paths(level, groups, push, of_truth=truth, gradient=norm, sd=sd[:, 0])


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


NULL_ARMS, NULL_SEEDS = 3, 3


def null_shifts(rng: np.random.Generator, studies: int, seeds: int) -> list[pd.DataFrame]:
    """Studies of arms that do not differ, ``seeds`` trained runs each: rows as `run_shifts` has
    them. Tone is called confidence, which a study has."""
    runs = studies * seeds * NULL_ARMS
    paths = train(rng, np.zeros((runs, 2)), Optimiser(0.01, adam=True), NULL_ARMS)
    steps, prompts = np.repeat(np.arange(STEPS), PROMPTS), np.tile(np.arange(PROMPTS), STEPS)
    groups = paths.groups.reshape(runs, STEPS * PROMPTS, len(NAMES))
    at = [np.isin(steps, part) for part in tenths(np.arange(STEPS))]
    tables = []
    for study in np.split(np.arange(runs), studies):
        rows = []
        for place, run in enumerate(study):
            axes = {"arm": f"arm-{place % NULL_ARMS}", "seed": place // NULL_ARMS}
            for k, name in enumerate(("length", "confidence", "truth")):
                sums = [
                    np.stack([groups[run, here, k], np.ones(here.sum())], axis=1) for here in at
                ]
                first, last = (float(end[:, 0].mean()) for end in sums)
                rows.append(
                    {**axes, "metric": name, "first": first, "last": last, "shift": last - first}
                    | {"group_var": sum(ratio_se(end) ** 2 for end in sums)}
                    | {
                        "tails": [
                            Tail(steps[h], prompts[h], s) for h, s in zip(at, sums, strict=True)
                        ]
                    }
                )
        tables.append(pd.DataFrame(rows))
    return tables


def null_differences(shifts: pd.DataFrame) -> list[Paired]:
    """Every measure of every arm beside the first, with the intervals of the report."""
    ratios = run_variances(shifts, "arm-0")
    by_seed = shifts.set_index("seed")
    return [
        difference(part, of_metric[of_metric["arm"] == "arm-0"], ratios)
        for _, of_metric in by_seed.groupby("metric")
        for arm, part in of_metric.groupby("arm")
        if arm != "arm-0"
    ]


def nulls(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """One difference of each study of trained arms that do not differ: its interval leaves 0 out in
    at most one of twenty."""
    studies = null_shifts(rng, max(FEWEST, count // 5), NULL_SEEDS)
    pairs = (rng.choice(np.array(null_differences(study), dtype=object)) for study in studies)
    name = f"trained policy, arms that do not differ, {NULL_SEEDS} seeds"
    return {name: trials(0.0, pairs, at_least=True)}


CHECKS = (policies, nulls)
