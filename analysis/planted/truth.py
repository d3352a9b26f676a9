"""Planted truth: policies and judges whose bias is known, to check every estimator against.

`Tabular` is GRPO with a softmax policy over a finite set of answers with known truth and features:
what one step does in expectation is summed over every possible group, not sampled. `Simulated`
draws groups of rollouts and the scores of a judge with planted faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from scipy.special import gammaln, softmax

from analysis.statistics.estimate import FLAT
from study.rewards.advantages import EPS, advantages

MAX_GROUPS = 200_000
"""Most different groups that are enumerated: C(G + A - 1, G) of A answers."""


@dataclass(frozen=True)
class Tabular:
    """One prompt with A possible answers: truth (A,), features (A, K), the policy's logits (A,)."""

    truth: np.ndarray
    features: np.ndarray
    logits: np.ndarray

    def policy(self) -> np.ndarray:
        """Probability of every answer, shape (A,)."""
        return softmax(self.logits)

    def behaviour(self) -> np.ndarray:
        """Expected features under the policy, shape (K,)."""
        return self.policy() @ self.features

    def covariance(self, reward: np.ndarray) -> np.ndarray:
        """Cov(reward, feature) under the policy, shape (K,): the push without sd division."""
        p = self.policy()
        return (p * (reward - p @ reward)) @ (self.features - p @ self.features)

    def sample(self, rng: np.random.Generator, prompts: int, group: int) -> np.ndarray:
        """Answers of ``prompts`` groups, shape (P, G), as indices."""
        return rng.choice(len(self.logits), size=(prompts, group), p=self.policy())

    def expected_cov(
        self, reward: np.ndarray, group: int, scale: str = "group", part: np.ndarray | None = None
    ) -> np.ndarray:
        """Exact E Cov(advantage, feature) over all groups of ``group`` rollouts, shape (K,). Raises
        ValueError: another scale, or more groups than can be enumerated.

        Args:
            reward: of every answer, shape (A,); its spread is what divides under scale ``group``,
                and nothing under ``none``.
            part: additive part of the reward whose share is wanted; the whole reward by default.
                Under ``group`` it is 0 where the rewards are equal.
        """
        if scale not in ("group", "none"):
            raise ValueError(f"scale is group or none, not {scale!r}")
        counts, weights = self.every_group(group)
        part = reward if part is None else part
        mean_reward = counts @ reward / group
        squares = counts @ reward**2 - group * mean_reward**2
        sd = np.sqrt(np.maximum(squares, 0.0) / (group - 1))
        divisor = np.where(sd > FLAT, sd + EPS, np.inf) if scale == "group" else np.ones_like(sd)
        products = counts @ (part[:, None] * self.features)
        products -= (counts @ part)[:, None] * (counts @ self.features) / group
        return weights @ (products / (group - 1) / divisor[:, None])

    def step(self, reward: np.ndarray, group: int, rate: float, scale: str = "group") -> Tabular:
        """The policy after one expected on-policy GRPO step: logits + rate * E[A grad log pi]."""
        counts, weights = self.every_group(group)
        answers = np.tile(np.arange(len(reward)), len(counts))
        members = np.repeat(answers, counts.ravel().astype(int)).reshape(-1, group)
        pushed = advantages(reward[members], scale) * weights[:, None] / group
        gradient = np.bincount(members.ravel(), pushed.ravel(), len(reward))
        return Tabular(self.truth, self.features, self.logits + rate * gradient)

    def every_group(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """Every multiset of ``group`` answers as counts (C, A), with its probability (C,)."""
        answers = len(self.logits)
        if comb(group + answers - 1, group) > MAX_GROUPS:
            raise ValueError(f"{answers} answers in groups of {group} are too many to enumerate")
        counts = _compositions(group, answers)
        ways = gammaln(group + 1) - gammaln(counts + 1).sum(axis=1)
        return counts, np.exp(ways + counts @ np.log(self.policy()))


@lru_cache(maxsize=8)
def _compositions(total: int, parts: int) -> np.ndarray:
    """Every way to make ``total`` of ``parts`` counts, in the order of the first: (C, parts)."""
    bars = np.array(list(combinations(range(total + parts - 1), parts - 1)), dtype=float)
    ends = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, total + parts - 1)))
    return np.diff(ends, axis=1) - 1


@dataclass(frozen=True)
class Fault:
    """What is planted in a judge. The score is ``scale * verdict + doses . features + offset``.

    The verdict is the truth, or with ``tpr`` and ``fpr`` a yes drawn at these rates; ``prompt_sd``
    moves all answers to a prompt alike; ``noise_sd`` each alone; ``miss`` and ``miss_slope`` give
    the probability of no score, ``miss + miss_slope * first feature`` clipped to [0, 1].
    """

    doses: Mapping[int, float] = field(default_factory=dict)
    tpr: float = 1.0
    fpr: float = 0.0
    scale: float = 1.0
    offset: float = 0.0
    prompt_sd: float = 0.0
    noise_sd: float = 0.0
    miss: float = 0.0
    miss_slope: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """P groups of G rollouts: truth and judge (P, G), features (P, G, K); no score is NaN."""

    truth: np.ndarray
    features: np.ndarray
    judge: np.ndarray


def simulate(
    rng: np.random.Generator,
    prompts: int,
    fault: Fault,
    *,
    group: int = 8,
    p: float = 0.4,
    features: int = 1,
) -> Simulated:
    """Binary truth with rate ``p``, independent standard normal features, and a faulty judge."""
    truth = (rng.random((prompts, group)) < p).astype(float)
    z = rng.standard_normal((prompts, group, features))
    verdict = truth
    if fault.tpr < 1 or fault.fpr > 0:
        yes = np.where(truth > 0, fault.tpr, fault.fpr)
        verdict = (rng.random(truth.shape) < yes).astype(float)
    judge = fault.scale * verdict + fault.offset
    for feature, dose in fault.doses.items():
        judge = judge + dose * z[..., feature]
    if fault.prompt_sd:
        judge = judge + fault.prompt_sd * rng.standard_normal((prompts, 1))
    if fault.noise_sd:
        judge = judge + fault.noise_sd * rng.standard_normal(truth.shape)
    if fault.miss or fault.miss_slope:
        chance = np.clip(fault.miss + fault.miss_slope * z[..., 0], 0, 1)
        judge = np.where(rng.random(truth.shape) < chance, np.nan, judge)
    return Simulated(truth, z, judge)


def sampled_runs(
    start: Tabular,
    reward: np.ndarray,
    rng: np.random.Generator,
    *,
    runs: int,
    steps: int,
    prompts: int,
    group: int,
    rate: float,
    scale: str = "group",
) -> np.ndarray:
    """Independent GRPO runs from ``start`` with sampled groups, all at once.

    Returns the mean features of the rollouts of every run and step, shape (runs, steps, K), each
    measured before the step's update.
    """
    answers = len(reward)
    logits = np.tile(start.logits, (runs, 1))
    behaviour = np.empty((runs, steps, start.features.shape[1]))
    row = np.arange(runs)[:, None, None]
    for step in range(steps):
        edges = softmax(logits, axis=1).cumsum(axis=1)
        draws = rng.random((runs, prompts, group))
        members = (draws[..., None] > edges[:, None, None, :-1]).sum(axis=-1)
        behaviour[:, step] = start.features[members].mean(axis=(1, 2))
        pushed = advantages(reward[members].reshape(-1, group), scale).ravel()
        total = np.bincount((row * answers + members).ravel(), pushed, runs * answers)
        logits = logits + rate * total.reshape(runs, answers) / (prompts * group)
    return behaviour
