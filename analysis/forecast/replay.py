"""A training replayed without training it: a judge's pay tilts the policy's own rollouts.

A policy that has begun to follow a judge is taken for the policy before training with other weights
on the same rollouts: w proportional to exp(theta . z) within each prompt, z being behaviours and
truth in standard deviations. Groups are drawn by these weights and paid as the judge pays each
rollout, and theta moves by what GRPO would push::

    d theta_k = step_k E Cov(A, z_k) / rms(A) d tau,    tau = (exposure / that of the fit) ^ growth

The exposure is the sum of the learning rates so far. AdamW is assumed: it divides by the root mean
square of the gradients so far, and rms(A) is that of the advantages, so neither the size of the
reward nor ``scale_rewards`` changes the pace. With ``beta``, A has less beta times the log of the
weights over those at the start, which is what the KL penalty takes.

Most of what a first-order forecast lacks is in the rollouts: a behaviour that becomes frequent
varies more and is paid for more, one that all answers have moves no further, none falls below none,
and behaviours that go together move together. What every judge teaches beside, such as longer
answers where no pay is to be had, is a drift in proportion to the exposure.

The weights cannot show what no rollout shows. `Replay.support` counts, for the typical prompt, the
rollouts that carry the weights: 1 / sum w^2, Kish's effective sample size (Survey Sampling, 1965).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.forecast.start import Start, advantage_push
from analysis.statistics.estimate import FLAT, NAN
from study.config.schema import Trainer

PARTS = 8
"""Steps of a replay, to which a fit belongs: with twice as many the typical shift changes by .006
SD, and the largest of 16 judges, 2.6 SD, by .4."""
DRAWS = 4
"""Groups that are drawn of each prompt in each part."""
BOUND = 4.0
"""SDs to which a rollout's distance is cut in weights: one odd answer must not carry a prompt."""


@dataclass(frozen=True)
class Pay:
    """What one training would pay for the rollouts of a `Start`.

    Attributes:
        rewards: of each rollout, shape (P, M); NaN is a missing one.
        trainer: its group size, scaling, steps and schedule of learning rates.
    """

    rewards: np.ndarray
    trainer: Trainer

    @property
    def differs(self) -> bool:
        """Whether any prompt has two rewards that differ; without, nothing is taught."""
        known = np.where(np.isfinite(self.rewards), self.rewards, NAN)
        least, most = np.fmin.reduce(known, axis=1), np.fmax.reduce(known, axis=1)
        return bool((most > least).any())

    @property
    def group_size(self) -> int:
        """Of the training, or the rollouts of a prompt that has fewer."""
        return min(self.trainer.group_size, self.rewards.shape[1])


@dataclass(frozen=True)
class Follows:
    """How a policy follows what it is paid for.

    Attributes:
        step: of behaviours and truth, shape (K1,), above 0.
        growth: exponent of the exposure.
        drift: shift under every judge at ``exposure``, in SDs, shape (K1,).
        exposure: mean sum of the learning rates of the runs that it was fitted on.
    """

    step: np.ndarray
    growth: float
    drift: np.ndarray
    exposure: float


@dataclass(frozen=True)
class Replay:
    """What a replay shows at `PARTS` + 1 equal shares of the exposure.

    Attributes:
        shift: of behaviours and truth since the start, in SDs, shape (PARTS + 1, K1).
        support: rollouts that carry the weights, the median over prompts, shape (PARTS + 1,).
    """

    shift: np.ndarray
    support: np.ndarray


def replay(start: Start, pay: Pay, follows: Follows) -> Replay:
    """The whole training, from the rollouts before it. The same random numbers draw every one."""
    known = np.isfinite(start.z)
    bounded = np.clip(start.z, -BOUND, BOUND)
    values, z = np.nan_to_num(start.z), np.nan_to_num(bounded)
    prompts, size, count = z.shape
    values_N, known_N = values.reshape(-1, count), known.reshape(-1, count).astype(float)
    rng = np.random.default_rng(0)
    share = exposure(pay.trainer) / follows.exposure
    tau = (share * np.linspace(0, 1, PARTS + 1)) ** follows.growth
    theta, means, support, squares = np.zeros(count), [], [], []
    at_P = np.arange(prompts)[:, None]
    for part in range(PARTS + 1):
        logits = z @ theta
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        total, of_known = weights.ravel() @ values_N, weights.ravel() @ known_N
        means.append(np.divide(total, of_known, out=np.zeros(count), where=of_known > 0))
        support.append(np.median(1 / (weights**2).sum(axis=1)))
        if part < PARTS:
            uniform = at_P + rng.random((prompts, DRAWS * pay.group_size))
            reached = np.searchsorted((at_P + np.cumsum(weights, axis=1)).ravel(), uniform)
            drawn = np.minimum(reached - size * at_P, size - 1)
            pushed, square = _push(bounded, pay, drawn, pay.trainer.beta * logits)
            squares.append(square)
            pace = (tau[part + 1] - tau[part]) / max(np.mean(squares) ** 0.5, FLAT)
            theta = theta + follows.step * pushed * pace
    return Replay(np.array(means) - means[0], np.array(support))


def _push(
    z: np.ndarray, pay: Pay, drawn: np.ndarray, penalty_P_M: np.ndarray
) -> tuple[np.ndarray, float]:
    """E Cov(A, z) over groups of drawn rollouts, shape (K1,), 0 where it is unknown; and E A^2."""
    at_P = np.arange(len(z))[:, None]
    rewards = pay.rewards[at_P, drawn].reshape(-1, pay.group_size)
    members = z[at_P, drawn].reshape(-1, pay.group_size, z.shape[-1])
    penalty = penalty_P_M[at_P, drawn].reshape(-1, pay.group_size)
    return advantage_push(members, rewards, pay.trainer.scale_rewards, penalty)


def exposure(trainer: Trainer) -> float:
    """Sum of the learning rates of a training."""
    return trainer.learning_rate * trainer.steps * float(_sum_of_rates(trainer, np.ones(1))[0])


def exposed(trainer: Trainer) -> np.ndarray:
    """Share of the exposure that the rollouts of each step have behind them, shape (T,)."""
    before_T = np.arange(trainer.steps) / trainer.steps
    return _sum_of_rates(trainer, before_T) / _sum_of_rates(trainer, np.ones(1))


def _sum_of_rates(trainer: Trainer, share_T: np.ndarray) -> np.ndarray:
    """Integral of the learning rate over a share of the steps, over the first rate; restarts,
    warm-ups and other powers are taken for the schedule that they are closest to."""
    if trainer.lr_scheduler in ("linear", "polynomial"):
        return share_T - share_T**2 / 2
    if trainer.lr_scheduler in ("cosine", "cosine_with_restarts"):
        return share_T / 2 + np.sin(np.pi * share_T) / (2 * np.pi)
    return share_T
