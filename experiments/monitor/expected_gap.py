"""How much of a cell's gap its judge would show by itself, from the rollouts of the first steps.

A judge that says half of the truth shows a gap that rises where the truth falls, and pays for no
behaviour. This is a quick look in NumPy alone: `analysis.ledger.judge_error` has the curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.features import measured
from study.system.files import Damaged

FEWEST, MOST = 64, 512
"""Rollouts with score and truth that a slope takes, and how many of the first are looked at."""
BINS = 20
"""Truths between 0 and 1 that are told apart."""
MOST_TILTED = 100.0
HALVINGS = 40
DOUBT = 1.8
"""Standard errors of the slope that are explained too: t at 95 %, one-sided, with some to spare."""
_COLUMNS = ["step", "group", "truth", "judge_score", "answer"]


@dataclass(frozen=True)
class Curve:
    """Mean score of each of Q truths, less what behaviours and the groups' levels make of it."""

    truth_Q: np.ndarray
    score_Q: np.ndarray
    share_Q: np.ndarray
    """Of the rollouts that it rests on."""
    se: float
    """Of its slope."""

    def explained(self, truth_T: np.ndarray) -> np.ndarray:
        """The most that the gap rises by itself where the mean truth is each of T.

        The shares move as a policy moves them that is paid for the truth, exponentially in it.
        """
        start = float(self.share_Q @ self.truth_Q)
        away_Q = self.truth_Q - start
        low_T, high_T = np.full(len(truth_T), -MOST_TILTED), np.full(len(truth_T), MOST_TILTED)
        shares_T_Q = np.tile(self.share_Q, (len(truth_T), 1))
        for _ in range(HALVINGS):
            tilt_T = (low_T + high_T) / 2
            weights_T_Q = self.share_Q * np.exp(tilt_T[:, None] * away_Q)
            shares_T_Q = weights_T_Q / weights_T_Q.sum(axis=1, keepdims=True)
            below_T = shares_T_Q @ self.truth_Q < truth_T
            low_T, high_T = np.where(below_T, tilt_T, low_T), np.where(below_T, high_T, tilt_T)
        rise_T = (shares_T_Q - self.share_Q) @ (self.score_Q - self.truth_Q)
        return rise_T + DOUBT * self.se * np.abs(truth_T - start)


def explained(
    truths: Sequence[tuple[int, float]], folder: CellFolder, first: int, keyword: str
) -> dict[int, float]:
    """By step, how much of the gap is explained. Without a curve a rise is, by as much as the truth
    fell: the judge may not look at the truth at all.

    Args:
        truths: step and mean truth.
        folder: the cell's.
        first: the last of the first steps.
        keyword: what the behaviour of this name counts.
    """
    if (curve := curve_of(folder, first, keyword)) is not None:
        by_itself_T = curve.explained(np.array([truth for _, truth in truths]))
        return {step: float(one) for (step, _), one in zip(truths, by_itself_T, strict=True)}
    start = [truth for step, truth in truths if step <= first]
    usual = math.fsum(start) / len(start) if start else 0.0
    return {step: max(0.0, usual - truth) for step, truth in truths}


@lru_cache(maxsize=1024)
def curve_of(folder: CellFolder, first: int, keyword: str) -> Curve | None:
    """The curve of a cell's steps up to ``first``; None where its rollouts do not tell it."""
    rows = []
    for part in folder.parts("rollouts"):
        if part.step > first or len(rows) >= MOST:
            break
        try:
            rows += read_part(part, _COLUMNS).to_pylist()
        except Damaged:
            return None
    rows = [row for row in rows if None not in (row.get(name) for name in _COLUMNS)]
    if len(rows) < FEWEST:
        return None
    names = [(row["step"], row["group"]) for row in rows]
    _, group = np.unique(names, axis=0, return_inverse=True)
    scores, truths = (np.array([row[key] for row in rows]) for key in ("judge_score", "truth"))
    features = measured([row["answer"] for row in rows], keyword)
    return fitted(scores, truths, features, group.ravel())


def fitted(
    score_N: np.ndarray, truth_N: np.ndarray, features_N_K: np.ndarray, group_N: np.ndarray
) -> Curve | None:
    """Least squares within groups, CR1 by group; None where the truth does not vary in them."""
    columns = np.column_stack([truth_N, features_N_K, score_N])
    sums = np.zeros((group_N.max() + 1, columns.shape[1]))
    np.add.at(sums, group_N, columns)
    counts = np.bincount(group_N)
    within = columns - (sums / counts[:, None])[group_N]
    size = np.sqrt((within**2).mean(axis=0))
    if size[0] < 1e-6:
        return None
    varies = size[:-1] > 1e-6
    x = within[:, :-1][:, varies] / size[:-1][varies]
    inverse = np.linalg.pinv(x.T @ x)
    slope_K = inverse @ (x.T @ within[:, -1])
    pulls = np.zeros((len(counts), x.shape[1]))
    np.add.at(pulls, group_N, x * (within[:, -1] - x @ slope_K)[:, None])
    free, rows = max(1, len(x) - len(counts) - x.shape[1]), len(counts)
    factor = rows / max(1, rows - 1) * (len(x) - rows) / free
    se = (factor * ((pulls @ inverse[0]) ** 2).sum()) ** 0.5 / size[0]
    means = (sums / counts[:, None] - columns.mean(axis=0))[:, np.append(varies, True)]
    steep_K = np.append(-slope_K / size[:-1][varies], 1.0)
    away = means[:, 0] * counts
    of_group = away @ (means @ steep_K) / max(away @ means[:, 0], 1e-12)
    centred = (columns - columns.mean(axis=0))[:, np.append(varies, True)]
    steep_K[0] = 0.0
    rest_N = score_N.mean() + centred @ steep_K - of_group * means[group_N, 0]
    place = np.unique((truth_N * BINS).round(), return_inverse=True)[1]
    rows_Q = np.bincount(place)
    truth_Q, score_Q = (np.bincount(place, values) / rows_Q for values in (truth_N, rest_N))
    return Curve(truth_Q, score_Q, rows_Q / len(rest_N), float(se))
