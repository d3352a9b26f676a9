"""Two runs of one seed on the same rows: their shifts, and how far sampling moves the difference.

Arms of a seed share prompts. Where one run lost the records or the scores of a row, the other is
compared without that row too, so that no difference of rows is taken for one of judges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.statistics.estimate import known_mean, ratio, ratio_se

SAME_ROWS = 0.5
"""Share of the groups of one end, of the run that has fewer, from which two runs of a seed have
answered the same rows there."""


@dataclass(frozen=True)
class Tail:
    """The groups of one end of a run: step and prompt of each (P,), and the sum of a metric over
    its rollouts that have it, with their number, (P, 2). Where the same prompts are asked at both
    ends there is one for both, and the metric is the difference."""

    step_P: np.ndarray
    prompt_P: np.ndarray | None
    sums_P_2: np.ndarray
    told_P: np.ndarray | None = None
    """Groups that the metric rests on, where a reference told the truth of some; None for all."""

    @property
    def free(self) -> int:
        """Degrees of freedom of the variance of its mean over groups."""
        groups_P = self.known_P if self.told_P is None else self.known_P & self.told_P
        return max(int(groups_P.sum()) - 1, 0)

    @property
    def known_P(self) -> np.ndarray:
        """Which groups have a value."""
        return self.sums_P_2[:, 1] > 0

    def of(self, here_P: np.ndarray) -> Tail:
        """The groups at these places."""
        prompts = None if self.prompt_P is None else self.prompt_P[here_P]
        told = None if self.told_P is None else self.told_P[here_P]
        return Tail(self.step_P[here_P], prompts, self.sums_P_2[here_P], told)


def paired_shifts(treated: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
    """The shifts of two arms on the same rows: rows of `run_shifts` of one metric in each, indexed
    by seed.

    One row per seed that both have: ``treated`` and ``base``, the shifts, and ``within``, the
    sampling variance of their difference. Groups of one step and prompt are paired, so that what
    both runs share costs nothing: the prompts, and the rollouts of a first step. A group that has a
    value in one run alone, such as a row whose records are lost, is left out of both. Where the
    prompts of an end are not known, or fewer than `SAME_ROWS` of them are shared, its groups are
    independent, and each run has its own. Runs of a seed that an arm has several of are averaged,
    and their variance is not known.
    """
    ours, theirs = _runs_of(treated), _runs_of(base)
    rows = {}
    for seed in sorted(ours.keys() & theirs.keys()):
        pair = ours[seed], theirs[seed]
        if all(len(runs) == 1 for runs in pair):
            rows[seed] = _pair(*ours[seed], *theirs[seed])
        else:
            means = (known_mean(np.array([run.shift for run in runs])) for runs in pair)
            rows[seed] = (*means, math.nan)
    columns = ["treated", "base", "within"]
    table = np.array(list(rows.values()), dtype=float).reshape(-1, len(columns))
    return pd.DataFrame(table, list(rows), columns)


class _Moved(NamedTuple):
    """One run: its shift, and the groups of its ends."""

    shift: float
    tails: list[Tail]


def _runs_of(runs: pd.DataFrame) -> dict[int, list[_Moved]]:
    """Seed -> its runs."""
    by_seed: dict[int, list[_Moved]] = {}
    columns = runs.index.tolist(), runs["shift"].tolist(), runs["tails"].tolist()
    for seed, shift, tails in zip(*columns, strict=True):
        by_seed.setdefault(seed, []).append(_Moved(shift, tails))
    return by_seed


def _pair(ours: _Moved, theirs: _Moved) -> tuple[float, float, float]:
    """Shift of two runs of a seed on the rows that both answered, and the sampling variance of the
    difference."""
    shifts, variance, kept = [ours.shift, theirs.shift], 0.0, []
    for tails in zip(ours.tails, theirs.tails, strict=True):
        shared = _shared(*tails)
        if shared is None:
            kept.append(tails)
            variance += sum(ratio_se(tail.sums_P_2[tail.known_P]) ** 2 for tail in tails)
        else:
            kept.append(shared)
            difference = ratio(shared[0].sums_P_2) - ratio(shared[1].sums_P_2)
            variance += ratio_se(np.stack([difference, np.ones(len(difference))], axis=1)) ** 2
    for place, run in enumerate((ours, theirs)):
        fewer = any(
            pair[place].known_P.sum() < tail.known_P.sum()
            for pair, tail in zip(kept, run.tails, strict=True)
        )
        if fewer and math.isfinite(run.shift):
            means = [_mean_of(pair[place]) for pair in kept]
            shifts[place] = means[0] if len(means) == 1 else means[1] - means[0]
    return shifts[0], shifts[1], variance


def _mean_of(tail: Tail) -> float:
    """Mean over the steps of a tail of the means of their rollouts."""
    _, at = np.unique(tail.step_P, return_inverse=True)
    sums = np.stack([np.bincount(at, column) for column in tail.sums_P_2.T], axis=1)
    return known_mean(ratio(sums))


def _shared(ours: Tail, theirs: Tail) -> tuple[Tail, Tail] | None:
    """The groups of one step and prompt that have a value in both tails, in one order; None where
    these are not the same rows."""
    if ours.prompt_P is None or theirs.prompt_P is None:
        return None
    fewer = min(tail.known_P.sum() for tail in (ours, theirs))
    same = np.array_equal(ours.step_P, theirs.step_P)
    if same and np.array_equal(ours.prompt_P, theirs.prompt_P):
        here = there = np.flatnonzero(ours.known_P & theirs.known_P)
    else:
        here, there = _places(ours, theirs)
    if not len(here) or len(here) < SAME_ROWS * fewer:
        return None
    return ours.of(here), theirs.of(there)


def _places(ours: Tail, theirs: Tail) -> tuple[np.ndarray, np.ndarray]:
    """Where the groups that have a value in both tails stand in each."""
    tables = []
    for tail in (ours, theirs):
        groups = pd.DataFrame({"step": tail.step_P, "prompt": tail.prompt_P})
        # a prompt may be drawn twice in a step
        groups["nth"] = groups.groupby(["step", "prompt"]).cumcount()
        groups["at"] = np.arange(len(groups))
        tables.append(groups[tail.known_P])
    both = tables[0].merge(tables[1], on=["step", "prompt", "nth"], suffixes=("", "_other"))
    return both["at"].to_numpy(), both["at_other"].to_numpy()
