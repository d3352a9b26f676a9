"""Least squares within groups, at the speed of a few passes over the rows.

Every column is split into what varies inside its group and the group's mean; the rows are read for
that once, and what follows needs products of K columns. `analysis.ledger.transmission` regresses
inside groups of rollouts, `analysis.workflow.run` too, and `analysis.external.preference` inside
items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.statistics.intervals import student

APART = 1e-5
"""A column of which a smaller share of the length is its own is a combination of earlier ones."""
PART_OF = 1e-3
"""Weight, of columns of length 1, from which a column has a part in a combination."""
ROUNDING = 1e-10
"""A column that varies in its groups by less than this share of its size does so by rounding."""
BLOCK = 8192
"""Rows centred and multiplied at a time: they stay in the cache, and a dot takes no threads."""


@dataclass(frozen=True)
class Within:
    """A regression inside groups on K columns, NaN where a column was dropped.

    Attributes:
        coef_K: slopes.
        se_K: cluster-robust (CR1), factor C/(C-1) * (N-1)/(N-K) over the K columns kept. The
            absorbed means are nested in the C clusters and not counted (Cameron and Miller 2015,
            sec. III.B). NaN with one cluster.
        unique_K: share of the outcome's variance in groups that no other column explains.
        r2: share that all explain; NaN where the outcome does not vary inside any group.
        n, groups: rows and groups used, those with a single row left out.
        kept: columns that vary inside groups and are no combination of earlier ones.
        free: n - groups - columns kept; nothing is estimated where it is 0 or less.
        clusters: C, the groups themselves unless others were named.
        entangled: kept columns of which a dropped one that varies is a combination: their slopes
            stand for both, and for neither alone.
    """

    coef_K: np.ndarray
    se_K: np.ndarray
    unique_K: np.ndarray
    r2: float
    n: int
    groups: int
    kept: tuple[int, ...]
    free: int
    clusters: int
    entangled: tuple[int, ...] = ()

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """95 % ends of every coefficient, each (K,): t with clusters - 1 degrees of freedom."""
        half = student(max(self.clusters - 1, 1)) * self.se_K
        return self.coef_K - half, self.coef_K + half


def fixed_effects(
    y_N: np.ndarray,
    x_N_K: np.ndarray,
    groups_N: np.ndarray,
    *,
    flat: float = 0.0,
    clusters_N: np.ndarray | None = None,
) -> Within:
    """Slopes of y on x with a constant per group, and standard errors clustered by it or by more.
    Raises ValueError: a value is NaN or infinite: the caller says what a missing one means.

    Args:
        y_N: outcomes, shape (N,).
        x_N_K: columns, shape (N, K); a constant among them is dropped.
        groups_N: labels, shape (N,); integers of a narrow range are fastest.
        flat: a column whose root mean square inside groups is at most this counts as constant.
        clusters_N: labels of what errors are shared in, shape (N,), each made of whole groups; the
            groups where it is None.
    """
    x = np.asarray(x_N_K, dtype=float)
    by = grouped(np.asarray(groups_N))
    centred = np.empty((x.shape[1] + 1, len(x)))
    with np.errstate(invalid="ignore", over="ignore"):  # told below, in words
        means, gram = split([np.asarray(y_N, dtype=float), *x.T], by, centred)
    if not np.isfinite(gram).all():
        raise ValueError("a value to regress within groups is NaN or infinite")
    whole = by if clusters_N is None else grouped(np.asarray(clusters_N))
    full = by.counts_P > 1  # a row alone in its group is centred to 0 and adds nothing to a product
    n, groups = int(by.counts_P[full].sum()), int(full.sum())
    clusters = groups if whole is by else len(np.unique(whole.codes_N[full[by.codes_N]]))
    size = np.sqrt(np.diag(gram))
    varies = varying(size, means, by.counts_P) & (size > flat * n**0.5)
    safe = np.where(size[1:] > 0, size[1:], 1.0)
    unit = gram[1:, 1:] / np.outer(safe, safe)
    used, _ = independent(unit, np.flatnonzero(varies[1:]).tolist())
    coef, se, unique = (np.full(x.shape[1], np.nan) for _ in range(3))
    free = n - groups - len(used)
    if not used or free <= 0:
        return Within(coef, se, unique, np.nan, n, groups, tuple(used), free, clusters)
    inverse = np.linalg.inv(unit[np.ix_(used, used)])
    lengths = size[1:][used]
    b = inverse @ (gram[0, 1:][used] / lengths)
    coef[used] = b / lengths
    residual = centred[0] - np.where(np.isnan(coef), 0.0, coef) @ centred[1:]
    if clusters > 1:
        for k in used:
            centred[1 + k] *= residual
        pull = np.stack([whole.sums(centred[1 + k]) for k in used]) / lengths[:, None]
        factor = clusters / (clusters - 1) * (n - 1) / (n - len(used))
        spread = ((inverse @ pull) ** 2).sum(axis=1)
        se[used] = np.sqrt(spread * factor) / lengths
    r2 = np.nan
    if varies[0]:
        r2 = 1 - float(residual @ residual) / float(gram[0, 0])
        unique[used] = b**2 / np.diag(inverse) / gram[0, 0]
    dropped = [k for k in np.flatnonzero(varies[1:]).tolist() if k not in used]
    part_of = abs(inverse @ unit[np.ix_(used, dropped)]) > PART_OF
    entangled = tuple(np.array(used)[part_of.any(axis=1)].tolist())
    return Within(coef, se, unique, r2, n, groups, tuple(used), free, clusters, entangled)


def at_equal_levels(
    level_N: np.ndarray, groups_N: np.ndarray, rows_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) and columns (N, Q) with which `fixed_effects` compares at equal levels.

    Where that leaves half of the comparisons within groups or more, only members of one group and
    one level are compared, so that a level may be worth anything in each group. Else it is worth a
    line that bends at its quartiles, and is steeper or flatter by the mean level of the row.

    Args:
        level_N: what an outcome is to be compared at, such as the truth; all finite.
        groups_N: labels, shape (N,).
        rows_N: labels of what groups are of, such as a problem, shape (N,).
    """
    group_N, names = pd.factorize(groups_N)
    values, place_N = np.unique(level_N.round(9), return_inverse=True)
    matched_N = group_N * len(values) + place_N
    if 2 * (len(level_N) - len(np.unique(matched_N))) >= len(level_N) - len(names):
        return matched_N, np.empty((len(level_N), 0))
    row_N, _ = pd.factorize(rows_N)
    means_R = np.bincount(row_N, level_N) / np.bincount(row_N)
    bends = np.maximum(level_N[:, None] - np.quantile(level_N, (0.25, 0.5, 0.75)), 0.0)
    return group_N, np.column_stack([level_N, bends, level_N * means_R[row_N]])


