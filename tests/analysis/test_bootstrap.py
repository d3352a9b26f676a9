"""Bootstraps: by hand, against gathers and statsmodels, and coverage of planted truth."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from analysis.planted.bootstrap import (
    cluster_bootstrap,
    cluster_sums,
    crossed_bootstrap,
    nested_bootstrap,
)
from analysis.statistics import bootstrap
from analysis.statistics.bootstrap import draw_weights, resampled_sums, widened
from analysis.statistics.estimate import ratio, ratio_se


def unbalanced(seed: int, clusters: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Rows that share a cluster's offset, 1 to 12 of them."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(clusters), rng.integers(1, 13, clusters))
    return rng.normal(0, 1, clusters)[labels] + rng.normal(0, 0.5, len(labels)), labels


def test_a_ratio_is_of_sums_and_labels_may_be_of_any_kind() -> None:
    values, expected = np.array([1.0, 2.0, 4.0]), [[5.0, 2.0], [2.0, 1.0]]
    assert cluster_sums(values, np.array([3, 9, 3])).tolist() == expected
    assert cluster_sums(values, np.array(["a", "b", "a"])).tolist() == expected
    failed_of_asked = np.array([[1.0, 2.0], [0.0, 2.0], [3.0, 4.0]])
    assert ratio(failed_of_asked.sum(axis=0)) == 0.5
    # residuals 0, -1, 1 over 8 in all: sqrt(3 / 2 * 2) / 8
    assert ratio_se(failed_of_asked) == pytest.approx(3**0.5 / 8)


def test_weights_are_multinomial_and_replicates_those_of_a_gather() -> None:
    weights = draw_weights(np.random.default_rng(1), np.empty((40_000, 5)))
    # mean 1, variance 1 - 1/5, covariance -1/5; 40,000 draws give 3 digits
    assert weights.mean(axis=0) == pytest.approx(np.ones(5), abs=0.02)
    assert np.cov(weights.T) == pytest.approx(np.eye(5) - 0.2, abs=0.03)
    with pytest.raises(ValueError, match="copy"):
        draw_weights(np.random.default_rng(0), np.empty((6, 5)).T)
    # The same draws, once as weights and once as rows put together: the same means.
    values, labels = unbalanced(0)
    weights = draw_weights(np.random.default_rng(5), np.empty((50, 40)))
    drawn = resampled_sums(cluster_sums(values, labels), 50, np.random.default_rng(5))
    for row, counts in zip(drawn, weights, strict=True):
        picked = np.repeat(np.arange(40), counts.astype(int))
        rows = np.concatenate([values[labels == cluster] for cluster in picked])
        assert counts.sum() == 40
        assert row[0] / row[1] == pytest.approx(rows.mean(), rel=1e-12)


def test_every_chunk_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replicate of 40 clusters draws 40, in the last and shorter chunk too."""
    monkeypatch.setattr(bootstrap, "CHUNK", 40 * 7)
    sums = np.stack([np.ones(40), np.arange(40.0)], axis=1)
    drawn = resampled_sums(sums, 500, np.random.default_rng(0))
    assert (drawn[:, 0] == 40).all()
    # 40 draws from 0 .. 39: mean 40 * 19.5, sd sqrt(40 * (40^2 - 1) / 12)
    assert drawn[:, 1].mean() == pytest.approx(780, abs=4 * 73 / 500**0.5)
    assert drawn[:, 1].std() == pytest.approx(73.0, rel=0.15)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_standard_errors_are_those_of_statsmodels(seed: int) -> None:
    values, labels = unbalanced(seed)
    found = cluster_bootstrap(values, labels)
    ones = np.ones(len(values))
    assert found.value == pytest.approx(values.mean())
    robust = sm.OLS(values, ones).fit(cov_type="cluster", cov_kwds={"groups": labels})
    assert ratio_se(cluster_sums(values, labels)) == pytest.approx(robust.bse[0])
    # the bootstrap has the same to its own error: no factor C / (C - 1), 10,000 replicates
    assert found.se == pytest.approx(robust.bse[0], rel=0.06)
    assert found.se > 1.5 * sm.OLS(values, ones).fit().bse[0]


def test_runs_need_not_meet_every_prompt() -> None:
    run, prompt = (axis.ravel() for axis in np.indices((12, 30)))
    values = np.random.default_rng(3).normal(0, 1, 360)
    keep = np.random.default_rng(4).random(360) < 0.8
    found = crossed_bootstrap(values[keep], run[keep], prompt[keep], replicates=200)
    assert found.value == pytest.approx(values[keep].mean())
    assert (found.n, found.unit) == (12, "run") and found.low < found.value < found.high


def test_crossed_replicates_weigh_with_products() -> None:
    """Exact mean square over every draw of 2 runs and 2 prompts, counted by hand."""
    table = np.array([[0.0, 1.0], [2.0, 5.0]])
    run, prompt = (axis.ravel() for axis in np.indices((2, 2)))
    weights = {(2, 0): 0.25, (1, 1): 0.5, (0, 2): 0.25}
    mean = square = 0.0
    for a, p in weights.items():
        for b, q in weights.items():
            value = np.array(a) @ table @ np.array(b) / 4
            mean += p * q * value
            square += p * q * value**2
    found = crossed_bootstrap(table.ravel(), run, prompt, replicates=200_000)
    assert found.value == mean == 2.0
    assert found.se == pytest.approx((square - mean**2) ** 0.5, rel=0.01)


def test_nested_variance_is_that_of_two_stages() -> None:
    """(between + mean within / C) / R, the variances of the data themselves."""
    rng = np.random.default_rng(4)
    values = rng.normal(0, 1, (6, 1)) + rng.normal(0, 1.5, (6, 5))
    run, prompt = (axis.ravel() for axis in np.indices((6, 5)))
    found = nested_bootstrap(values.ravel(), run, prompt, replicates=100_000)
    exact = (values.mean(axis=1).var() + values.var(axis=1).mean() / 5) / 6
    assert found.value == pytest.approx(values.mean())
    assert found.se == pytest.approx(exact**0.5, rel=0.01)
    uneven = nested_bootstrap(np.array([1.0, 1.0, 1.0, 4.0]), np.array([0, 0, 0, 1]), np.arange(4))
    assert uneven.value == 2.5, "runs weigh alike, however many values they have"


@pytest.mark.parametrize("kind", [crossed_bootstrap, nested_bootstrap])
def test_few_runs_are_refused_in_words(kind) -> None:
    run, prompt = (axis.ravel() for axis in np.indices((9, 50)))
    found = kind(np.random.default_rng(0).normal(size=450), run, prompt, replicates=100)
    assert np.isnan(found.low) and np.isnan(found.high)
    assert found.note.startswith("9 runs: no bootstrap interval below 10")
    assert np.isfinite(found.se)
    run, prompt = (axis.ravel() for axis in np.indices((10, 50)))
    ten = kind(np.random.default_rng(0).normal(size=500), run, prompt, replicates=100)
    assert ten.low < ten.value < ten.high and ten.note == ""


def test_widened_percentiles_are_a_t_interval() -> None:
    """On normal replicates with the bootstrap's sd, sqrt((n-1)/n) of the usual one."""
    for units in (10, 30, 500):
        sd = ((units - 1) / units) ** 0.5
        half = -stats.norm.ppf(widened(units)) * sd
        assert half == pytest.approx(stats.t.ppf(0.975, units - 1))
