"""The random-intercept model against statsmodels, by hand, and where it must warn."""

import warnings

import numpy as np
import pytest
from statsmodels.regression.mixed_linear_model import MixedLM

from analysis.planted.random_intercept import random_intercept


def planted(seed, clusters=40, size=12, between=0.5, slope=0.3):
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(clusters), rng.integers(2, 2 * size, clusters))
    z = rng.normal(size=len(cluster)) + rng.normal(0, 0.5, clusters)[cluster]
    noise = rng.normal(size=len(cluster))
    y = 1.0 + slope * z + between**0.5 * rng.normal(size=clusters)[cluster] + noise
    return y, np.stack([np.ones_like(z), z], axis=1), cluster


@pytest.mark.parametrize("reml", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_estimates_are_those_of_statsmodels(seed, reml):
    y, x, cluster = planted(seed)
    found = random_intercept(y, x, cluster, reml=reml)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = MixedLM(y, x, groups=cluster).fit(reml=reml)
    assert found.coef == pytest.approx(theirs.fe_params, rel=1e-4)
    # theirs are of the joint Hessian with the variances; ours of (X' V^-1 X)^-1, as lme4's are
    assert found.se == pytest.approx(theirs.bse_fe, rel=1e-2)
    v = found.within * np.eye(len(y)) + found.between * (cluster[:, None] == cluster)
    assert found.se**2 == pytest.approx(np.diag(np.linalg.inv(x.T @ np.linalg.solve(v, x))))
    assert found.within == pytest.approx(theirs.scale, rel=1e-4)
    assert found.between == pytest.approx(float(np.asarray(theirs.cov_re)[0, 0]), rel=1e-3)
    assert found.loglike == pytest.approx(theirs.llf, abs=1e-4)


def test_a_balanced_design_by_hand():
    """REML of a balanced one-way layout: within = MSW, between = (MSB - MSW) / n."""
    y = np.array([1.0, 3.0, 7.0, 9.0, 4.0, 6.0])
    found = random_intercept(y, np.ones((6, 1)), np.repeat([0, 1, 2], 2))
    assert found.within == pytest.approx(2.0, rel=1e-6)  # squares 2 + 2 + 2 over 3
    assert found.between == pytest.approx((18.0 - 2.0) / 2, rel=1e-6)  # means 2, 8, 5: MSB 18
    assert found.coef[0] == pytest.approx(5.0)


def test_no_variance_between_clusters_is_said():
    rng = np.random.default_rng(3)
    cluster = np.repeat(np.arange(50), 4)
    y = rng.normal(size=200)
    y -= np.bincount(cluster, y)[cluster] / 4  # every cluster has the mean 0
    found = random_intercept(y, np.ones((200, 1)), cluster)
    assert found.between == 0.0 and "no variance between" in found.note


def test_few_clusters_are_not_trusted_and_missing_rows_are_left_out():
    y, x, cluster = planted(0, clusters=5)
    assert "run-level means" in random_intercept(y, x, cluster).note
    holed = y.copy()
    holed[::3] = np.nan
    assert random_intercept(holed, x, cluster).rows == np.isfinite(holed).sum()


def test_columns_far_from_zero_lose_no_digits():
    """A time in seconds since 1970 over two hours, and an outcome with a large constant."""
    y, x, cluster = planted(4)
    hours = np.random.default_rng(4).uniform(0, 2, len(y))
    near = random_intercept(y + hours, np.stack([x[:, 0], hours, x[:, 1]], axis=1), cluster)
    time = 1.7e9 + 3600 * hours
    far = random_intercept(1e6 + y + hours, np.stack([x[:, 0], time, x[:, 1]], axis=1), cluster)
    assert far.coef[1:] == pytest.approx([near.coef[1] / 3600, near.coef[2]], rel=1e-6)
    assert far.se[1:] == pytest.approx([near.se[1] / 3600, near.se[2]], rel=1e-6)
    assert [far.between, far.within] == pytest.approx([near.between, near.within], rel=1e-5)
    # a unit of 1/3600 of that column stretches the space of X by as much
    assert far.loglike == pytest.approx(near.loglike - np.log(3600), abs=1e-5)


def test_columns_that_differ_only_between_clusters_are_told_apart():
    y, x, cluster = planted(5)
    of_cluster = np.random.default_rng(5).normal(size=40)[cluster]
    both = np.stack([x[:, 0], x[:, 1], x[:, 1] + of_cluster], axis=1)
    found = random_intercept(y, both, cluster)
    apart = random_intercept(y, np.stack([x[:, 0], x[:, 1], of_cluster], axis=1), cluster)
    assert found.coef[1] + found.coef[2] == pytest.approx(apart.coef[1])
    assert found.coef[2] == pytest.approx(apart.coef[2])
    assert found.se[2] == pytest.approx(apart.se[2])


def test_neither_names_of_clusters_nor_order_of_rows_matter():
    y, x, cluster = planted(6)
    expected = random_intercept(y, x, cluster)
    order = np.random.default_rng(6).permutation(len(y))
    named = np.array([f"c{one}" for one in cluster], dtype=object)
    for labels in (named, 10**12 * cluster, -cluster):
        found = random_intercept(y[order], x[order], labels[order])
        assert found.coef == pytest.approx(expected.coef)
        assert found.between == pytest.approx(expected.between, rel=1e-5)
        assert found.clusters == 40


@pytest.mark.parametrize("slope", [0.0, 2.0])
def test_an_outcome_without_noise_is_said(slope):
    _, x, cluster = planted(7)
    found = random_intercept(0.7 + slope * x[:, 1], x, cluster)
    assert found.coef == pytest.approx([0.7, slope])
    assert "to the last digit" in found.note and found.between == 0.0


@pytest.mark.parametrize(
    ("y", "x", "cluster"),
    [
        ([1.0, 2.0], [[1.0], [1.0]], [0, 0]),
        ([1.0, 2.0, 3.0], [[1.0, 1.0]] * 3, [0, 1, 2]),
        ([1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [0, 1]),
        ([1.0, 2.0, 4.0, 3.0], [[1.0, 0.0]] * 4, [0, 0, 1, 1]),
        ([1.0, 2.0, 4.0, 3.0], [[0.5, 0.1], [0.5, 0.1], [1.5, 0.3], [1.5, 0.3]], [0, 0, 1, 1]),
        ([1.0, 2, 4, 3, 1], [[1.0, z, 2 * z + 0.1] for z in (3, 2, 5, 1, 4)], [0, 0, 1, 1, 1]),
        ([np.nan, np.nan, np.nan], [[1.0]] * 3, [0, 0, 1]),
    ],
)
def test_what_cannot_be_fitted_is_refused(y, x, cluster):
    with pytest.raises(ValueError, match="takes two clusters"):
        random_intercept(np.array(y), np.array(x), np.array(cluster))