@dataclass(frozen=True)
class Groups:
    """Group of each row, 0..P-1, and rows per group, none of them 0."""

    codes_N: np.ndarray
    counts_P: np.ndarray
    starts_P: np.ndarray | None
    """First row of each group where the rows lie in the order of the groups, else None."""

    def sums(self, column_N: np.ndarray) -> np.ndarray:
        """Sum over the rows of each group, shape (P,)."""
        if self.starts_P is None:
            return np.bincount(self.codes_N, column_N, len(self.counts_P))
        return np.add.reduceat(column_N, self.starts_P)


def grouped(labels_N: np.ndarray) -> Groups:
    """Groups of equal labels; their order is no promise, and NaN is a label like any other.

    Integers within a range of few times N are counted in place; other labels are hashed.
    """
    n, whole = len(labels_N), labels_N.dtype.kind in "iu"
    if n and whole and int(labels_N.max()) - int(low := labels_N.min()) <= 4 * n + 1000:
        codes = (labels_N - low).astype(np.intp, copy=False)
    else:
        codes, _ = pd.factorize(labels_N, use_na_sentinel=False)
    counts = np.bincount(codes)
    if not (has_rows := counts > 0).all():
        codes, counts = (np.cumsum(has_rows) - 1)[codes], counts[has_rows]
    ordered = len(codes) > 0 and bool((codes[1:] >= codes[:-1]).all())
    return Groups(codes, counts, np.cumsum(counts) - counts if ordered else None)


def split(
    columns_K: Sequence[np.ndarray], groups: Groups, centred_K_N: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Means of the groups, shape (K, P), and products of the columns centred in them, (K, K).

    Args:
        columns_K: K columns of shape (N,).
        centred_K_N: where given, the centred columns are written into it.
    """
    n, total = len(groups.codes_N), len(columns_K)
    means = np.stack([groups.sums(column) for column in columns_K]) / groups.counts_P
    block = np.empty((total, min(BLOCK, n)))
    gram = np.zeros((total, total))
    for start in range(0, n, BLOCK):
        codes = groups.codes_N[start : start + BLOCK]
        target = block if centred_K_N is None else centred_K_N[:, start:]
        rows = target[:, : len(codes)]
        for k, column in enumerate(columns_K):
            # "clip" spares the copy that a check of the indices takes; all of them are in range
            np.take(means[k], codes, out=rows[k], mode="clip")
            np.subtract(column[start : start + BLOCK], rows[k], out=rows[k])
        for j in range(total):
            for k in range(j + 1):
                gram[j, k] += rows[j] @ rows[k]
    return means, np.tril(gram) + np.tril(gram, -1).T


def varying(size_K: np.ndarray, means_K_P: np.ndarray, counts_P: np.ndarray) -> np.ndarray:
    """Which columns vary inside groups by more than rounding, given their centred length."""
    between = np.sqrt(means_K_P**2 @ counts_P)
    return size_K > ROUNDING * np.hypot(size_K, between)


def independent(unit_K_K: np.ndarray, among: Sequence[int]) -> tuple[list[int], np.ndarray]:
    """Columns that are no combination of columns before them, by Cholesky of inner products.

    Args:
        unit_K_K: inner products of columns that were scaled to length 1.
        among: the columns to look at; others are left out.

    Returns:
        The columns kept, and L, shape (K, K), with L L' the products of ``among``; a column that
        was not kept has no part of its own in it.
    """
    used: list[int] = []
    factor = np.zeros_like(unit_K_K)
    for k in among:
        for axis in used:
            shared = unit_K_K[k, axis] - factor[k] @ factor[axis]
            factor[k, axis] = shared / factor[axis, axis]
        rest = unit_K_K[k, k] - factor[k] @ factor[k]
        if rest > APART**2:
            factor[k, k] = np.sqrt(rest)
            used.append(k)
    return used, factor
