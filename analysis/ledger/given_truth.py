"""What a judge's score does with a behaviour among answers of one truth to one prompt.

A judge may pay for a behaviour in wrong answers and take it off in right ones, as one does whose
noise grows with length and is cut at the ends of its scale. On average it pays nothing, and its
bias share is 0. So the covariance of its error with the behaviour is taken by level of truth. Its
null is: given the row and the truth, the expected score depends on no behaviour. A judge that is
only wrong, in whatever way, on some rows or at some truths has 0 here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.ledger.chance import Measured, by_prompt
from analysis.records.runs import Run
from analysis.statistics.estimate import FLAT

TENTHS = 10
"""Truths of one cell round to the same tenth. What of the truth still varies inside a cell is taken
out by a line."""


@dataclass(frozen=True)
class Levels:
    """Levels of truth, the same for all runs of a study, from the lowest."""

    names: tuple[str, ...]
    cuts: tuple[float, ...]
    """Truths from which on the next level is, one fewer than levels."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Levels:
        """Wrong and right where every truth is 0 or 1, else the thirds of all truths; equal truths
        stand in one level, that of their middle one."""
        truths = [run.truth[np.isfinite(run.truth)] for run in runs]
        values, counts = np.unique(np.concatenate([np.empty(0), *truths]), return_counts=True)
        if np.isin(values, (0.0, 1.0)).all():
            return cls(("wrong", "right"), (0.5,))
        middle = (counts.cumsum() - counts / 2) / counts.sum()
        cuts = tuple(float(values[middle >= share].min(initial=np.inf)) for share in (1 / 3, 2 / 3))
        return cls(("low", "middle", "high"), cuts)

    def at(self, truth: np.ndarray) -> np.ndarray:
        """Place of the level of each truth; that of an unknown one means nothing."""
        return np.searchsorted(self.cuts, truth, side="right")


def given_truth(run: Run, levels: Levels) -> dict[str, Measured]:
    """Level -> covariance of judge - truth with each of K features among answers of one prompt and
    truth, score units x units of the feature; NaN where no two answers tell.

    Pooled over the cells of a level: products of what is left of both in their cell over rollouts
    less cells.
    """
    finite = np.isfinite(run.features)
    measured = finite.any(axis=(0, 1))
    used = np.isfinite(run.judge) & np.isfinite(run.truth)
    used &= (finite | ~measured).all(axis=-1)
    group_N = np.nonzero(used)[0]
    truth_N = run.truth[used]
    tenth_N = np.rint(truth_N * TENTHS).astype(int)
    columns = np.column_stack(
        [run.judge[used] - truth_N, truth_N, np.where(measured, run.features[used], 0.0)]
    )
    level_N = levels.at(truth_N)
    tenth_N -= tenth_N.min(initial=0)
    by_group = (group_N * len(levels.names) + level_N) * (tenth_N.max(initial=0) + 1) + tenth_N
    cell_N = np.unique(by_group, return_inverse=True)[1]
    counts = np.bincount(cell_N)
    within = np.column_stack(
        [column - (np.bincount(cell_N, column) / counts)[cell_N] for column in columns.T]
    )
    return {
        name: _measured(run, within[here], group_N[here], counts[cell_N[here]])
        for name, here in ((name, level_N == place) for place, name in enumerate(levels.names))
    }


def _measured(run: Run, within_N: np.ndarray, group_N: np.ndarray, count_N: np.ndarray) -> Measured:
    """The covariance of one level. Columns are error, truth and K features, centred in their cell;
    ``count_N`` are the rollouts of each one's cell."""
    groups, features = len(run.truth), run.features.shape[-1]
    truth = within_N[:, 1]
    squares = float(truth @ truth)
    if squares > FLAT**2 * max(len(truth), 1):
        within_N = within_N - np.outer(truth, truth @ within_N / squares)
    error, z = within_N[:, 0], within_N[:, 2:]
    products, free = np.zeros((groups, features)), np.zeros(groups)
    np.add.at(products, group_N, error[:, None] * z)
    np.add.at(free, group_N, 1 - 1 / count_N)
    total = free.sum()
    tells = (np.abs(z).max(axis=0, initial=0.0) > FLAT) & (total > 0.5)
    value = np.where(tells, products.sum(axis=0) / max(total, 1.0), np.nan)
    pulls = (products - np.nan_to_num(value) * free[:, None]) / max(total, 1.0)
    return by_prompt(run, value, pulls)
