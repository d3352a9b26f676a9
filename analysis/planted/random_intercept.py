"""A random-intercept model from sums per cluster: statsmodels' estimates, without its matrices.

y = X b + u_cluster + e. Given the ratio l of the two variances, everything is a sum over clusters,
because (I + l 1 1')^-1 = (I - 1 1' / n) + 1 1' / n / (1 + l n): what varies inside a cluster counts
in full, and its mean by n / (1 + l n). So the likelihood is a function of one number, and an
evaluation takes no row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize

from analysis.statistics.estimate import Estimate, around
from analysis.statistics.fixed_effects import grouped, independent, split, varying
from analysis.statistics.proportions import NORMAL

DISTINCT = 1e-7
"""Smallest share of a column's length that no earlier column has, as in R's lm."""
EXACT = 1e-26
"""Squares left over that are a smaller share of the outcome's are what rounding leaves."""


@dataclass(frozen=True)
class RandomIntercept:
    """Fixed effects with their standard errors, shapes (K,), and the two variances.

    Attributes:
        between: variance of the intercepts; 0 where the likelihood has its peak at the edge.
        within: variance of the residuals.
        loglike: restricted (or full) log-likelihood at the peak.
        note: why not to trust it; empty where nothing is wrong.
    """

    coef: np.ndarray
    se: np.ndarray
    between: float
    within: float
    loglike: float
    rows: int
    clusters: int
    note: str = ""

    def estimate(self, k: int) -> Estimate:
        """Coefficient ``k`` with its 95 % Wald interval."""
        return around(self.coef[k], NORMAL * self.se[k], self.clusters, "cluster", self.note)


def random_intercept(
    y_N: np.ndarray, x_N_K: np.ndarray, cluster_N: np.ndarray, *, reml: bool = True
) -> RandomIntercept:
    """Fit by (restricted) maximum likelihood; rows with a NaN in y or X are left out.

    Args:
        y_N: outcomes, shape (N,).
        x_N_K: fixed effects, shape (N, K), a column of ones included where an intercept is wanted.
        cluster_N: labels, shape (N,).

    Raises:
        ValueError: fewer than two clusters, columns that depend on each other, or no row left over.

    Source: Laird and Ware 1982; the profile in one variance ratio as in Bates et al. 2015, sec. 3.
    """
    columns = [np.asarray(y_N, dtype=float), *np.asarray(x_N_K, dtype=float).T]
    labels = np.asarray(cluster_N)
    known = np.logical_and.reduce([np.isfinite(column) for column in columns])
    if not known.all():
        columns, labels = [column[known] for column in columns], labels[known]
    by = grouped(labels)
    counts = by.counts_P
    n, k, groups = len(labels), len(columns) - 1, len(counts)
    means, inside = split(columns, by)
    axes = _axes(inside[1:, 1:], means[1:], counts)
    if groups < 2 or n <= k or axes is None:
        raise ValueError(
            f"{groups} clusters, {n} rows and {k} columns: a random intercept takes two clusters, "
            "more rows than columns, and columns that do not depend on each other"
        )
    # in columns at right angles nothing is lost to their scales or to how far from 0 they lie
    mean_y, mean_x = means[0], axes.T @ means[1:]
    xx, xy, yy = axes.T @ inside[1:, 1:] @ axes, axes.T @ inside[1:, 0], inside[0, 0]
    free = n - k if reml else n
    volume = 2 * float(np.linalg.slogdet(axes)[1])

    def solved(ratio: float) -> tuple[np.ndarray, np.ndarray, float, float]:
        """(X'V^-1 X, coefficients, residual variance, minus twice the log-likelihood)."""
        weight = counts / (1 + ratio * counts)
        weighted = mean_x * weight
        inner = xx + weighted @ mean_x.T
        coef = np.linalg.solve(inner, xy + weighted @ mean_y)
        rss = yy - 2 * coef @ xy + coef @ xx @ coef + weight @ (mean_y - coef @ mean_x) ** 2
        rss = max(float(rss), 1e-300)
        value = free * np.log(2 * np.pi * rss / free) + free + float(np.log1p(ratio * counts).sum())
        if reml:
            value += float(np.linalg.slogdet(inner)[1]) - volume
        return inner, coef, rss / free, float(value)

    peak = optimize.minimize_scalar(
        lambda log_ratio: solved(np.exp(log_ratio))[3], bounds=(-18, 12), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    ratio = float(np.exp(peak.x))
    # from the rows: the sums know squares left over to the digits of the outcome's squares alone
    left = columns[0] - np.stack(columns[1:], axis=1) @ (axes @ solved(0.0)[1])
    none_left = left @ left <= EXACT * (yy + counts @ mean_y**2)
    edge = none_left or solved(0.0)[3] <= solved(ratio)[3]
    ratio = 0.0 if edge else ratio
    inner, turned, within, value = solved(ratio)
    se = np.sqrt(np.diag(axes @ np.linalg.inv(inner) @ axes.T) * within)
    notes = ["no variance between clusters is seen"] if edge else []
    if none_left:
        notes = ["the columns explain the outcome to the last digit: its variances are rounding"]
    if groups < 30:
        notes.append(f"{groups} clusters: Wald intervals are too narrow, take run-level means")
    variances = (ratio * within, within)
    return RandomIntercept(
        axes @ turned, se, *variances, -value / 2, n, groups, note="; ".join(notes)
    )


def _axes(inside_K_K: np.ndarray, means_K_P: np.ndarray, counts_P: np.ndarray) -> np.ndarray | None:
    """A, shape (K, K), with the columns of X A of length 1 and at right angles; None if dependent.

    From the triangle of X, which is that of two short matrices above each other: the triangle of
    what varies inside clusters, and the clusters' means times the root of their rows.
    """
    size = np.sqrt(np.diag(inside_K_K))
    safe = np.where(size > 0, size, 1.0)
    some = np.flatnonzero(varying(size, means_K_P, counts_P)).tolist()
    _, factor = independent(inside_K_K / np.outer(safe, safe), some)
    stacked = np.concatenate([factor.T * size, (means_K_P * np.sqrt(counts_P)).T])
    length = np.sqrt((stacked**2).sum(axis=0))
    if not (length > 0).all():
        return None
    triangle = np.linalg.qr(stacked / length, mode="r")
    if not (np.abs(np.diag(triangle)) > DISTINCT).all():
        return None
    return np.linalg.inv(triangle) / length[:, None]
