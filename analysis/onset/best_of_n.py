"""What choosing by a judge would give without training: the best of n answers, from groups.

Expectations are exact over all subsets of n of a group's rollouts, not simulated: sorted by score,
the best of a subset falls into a block of equal scores with a chance that is a ratio of binomial
coefficients, and each rollout of the block is as likely as any other. The policy that answers with
the best of n is KL = log n - (n - 1) / n nats from the one that answers (Gao, Schulman and Hilton,
arXiv 2210.10760, as for continuous scores; an upper bound where scores are equal: Beirami et al.,
arXiv 2401.01879).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.records.runs import Run, tenths
from analysis.statistics.estimate import NO_ESTIMATE, Estimate
from analysis.statistics.intervals import mean_interval


@dataclass(frozen=True)
class BestOfN:
    """The best of n answers by one judge's score; intervals are 95 % t over prompts."""

    arm: str
    judge: str
    n: int
    kl: float
    """From the policy that answers, in nats per completion."""
    truth: Estimate = NO_ESTIMATE
    score: Estimate = NO_ESTIMATE
    """What the judge itself says of them."""
    gain: Estimate = NO_ESTIMATE
    """Truth beyond that of any one answer to the same prompt."""


def expected_best(score_G: np.ndarray, values_G_V: np.ndarray) -> np.ndarray:
    """Mean of V values of the best of n by score, n = 1 .. M, over all subsets: (M, V).

    Args:
        score_G: of a group's rollouts; of equally scored ones each is the best as often.
        values_G_V: rollouts without a score, or without one of these, are left out; M are left.
    """
    is_complete = np.isfinite(score_G) & np.isfinite(values_G_V).all(axis=1)
    blocks, member, sizes = np.unique(score_G[is_complete], return_inverse=True, return_counts=True)
    sums = np.zeros((len(blocks), values_G_V.shape[1]))
    np.add.at(sums, member, values_G_V[is_complete])
    of_blocks, upto = sums / sizes[:, None], np.cumsum(sizes)
    rollouts = int(is_complete.sum())
    best = np.empty((rollouts, values_G_V.shape[1]))
    for n in range(1, rollouts + 1):
        within = np.array([math.comb(count, n) / math.comb(rollouts, n) for count in [0, *upto]])
        best[n - 1] = np.diff(within) @ of_blocks
    return best


def best_of_n(runs: Sequence[Run]) -> list[BestOfN]:
    """E[truth | best of n by judge] of each arm, n = 1 .. G, by its own judge and by each shadow.

    The groups are those of the first tenth of each run's steps, as yet close to the initial policy.
    A prompt is the mean over its groups, of all runs of the arm, that have n rollouts with score
    and truth. A judge that scored none is left out.
    """
    by_arm: dict[tuple[str, str], dict[int, dict[Any, list[np.ndarray]]]] = {}
    for run in runs:
        start = run.where(np.isin(run.step_P, tenths(np.unique(run.step_P))[0]))
        for judge, scores in _judges(start).items():
            by_n = by_arm.setdefault((run.arm, judge), {})
            for n, prompt, values in _of_groups(start, scores):
                by_n.setdefault(n, {}).setdefault(prompt, []).append(values)
    lines = []
    for (arm, judge), by_n in by_arm.items():
        for n, by_prompt in sorted(by_n.items()):
            truth, score, one = np.array([np.mean(v, axis=0) for v in by_prompt.values()]).T
            intervals = (mean_interval(each.tolist(), "prompt") for each in (truth, score))
            gain = mean_interval((truth - one).tolist(), "prompt")
            lines.append(BestOfN(arm, judge, n, math.log(n) - (n - 1) / n, *intervals, gain))
    return lines


def _judges(run: Run) -> Mapping[str, np.ndarray]:
    """The judge that trained the run, and those that looked on."""
    return {**run.shadows, run.acting: run.judge}


def _of_groups(run: Run, scores_P_G: np.ndarray) -> Iterator[tuple[int, Any, np.ndarray]]:
    """n, the prompt, and truth, score and truth of one answer, (3,), for every n of every group."""
    names = [(run.cell, group) for group in range(len(run.step_P))]
    prompts = names if run.prompt_P is None else run.prompt_P.tolist()
    for prompt, score_G, truth_G in zip(prompts, scores_P_G, run.truth, strict=True):
        best = expected_best(score_G, np.stack([truth_G, score_G], axis=1))
        for n, (truth, score) in enumerate(best, start=1):
            yield n, prompt, np.array([truth, score, best[0, 0]])
