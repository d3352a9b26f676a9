"""Least squares within groups: by hand, against statsmodels, and what it must not depend on."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.statistics.fixed_effects import (
    BLOCK,
    at_equal_levels,
    fixed_effects,
    grouped,
    independent,
    split,
)


def planted(seed, groups=40, size=8, columns=2, slope_sd=0.0):
    """Groups of unequal size; the first slope is .5 on average and may differ between groups."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rng.integers(2, 2 * size, groups))
    x = rng.normal(size=(len(group), columns)) + rng.normal(size=(groups, columns))[group]
    slopes = 0.5 + rng.normal(0, slope_sd, groups)[group] if slope_sd else 0.5
    y = slopes * x[:, 0] + 3 * rng.normal(size=groups)[group] + rng.normal(size=len(group))
    return y, x, group


def by_statsmodels(y, x, group, clusters):
    """Least squares on what differs within groups, with errors over clusters."""
    table = pd.DataFrame(x).assign(y=y)
    centred = (table - table.groupby(group).transform("mean")).to_numpy()
    fit = sm.OLS(centred[:, -1], centred[:, :-1])
    return fit.fit(cov_type="cluster", cov_kwds={"groups": clusters})


def test_three_pairs_by_hand():
    """Differences of y at a step of 1 in x are 2, 1 and 3."""
    x = np.array([0.0, 1, 0, 1, 0, 1])
    y = np.array([0.0, 2, 5, 6, 1, 4])
    found = fixed_effects(y, x[:, None], np.array(["a", "a", "b", "b", "c", "c"]))
    assert found.coef_K == pytest.approx([2.0])
    # x'x = 3 * .5; a group's score is half its residual difference 0, -1, 1; factor 3/2 * 5/5
    assert found.se_K == pytest.approx([(0.5 / 1.5**2 * 1.5) ** 0.5])
    assert found.r2 == pytest.approx(6 / 7)
    assert found.unique_K == pytest.approx([6 / 7])
    assert (found.n, found.groups, found.kept, found.free) == (6, 3, (0,), 2)
    alone = fixed_effects(
        np.append(y, 9.0), np.append(x, 7.0)[:, None], np.array(["a", "a", "b", "b", "c", "c", "d"])
    )
    assert (alone.n, alone.groups, alone.free, alone.clusters) == (6, 3, 2, 3)
    assert (alone.coef_K, alone.se_K) == (pytest.approx(found.coef_K), pytest.approx(found.se_K))


@pytest.mark.parametrize("columns", [1, 3])
def test_slopes_and_errors_are_those_of_statsmodels(columns):
    y, x, group = planted(columns, columns=columns, slope_sd=0.3)
    found = fixed_effects(y, x, group)
    dummies = pd.get_dummies(group).to_numpy(dtype=float)
    with_dummies = sm.OLS(y, np.concatenate([x, dummies], axis=1)).fit()
    assert found.coef_K == pytest.approx(with_dummies.params[:columns], rel=1e-9)
    by_group = by_statsmodels(y, x, group, group)
    assert found.se_K == pytest.approx(by_group.bse, rel=1e-9)
    assert found.r2 == pytest.approx(by_group.rsquared)
    for k in range(columns):
        rest = np.delete(x, k, axis=1)
        r2 = by_statsmodels(y, rest, group, group).rsquared if columns > 1 else 0.0
        assert found.unique_K[k] == pytest.approx(found.r2 - r2)


LABELS = {
    "strings": lambda g: np.array([f"item {one}" for one in g], dtype=object),
    "negative": lambda g: 3 - g,
    "gaps": lambda g: 7 * g - 50,
    "wide": lambda g: g * 10**15 - 5 * 10**15,
    "unsigned": lambda g: g.astype(np.uint8),
    "top of unsigned": lambda g: np.uint64(2**64 - 1) - g.astype(np.uint64),
    "floats with NaN": lambda g: np.where(g == 3, np.nan, g / 7),
    "truth": lambda g: g % 2 == 0,
}


@pytest.mark.parametrize("kind", LABELS)
@given(seed=st.integers(0, 10**6))
def test_neither_names_of_groups_nor_order_of_rows_matter(kind, seed):
    y, x, group = planted(seed, groups=12)
    if kind == "truth":
        group = group % 2
    named = LABELS[kind](group)
    assert len(grouped(named).counts_P) == len(np.unique(group))
    expected = fixed_effects(y, x, group)
    order = np.random.default_rng(seed).permutation(len(y))
    for found in (fixed_effects(y, x, named), fixed_effects(y[order], x[order], named[order])):
        np.testing.assert_allclose(found.coef_K, expected.coef_K, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.se_K, expected.se_K, rtol=1e-8)
        assert (found.n, found.groups, found.kept) == (expected.n, expected.groups, expected.kept)


