"""The self-internalisation gap: how far a policy still needs to be shown the rubric.

After Mahmoud et al. (2605.12474, sec. 3.3): of answers that the policy gave with the rubric in its
prompt, the log-probability per token without it minus the one with it. It is 0 or less on average
(minus a divergence), and rises towards 0 as the policy comes to do unasked what the rubric asks.
No judge is needed: where it stops rising, training has stopped teaching the rubric's content.
"""

from __future__ import annotations

import numpy as np

from analysis.onset.threshold_grid import RADIUS
from analysis.statistics.bootstrap import ratio, ratio_se, step_noise
from analysis.statistics.estimate import LEVEL, NAN, Estimate, around
from analysis.statistics.intervals import student

REPLICATES = 1000
FEWEST_STEPS = 8


def self_gap(
    plain_N: np.ndarray, shown_N: np.ndarray, tokens_N: np.ndarray, prompt_N: np.ndarray
) -> Estimate:
    """Mean gap per token of N answers, with a t interval clustered by prompt.

    Args:
        plain_N: log-probability of each answer under the plain prompt, in nats; NaN is unknown.
        shown_N: under the prompt that shows the rubric, with which it was sampled.
        tokens_N: its length.
        prompt_N: labels of the prompts, whole numbers from 0.
    """
    gaps = (np.asarray(plain_N) - np.asarray(shown_N)) / np.asarray(tokens_N, dtype=float)
    has_gap = np.isfinite(gaps)
    counts = np.bincount(prompt_N[has_gap])
    sums = np.stack([np.bincount(prompt_N[has_gap], gaps[has_gap]), counts], axis=1)[counts > 0]
    prompts = len(sums)
    if not prompts:
        return Estimate(
            NAN, unit="prompt", note="no answer was sampled with the whole rubric shown"
        )
    value = float(ratio(sums.sum(axis=0)))
    if prompts == 1:
        return Estimate(value, n=1, unit="prompt", note="one prompt, no interval")
    return around(value, float(student(prompts - 1)) * ratio_se(sums), prompts, "prompt")


def peak(
    step_P: np.ndarray, sums_P_2: np.ndarray, seed: int = 0, replicates: int = REPLICATES
) -> Estimate:
    """The step at which the gap, a mean over five steps, is largest.

    The interval holds the middle 95 % of the steps at which it is largest when the groups of each
    step are drawn anew; NaN for fewer than eight steps.

    Args:
        step_P: the step of every group.
        sums_P_2: sum of the gaps over a group's answers, and how many they are.
    """
    has_gap = sums_P_2[:, 1] > 0
    rng = np.random.default_rng(seed)
    steps, means, errors, noise = step_noise(step_P[has_gap], sums_P_2[has_gap], replicates, rng)
    if len(steps) < FEWEST_STEPS:
        few = f"{len(steps)} steps with a gap, at least {FEWEST_STEPS} are needed"
        return Estimate(NAN, unit="step", note=few)
    near = abs(np.subtract.outer(np.arange(len(steps)), np.arange(len(steps)))) <= RADIUS
    smooth = near / near.sum(axis=1, keepdims=True)
    best = steps[int((smooth @ means).argmax())]
    if not np.isfinite(errors).all():
        return Estimate(float(best), n=len(steps), unit="step", note="steps of one group")
    drawn = ((means + noise) @ smooth.T).argmax(axis=1)
    low, high = np.quantile(steps[drawn], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    return Estimate(float(best), float(low), float(high), len(steps), "step")
