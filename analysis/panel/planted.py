"""Judges whose errors have a planted correlation, and of whom some pay for length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.panel.estimate import of_run
from analysis.planted.trials import replicated
from analysis.records.runs import Run
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import mean_interval

TRUTH_SD, NOISE_SD, PAID = 0.3, 0.2, 0.2
STEPS, GROUPS, MEMBERS = 4, 32, 8
RUNS = 3


def planted(
    rng: np.random.Generator,
    correlation: float = 0.0,
    paid: Sequence[float] = (PAID, 0.0, 0.0),
    steps: int = STEPS,
    groups: int = GROUPS,
    seed: int = 0,
) -> Run:
    """A run under judge a, whom b, c, ... looked at: scores are truth + noise + what each is
    ``paid`` per SD of length, their noises have the ``correlation``. Every prompt comes in every
    step, and advantages are not divided."""
    shape = (steps * groups, MEMBERS)
    truth = rng.normal(0.5, TRUTH_SD, shape)
    features = rng.standard_normal((*shape, 2))
    shared = rng.standard_normal(shape)
    scores = {}
    for judge, dose in zip("abcdefgh", paid, strict=False):
        own = rng.standard_normal(shape)
        noise = NOISE_SD * (correlation**0.5 * shared + (1 - correlation) ** 0.5 * own)
        scores[judge] = truth + noise + dose * features[..., 0]
    acting = scores.pop("a")
    return Run(
        cell=f"plain-{seed}",
        arm="plain",
        seed=seed,
        done=True,
        step_P=np.repeat(np.arange(1, steps + 1), groups),
        reward=acting,
        advantage=acting,
        truth=truth,
        judge=acting,
        features=features,
        names=("length", "hedges"),
        shadows=scores,
        scale="none",
        config={"judge.name": "a"},
        identity={"seed": seed},
        prompt_P=np.tile(np.arange(groups), steps).astype(str),
    )


def share(bias: float, noise_variance: float) -> float:
    """Bias share of undivided advantages under a score of slope 1 on the truth."""
    return bias**2 / (TRUTH_SD**2 + bias**2 + noise_variance)


def mean_of(count: int, correlation: float) -> tuple[float, float]:
    """Votes and bias share of the mean of a and ``count`` - 1 judges that pay for nothing."""
    # of a's error a part is bias, so that it has less in common with the others'
    with_a = correlation * NOISE_SD / (NOISE_SD**2 + PAID**2) ** 0.5
    others = (count - 1) * (count - 2) * correlation
    votes = count**2 / (count + 2 * (count - 1) * with_a + others)
    noise = NOISE_SD**2 * (1 + (count - 1) * correlation) / count
    return votes, share(PAID / count, noise)


CORRELATION = 0.5
_VOTES, _LEFT = mean_of(2, CORRELATION)
_FALL = share(PAID, NOISE_SD**2) - _LEFT


@replicated({"panel of two, votes": _VOTES, "panel of two, fall of the bias share": _FALL})
def panel_of_two(rng: np.random.Generator, number: int) -> list[Estimate]:
    """Votes and fall of the bias share, t over runs."""
    judges = ("a", "b")
    votes, falls = [], []
    for _ in range(RUNS):
        panels, alone = of_run(planted(rng, CORRELATION, paid=(PAID, 0.0)), hows=("mean",))
        votes.append(panels[judges, "mean"].votes)
        falls.append(alone - panels[judges, "mean"].bias_share)
    return [mean_interval(votes), mean_interval(falls)]


CHECKS = (panel_of_two,)