@given(seed=st.integers(0, 10**6), power=st.integers(-6, 6), far=st.floats(-1e5, 1e5))
def test_units_and_constants_of_groups_do_not_matter(seed, power, far):
    y, x, group = planted(seed)
    expected = fixed_effects(y, x, group)
    shift = far * np.random.default_rng(seed).normal(size=group.max() + 1)[group]
    unit = 10.0**power
    found = fixed_effects(y + shift, unit * (x + shift[:, None]), group)
    np.testing.assert_allclose(found.coef_K * unit, expected.coef_K, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.se_K * unit, expected.se_K, rtol=1e-5)
    assert found.kept == (0, 1)


def test_a_row_alone_in_its_group_says_nothing():
    y, x, group = planted(1)
    expected = fixed_effects(y, x, group)
    alone = np.array([100, 101, 102])
    found = fixed_effects(
        np.concatenate([y, [50.0, -3.0, 9.0]]),
        np.concatenate([x, 30 * np.ones((3, 2))]),
        np.concatenate([group, alone]),
    )
    assert (found.n, found.groups, found.free) == (expected.n, expected.groups, expected.free)
    assert found.coef_K == pytest.approx(expected.coef_K)
    assert found.se_K == pytest.approx(expected.se_K)


def test_columns_that_say_nothing_of_their_own_are_dropped():
    y, x, group = planted(2)
    tenth = np.full(len(y), 0.1)  # its mean over a group is not always .1: rounding is no variation
    of_group = np.random.default_rng(0).normal(size=group.max() + 1)[group]
    both = np.stack([tenth, x[:, 0], of_group, 1e6 * x[:, 0] + of_group, x[:, 1]], axis=1)
    found = fixed_effects(y, both, group)
    assert found.kept == (1, 4)
    assert np.isnan(found.coef_K[[0, 2, 3]]).all() and np.isnan(found.se_K[[0, 2, 3]]).all()
    alone = fixed_effects(y, x, group)
    assert found.coef_K[[1, 4]] == pytest.approx(alone.coef_K)
    assert found.se_K[[1, 4]] == pytest.approx(alone.se_K)


def test_units_clusters_and_outcomes_that_say_nothing():
    y, x, group = planted(3)
    assert fixed_effects(y, 1e-3 * x, group, flat=1e-6).kept == (0, 1)
    assert fixed_effects(y, x * [1, 1e-8], group, flat=1e-6).kept == (0,)
    y, x = np.array([0.0, 1, 5, 2, 3]), np.array([0.0, 1, 7, 0, 1])
    group = np.array([0, 0, 1, 2, 2])
    found = fixed_effects(y, x[:, None], group, clusters_N=group)
    assert (found.n, found.groups, found.clusters) == (4, 2, 2)
    _, x, group = planted(4)
    found = fixed_effects(0.1 * group, x, group)
    assert found.coef_K == pytest.approx([0.0, 0.0], abs=1e-12)
    assert np.isnan(found.r2) and np.isnan(found.unique_K).all()
    y, x, _ = planted(5)
    found = fixed_effects(y, x, np.zeros(len(y), dtype=int))
    assert np.isfinite(found.coef_K).all() and np.isnan(found.se_K).all()


@pytest.mark.parametrize(
    ("rows", "columns", "free"), [(0, 2, 0), (5, 0, 4), (3, 2, 0), (2, 1, 0), (1, 1, 0)]
)
def test_too_little_is_missing(rows, columns, free):
    rng = np.random.default_rng(0)
    y, x = rng.normal(size=rows), rng.normal(size=(rows, columns))
    found = fixed_effects(y, x, np.zeros(rows, dtype=int))
    assert found.free == free
    assert np.isnan(found.coef_K).all() and np.isnan(found.se_K).all() and np.isnan(found.r2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["y", "x"])
def test_a_missing_value_is_refused(value, where):
    y, x, group = planted(6)
    (y if where == "y" else x[:, 1])[4] = value
    with pytest.raises(ValueError, match="NaN or infinite"):
        fixed_effects(y, x, group)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("rows", [BLOCK - 1, BLOCK, 2 * BLOCK + 1])
def test_blocks_of_rows_add_up(rows, ordered):
    rng = np.random.default_rng(rows)
    labels = rng.integers(0, 50, rows)
    labels = np.sort(labels) if ordered else labels
    by = grouped(labels)
    assert (by.starts_P is not None) == ordered
    columns = [rng.normal(size=rows) + 10, rng.normal(size=rows)]
    centred = np.empty((2, rows))
    means, products = split(columns, by, centred)
    table = pd.DataFrame(dict(enumerate(columns)))
    np.testing.assert_allclose(means.T, table.groupby(labels).mean(), rtol=1e-10)
    away = (table - table.groupby(labels).transform("mean")).to_numpy()
    np.testing.assert_allclose(centred.T, away, atol=1e-12)
    np.testing.assert_allclose(products, away.T @ away, rtol=1e-10)
    np.testing.assert_allclose(split(columns, by)[1], products, rtol=1e-14)


