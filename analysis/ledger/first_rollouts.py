"""The first rollouts of a run as sums over groups, of which any draw of groups makes a calibration.

`analysis.ledger.judge_error` says what is fitted. What resampling takes is linear in these sums, so
that a refit costs what a table of truths costs, however many rollouts there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.ledger.transmission import centred
from analysis.statistics.clipped_line import clipped_mean, fitted, refitted
from analysis.statistics.estimate import FLAT, known_mean

FEWEST_GROUPS = 12
"""Groups that a calibration takes; where the truth varies in fewer, it is fitted over all rollouts
and not within groups."""
BINS = 64
"""Truths that are told apart."""
BACKFITS = 5
"""Turns in which the curve and the groups' levels are fitted to what the other leaves."""


@dataclass(frozen=True)
class Window:
    """Sums over each group of the first steps, of which any draw of groups makes a fit.

    Columns are truth, K features in their SDs, score; Q are the truths told apart.
    """

    inside_P: np.ndarray
    """Products of columns centred in their group, (P, K + 2, K + 2)."""
    between_P: np.ndarray
    """Products of 1 and the group's means, times rollouts, (P, K + 3, K + 3)."""
    binned_P: np.ndarray
    """Of every truth: rollouts, and sums of features, group's mean truth and score; all but the
    first and last less their mean over all: (P, Q, K + 3)."""
    truth_Q: np.ndarray
    pooled: bool
    """Whether the truth varies in too few groups to be fitted within them."""

    @classmethod
    def of(
        cls, y_P_G: np.ndarray, t_P_G: np.ndarray, z_P_G_K: np.ndarray, used_P_G: np.ndarray
    ) -> Window | None:
        """None where the truth does not vary."""
        z = np.where(np.isfinite(z_P_G_K) & used_P_G[..., None], z_P_G_K, np.nan)
        has_value = np.isfinite(z)
        middle = np.array([known_mean(column) for column in np.moveaxis(z, -1, 0)])
        z = np.where(has_value, z - middle, 0.0)
        sd = np.sqrt((z**2).sum(axis=(0, 1)) / np.maximum(has_value.sum(axis=(0, 1)), 1))
        z = z / np.where(sd > FLAT, sd, np.inf)
        columns = np.concatenate([t_P_G[..., None], z, y_P_G[..., None]], axis=-1)
        columns = np.where(used_P_G[..., None], columns, 0.0)
        inside = centred(columns, used_P_G)
        counts = used_P_G.sum(axis=1)
        means = columns.sum(axis=1) / np.maximum(counts, 1)[:, None]
        varies = (abs(inside[..., 0]) > FLAT).any(axis=1).sum()
        pooled = bool(varies < FEWEST_GROUPS)
        t = columns[..., 0][used_P_G]
        if np.ptp(t) < FLAT:
            return None
        if pooled:
            whole = columns - columns[used_P_G].mean(axis=0)
            inside = np.where(used_P_G[..., None], whole, 0.0)
        ones = np.ones((len(means), 1))
        at_means = np.concatenate([ones, means], axis=1)
        between = np.einsum("p,pi,pj->pij", counts, at_means, at_means)
        rounded, place = np.unique(t.round(9), return_inverse=True)
        if len(rounded) > BINS:
            cuts = np.linspace(t.min(), t.max(), BINS + 1)[1:-1]
            _, place = np.unique(np.searchsorted(cuts, t), return_inverse=True)
        in_bin = np.bincount(place)
        truth_Q = np.bincount(place, t) / in_bin
        group = np.broadcast_to(np.arange(len(counts))[:, None], used_P_G.shape)[used_P_G]
        binned = np.zeros((len(counts), len(truth_Q), columns.shape[-1] + 1))
        of_group = means[group, 0] - t.mean()
        rows = [np.ones(len(t)), *columns[used_P_G].T[1:-1], of_group, columns[used_P_G][:, -1]]
        np.add.at(binned, (group, place), np.stack(rows, axis=1))
        inside_P = np.einsum("pgi,pgj->pij", inside, inside)
        return cls(inside_P, between, binned, truth_Q, pooled)

    def fit(
        self, weights_B_P: np.ndarray, luck_B_3: np.ndarray, low: float, high: float
    ) -> np.ndarray:
        """`fitted` for every draw of groups, shape (B, 4)."""
        groups = weights_B_P.shape[1]

        def drawn(sums_P: np.ndarray) -> np.ndarray:
            total = weights_B_P @ sums_P.reshape(groups, -1)
            return total.reshape(-1, *sums_P.shape[1:])

        inside, between, binned = map(drawn, (self.inside_P, self.between_P, self.binned_P))
        count = between[:, 0, 0]
        size = np.sqrt(np.diagonal(inside[0])[:-1] / count[0])
        size = np.where(size > FLAT, size, np.inf)
        unit = inside[:, :-1, :-1] / np.outer(size, size)
        # what truth and behaviours share without a difference is the truth's
        least = np.where(np.arange(len(size)) > 0, 1e-7, 1e-10)
        unit = unit + count[:, None, None] * np.diag(least)
        coef = np.linalg.solve(unit, (inside[:, :-1, -1] / size)[..., None])[..., 0] / size
        means = between[:, 0] / count[:, None]
        with_truth = between[:, 1, 1:] / count[:, None] - means[:, 1:2] * means[:, 1:]
        residual_covariance = with_truth[:, -1] - (coef[:, 1:] * with_truth[:, 1:-1]).sum(axis=1)
        total = inside[:, -1, -1] - (coef * inside[:, :-1, -1]).sum(axis=1)
        sd = np.sqrt(np.maximum(total, 0.0) / np.maximum(count - groups - len(size), 1))
        n_B_Q, sums_B_Q = binned[..., 0], binned[..., -1]
        sums_B_Q = sums_B_Q - (binned[..., 1:-2] * coef[:, None, 1:]).sum(axis=-1)
        of_group = binned[..., -2]
        centre = of_group.sum(axis=1) / count
        moved = (of_group - centre[:, None] * n_B_Q) / count[:, None]
        slope_of_group = residual_covariance - coef[:, 0] * with_truth[:, 0]
        curved = np.isfinite(low) or np.isfinite(high)
        turns = BACKFITS if curved and not self.pooled else 1
        curve = np.empty((len(count), 4))
        for turn in range(turns):
            slope_of_group = np.divide(
                slope_of_group,
                with_truth[:, 0],
                out=np.zeros_like(slope_of_group),
                where=(with_truth[:, 0] > FLAT**2) & (not self.pooled),
            )
            rest = sums_B_Q - slope_of_group[:, None] * of_group
            y_B_Q = np.divide(rest, n_B_Q, out=np.zeros_like(rest), where=n_B_Q > 0)
            if turn in (0, turns - 1):
                curve = fitted(self.truth_Q, n_B_Q, y_B_Q, sd, luck_B_3, low, high)
            else:
                curve = refitted(self.truth_Q, n_B_Q, y_B_Q, curve, low, high)
            level, slope, spread, _ = curve.T[..., None]
            line = level + slope * self.truth_Q
            bent = clipped_mean(line, spread, low, high) - line
            slope_of_group = (
                residual_covariance - curve[:, 1] * with_truth[:, 0] - (bent * moved).sum(axis=1)
            )
        return curve
