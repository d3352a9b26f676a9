"""Slopes of score on truth that differ by row, in NumPy alone.

A judge that is right on easy rows and random on hard ones has no single slope: its gap moves with
the rows in which the truth moves. What is known of a row beforehand is its rollouts of the first
steps. Its slope there is shrunk to what its rate of truth lets expect, by random-effects
meta-regression (DerSimonian and Laird 1986, Controlled Clinical Trials 7; Berkey et al. 1995). A
row that the first steps do not have gets the mean slope of rows, which is not the slope within
groups: that weighs a row by how much its truth varies. docs/onset.md says how it was checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from analysis.records.runs import Run

TINY = 1e-12
FEWEST_FREE = 20
"""Degrees of freedom that a variance between slopes takes."""


@dataclass(frozen=True)
class RowSlopes:
    """How far slopes of R rows lie from the one within groups; the last place is any other row."""

    places: Mapping[object, int]
    """Place of each row of the first steps, by its name."""
    slope_R: np.ndarray
    """(R + 1,)."""
    refits_B_R: np.ndarray
    """The same of groups drawn anew, with what is not known of a slope, (B, R + 1)."""
    rate_R: np.ndarray
    """Rate of truth, shrunk to that of all, from which a row's later truth moves, (R + 1,)."""
    last: int
    """Last of the first steps."""

    def moves(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Place of each group's row, (P,), and how far truths lie from the row's rate, (P, G).

        In the first steps they are taken from the group's own mean: what it owes to chance is in
        their scores too, and passes with them.
        """
        place_P = np.array([self.places.get(name, -1) for name in row_names(run)], dtype=int)
        known = np.isfinite(run.truth)
        mean_P = np.where(known, run.truth, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        rate_P = np.where(run.step_P <= self.last, mean_P, self.rate_R[place_P])
        return place_P, run.truth - rate_P[:, None]

    def beyond(self, run: Run) -> np.ndarray:
        """What rows' slopes add to the score that the slope within groups expects, (P, G)."""
        place_P, moved_P_G = self.moves(run)
        return self.slope_R[place_P, None] * moved_P_G

    def deviations(self, run: Run, counted_P_G: np.ndarray) -> np.ndarray:
        """How far refits move the mean of `beyond` in each step, shape (B, T), over the rollouts
        that count; a step without one is left out."""
        here = counted_P_G.any(axis=1)
        place_P, moved_P_G = self.moves(run)
        steps, at = np.unique(run.step_P[here], return_inverse=True)
        count_T = np.bincount(at, counted_P_G[here].sum(axis=1))
        moved_P = np.where(counted_P_G, moved_P_G, 0.0)[here].sum(axis=1) / count_T[at]
        away_B_R = self.refits_B_R - self.slope_R
        by_draw = (away_R[place_P[here]] * moved_P for away_R in away_B_R)
        return np.stack([np.bincount(at, moves_P, len(steps)) for moves_P in by_draw])


def row_names(run: Run) -> list[object]:
    """The row of each group, P of them: its prompt, or the group itself where that is unknown."""
    names = [] if run.prompt_P is None else run.prompt_P.tolist()
    return names if len(set(names)) > 1 else list(range(len(run.step_P)))


def without_behaviours(
    score_N: np.ndarray, z_N_K: np.ndarray, truth_N: np.ndarray, row_N: np.ndarray
) -> np.ndarray:
    """Scores less what K behaviours are paid at equal truth in each row, (N,).

    All are less their group's mean; rows count from 0 on.
    """
    xx_R = np.maximum(np.bincount(row_N, truth_N * truth_N), TINY)
    columns = (*z_N_K.T, score_N)
    steep = (np.bincount(row_N, truth_N * column) / xx_R for column in columns)
    *z, score = (
        column - truth_N * slope_R[row_N] for column, slope_R in zip(columns, steep, strict=True)
    )
    if not z:
        return score_N
    return score_N - z_N_K @ np.linalg.lstsq(np.stack(z, axis=1), score, rcond=None)[0]


def own_slopes(
    truth_N: np.ndarray, score_N: np.ndarray, row_N: np.ndarray, groups: int
) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares slope of each row and the inverse of its sampling variance, both (R,); 0 where
    the truth does not vary in the row, and of all rows where slopes leave too little to tell the
    noise from.

    Args:
        truth_N: truths, less their group's mean.
        score_N: scores, less their group's mean and all that is no matter of the row.
        row_N: rows, from 0 on.
        groups: how many means were subtracted.
    """
    xx_R, xy_R, yy_R = (
        np.bincount(row_N, values)
        for values in (truth_N * truth_N, truth_N * score_N, score_N * score_N)
    )
    varies = xx_R > TINY
    own_R = np.divide(xy_R, xx_R, out=np.zeros(len(xx_R)), where=varies)
    free = len(row_N) - groups - int(varies.sum())
    if free < FEWEST_FREE:
        return own_R, np.zeros(len(xx_R))
    noise = max(float((yy_R - own_R * xy_R).sum()) / free, TINY)
    return own_R, np.where(varies, xx_R, 0.0) / noise


def shrunken(
    own_R: np.ndarray, precision_R: np.ndarray, rate_R: np.ndarray, weights_B_R: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Slopes of rows, less the one within groups, by draw of groups, (B, R + 1), and what is not
    known of them, SDs (R + 1,). The last place is a row of which nothing is known.

    Args:
        own_R, precision_R: as `own_slopes` gives them.
        rate_R: mean truth.
        weights_B_R: how often each row was drawn; once each in the first draw.
    """
    drawn_B_R = weights_B_R * precision_R
    within_B = drawn_B_R @ own_R / np.maximum(drawn_B_R.sum(axis=1), TINY)
    between = _between(own_R - within_B[0], precision_R, 1)
    variance_R = np.full(len(own_R), np.inf)
    np.divide(1.0, precision_R, out=variance_R, where=precision_R > 0)
    drawn_B_R = weights_B_R / (between + variance_R)
    total_B = np.maximum(drawn_B_R.sum(axis=1), TINY)
    mean_B = drawn_B_R @ own_R / total_B
    away_B_R = rate_R - (drawn_B_R @ rate_R / total_B)[:, None]
    squares_B = np.maximum((drawn_B_R * away_B_R**2).sum(axis=1), TINY)
    steeper_B = (drawn_B_R * away_B_R) @ own_R / squares_B
    # so much of it as is not its sampling error
    kept = max(0.0, 1 - 1 / max(steeper_B[0] ** 2 * squares_B[0], TINY))
    by_rate_B_R = mean_B[:, None] + kept * steeper_B[:, None] * away_B_R
    left = _between(own_R - by_rate_B_R[0], precision_R, 2)
    own_share_R = left / (left + variance_R) if left > 0 else np.zeros(len(own_R))
    slopes_B_R = (1 - own_share_R) * by_rate_B_R + own_share_R * own_R
    others_B = (weights_B_R * by_rate_B_R).sum(axis=1) / weights_B_R.sum(axis=1)
    slopes = np.column_stack([slopes_B_R, others_B]) - within_B[:, None]
    return slopes, np.sqrt(np.append(left * (1 - own_share_R), between))


def _between(away_R: np.ndarray, precision_R: np.ndarray, fitted: int) -> float:
    """Variance of slopes between rows, by the method of moments."""
    total = float(precision_R.sum())
    room = total - float((precision_R**2).sum()) / max(total, TINY)
    free = int((precision_R > 0).sum()) - fitted
    if free < 1 or room <= 0:
        return 0.0
    return max(0.0, (float(precision_R @ away_R**2) - free) / room)