@pytest.mark.parametrize(("share", "kept"), [(1e-6, (0,)), (1e-4, (0, 1))])
def test_a_column_needs_a_share_of_its_own(share, kept):
    y, x, group = planted(8)
    near = np.stack([x[:, 0], x[:, 0] + share * x[:, 1]], axis=1)
    found = fixed_effects(y, near, group)
    assert found.kept == kept
    if len(kept) == 2:
        apart = fixed_effects(y, x, group)
        assert found.coef_K[1] == pytest.approx(apart.coef_K[1] / share, rel=1e-6)
        assert found.se_K[1] == pytest.approx(apart.se_K[1] / share, rel=1e-6)


@pytest.mark.parametrize("noise", [1e-4, 1e-6, 1e-8])
def test_the_error_of_a_column_close_to_another_is_that_of_their_difference(noise):
    """The second column is the first plus a little in four groups, where y hardly varies: its slope
    is that of the little by itself."""
    rng = np.random.default_rng(0)
    group, x, little = np.repeat(np.arange(10), 4), rng.normal(size=40), 3e-5 * rng.normal(size=40)
    y = x + rng.normal(size=40)
    flat = group < 4
    x[flat], y[flat], little[~flat] = 0, noise * y[flat], 0
    close = fixed_effects(y, np.stack([x, x + little], axis=1), group)
    apart = fixed_effects(y, np.stack([x, little], axis=1), group)
    assert close.kept == apart.kept == (0, 1)
    assert close.se_K[1] == pytest.approx(apart.se_K[1], rel=0.01)


def test_errors_by_more_than_the_group_are_those_of_statsmodels():
    """Two to four groups of each problem, whose slopes differ by problem."""
    rng = np.random.default_rng(3)
    y, x, group = planted(3, groups=60, columns=2, slope_sd=0.4)
    problem = np.repeat(np.arange(20), [2, 3, 4, 3] * 5)[group]
    y = y + rng.normal(0, 0.5, 20)[problem] * x[:, 1]
    found = fixed_effects(y, x, group, clusters_N=problem)
    oracle = by_statsmodels(y, x, group, problem)
    assert found.coef_K == pytest.approx(oracle.params, rel=1e-9)
    assert found.se_K == pytest.approx(oracle.bse, rel=1e-9)
    assert (found.clusters, found.groups) == (20, 60)
    low, high = found.interval()
    half = stats.t.ppf(0.975, 19) * oracle.bse
    assert high - low == pytest.approx(2 * half, rel=1e-9)
    assert (found.se_K > 1.1 * fixed_effects(y, x, group).se_K).any(), "problems matter here"


def test_what_is_dropped_is_named_and_what_is_independent_has_its_factor():
    """The third column is the sum of the first two; the fourth has nothing to do with them."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 4))
    x[:, 2] = x[:, 0] + x[:, 1]
    found = fixed_effects(rng.normal(size=200), x, np.repeat(np.arange(40), 5))
    assert found.kept == (0, 1, 3) and found.entangled == (0, 1)
    assert fixed_effects(x[:, 0], x[:, [0, 3]], np.repeat(np.arange(40), 5)).entangled == ()
    a, b = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 2)))[0].T
    columns = np.stack([a, (a + b) / 2**0.5, b, a], axis=1)
    unit = columns.T @ columns
    kept, factor = independent(unit, [0, 1, 2, 3])
    assert kept == [0, 1]
    np.testing.assert_allclose(factor @ factor.T, unit, atol=1e-12)
    assert independent(unit, [1, 3])[0] == [1, 3]


@pytest.mark.parametrize("values", [1, 4, 10_000])
def test_what_a_level_is_worth_is_no_slope_of_what_goes_with_it(values):
    """Few levels are worth anything in each group; many a line that bends, by the row's mean."""
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(60), 8)
    level = rng.integers(0, values + 1, 480) / values
    x = rng.normal(size=480) + 2 * level
    worth = rng.normal(size=(60, values + 1))[group, (level * values).round().astype(int)]
    if values > 100:
        mean = (np.bincount(group // 2, level) / 16)[group // 2]
        worth = level * (1 - 2 * mean) + np.maximum(level - np.quantile(level, 0.5), 0)
    labels, beside = at_equal_levels(level, group, group // 2)
    assert beside.shape[1] == (5 if values > 100 else 0)
    found = fixed_effects(worth + 0.3 * x, np.column_stack([x, beside]), labels, clusters_N=group)
    assert found.coef_K[0] == pytest.approx(0.3, abs=1e-8)
    assert abs(fixed_effects(worth + 0.3 * x, x[:, None], group).coef_K[0] - 0.3) > 0.01


def test_equal_levels_are_compared_where_half_of_the_comparisons_are_left():
    """Two groups of four make six comparisons within groups: with pairs of equal levels four are
    left of the first case and two of the second."""
    group, level = np.repeat(["a", "b"], 4), np.array([0.0, 0, 1, 1, 0, 0, 1, 1])
    assert len(np.unique(at_equal_levels(level, group, group)[0])) == 4
    few = np.array([0.0, 0, 1, 2, 0, 0, 1, 2])
    labels, beside = at_equal_levels(few, group, group)
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1] and beside.shape == (8, 5)
