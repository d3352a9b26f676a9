"""Agreement statistics against hand-worked tables, other libraries and their own algebra."""

import math

import krippendorff
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from analysis.statistics.agreement import (
    ICC_TYPES,
    SCALES,
    cohen_kappa,
    correlation,
    fleiss_kappa,
    icc_family,
    krippendorff_alpha,
    within_groups,
)

KRIPPENDORFF = np.array(
    [
        [math.nan] * 5 + [3, 4, 1, 2, 1, 1, 3, 3, math.nan, 3],
        [1, math.nan, 2, 1, 3, 3, 4, 3] + [math.nan] * 7,
        [math.nan, math.nan, 2, 1, 3, 4, 4, math.nan, 2, 1, 1, 3, 3, math.nan, 4],
    ]
).T
"""The example with missing cells that Krippendorff's alpha is taught with: 0.807 ordinal."""


@pytest.fixture
def ratings() -> np.ndarray:
    rng = np.random.default_rng(7)
    return np.clip(np.round(rng.normal(3, 1, (60, 1)) + rng.normal(0, 0.7, (60, 3))), 1, 5)


@pytest.mark.parametrize("weights", [None, "linear", "quadratic"])
def test_kappa_is_that_of_scikit_learn_and_of_a_hand_worked_table(ratings, weights):
    a, b = ratings[:, 0], ratings[:, 1]
    assert set(np.unique(ratings[:, :2])) == {1, 2, 3, 4, 5}
    found = cohen_kappa(a, b, weights)
    assert found.value == pytest.approx(cohen_kappa_score(a, b, weights=weights), abs=1e-12)
    assert found.low < found.value < found.high
    # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: (.7 - .5) / (1 - .5)
    yes_no = [1] * 25 + [0] * 25, [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert cohen_kappa(*yes_no, weights).value == pytest.approx(0.4)


def test_kappa_weights_are_distances_of_the_scores_themselves():
    a, b = [1, 1, 2, 2, 9, 9], [1, 2, 2, 1, 9, 2]
    near = cohen_kappa(a, b, "linear").value
    ranks = cohen_kappa([0, 0, 1, 1, 2, 2], [0, 1, 1, 0, 2, 1], "linear").value
    assert near != pytest.approx(ranks)


@pytest.mark.parametrize(
    ("a", "b"),
    [([1, 1, 1], [1, 1, 1]), ([1, 1, 1], [1, 2, 1]), ([], []), ([math.nan], [1]), ([1, 2], [3, 4])],
)
def test_kappa_of_a_rater_without_spread_is_nan_and_says_why(a, b):
    found = cohen_kappa(a, b)
    assert math.isnan(found.value) and math.isnan(found.low) and found.note


def test_kappa_of_full_agreement_is_one_without_an_interval():
    found = cohen_kappa([1, 2, 3], [1, 2, 3])
    assert found.value == 1.0 and math.isnan(found.low) and "agree" in found.note


def test_fleiss_of_its_textbook_table_is_point_21():
    table = [
        [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
    ]  # fmt: skip
    ratings = np.array([np.repeat(np.arange(5), row) for row in table], dtype=float)
    found = fleiss_kappa(ratings)
    assert found.value == pytest.approx(0.20993, abs=1e-5)
    assert found.n == 10 and found.low < found.value < found.high
    assert fleiss_kappa(np.vstack([ratings, np.full(14, math.nan)])).value == found.value


@pytest.mark.parametrize("scale", SCALES)
def test_alpha_is_that_of_the_reference_package_with_gaps_and_uneven_scores(scale):
    rng = np.random.default_rng(5)
    for items, raters in ((4, 2), (30, 3), (12, 6)):
        scores = rng.choice([0, 1, 2, 4, 7.5], (items, 1)) + rng.choice([0, 0, 1], (items, raters))
        scores[rng.random(scores.shape) < 0.2] = math.nan
        theirs = krippendorff.alpha(scores.T, level_of_measurement=scale)
        assert krippendorff_alpha(scores, scale).value == pytest.approx(theirs, abs=1e-12)


def test_alpha_of_scores_that_are_all_different_is_had_at_interval_level():
    rng = np.random.default_rng(2)
    scores = 1e6 + rng.normal(size=(700, 1)) + rng.normal(size=(700, 3))
    found = krippendorff_alpha(scores, "interval")
    # far from zero, where squares of the scores themselves would lose the digits
    theirs = krippendorff.alpha((scores - 1e6)[:80].T, level_of_measurement="interval")
    assert krippendorff_alpha(scores[:80], "interval").value == pytest.approx(theirs, abs=1e-9)
    assert found.low < 0.5 < found.high
    refused = krippendorff_alpha(scores, "ordinal")
    assert math.isnan(refused.value) and "2100 distinct scores" in refused.note


def test_alpha_jackknife_leaves_out_each_item():
    found = krippendorff_alpha(KRIPPENDORFF, "ordinal")
    kept = KRIPPENDORFF[(~np.isnan(KRIPPENDORFF)).sum(axis=1) >= 2]
    # of 15 items one has no score and two have one
    assert found.n == len(kept) == 12 and found.value == pytest.approx(0.807, abs=5e-4)
    others = (np.delete(kept, one, axis=0).T for one in range(12))
    left = [krippendorff.alpha(scores, level_of_measurement="ordinal") for scores in others]
    half = stats.t.ppf(0.975, 11) * 11**0.5 * np.std(left)
    ends = (found.value - half, min(found.value + half, 1))
    assert (found.low, found.high) == pytest.approx(ends)


@pytest.mark.parametrize("scale", SCALES)
def test_alpha_without_spread_or_pairs_is_nan_never_a_number(scale):
    for bad in (np.full((5, 2), 3.0), np.full((5, 2), math.nan), np.zeros((0, 2))):
        assert math.isnan(krippendorff_alpha(bad, scale).value)
    assert math.isnan(krippendorff_alpha(np.array([[1, math.nan], [math.nan, 2]]), scale).value)
    assert krippendorff_alpha(np.array([[1, 1], [2, 2.0]]), scale).value == 1.0


def test_alpha_at_ratio_level_refuses_negative_scores():
    assert math.isnan(krippendorff_alpha(np.array([[-1, 1], [2, 2.0]]), "ratio").value)


def test_icc_and_intervals_are_those_published_for_the_table_of_shrout_and_fleiss():
    ratings = np.array(
        [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7.0]]
    )
    published = (
        (0.17, -0.133, 0.72), (0.29, 0.019, 0.76), (0.71, 0.342, 0.95),
        (0.44, -0.884, 0.91), (0.62, 0.071, 0.93), (0.91, 0.676, 0.99),
    )  # fmt: skip
    found = icc_family(ratings)
    for name, (value, low, high) in zip(ICC_TYPES, published, strict=True):
        assert found[name].value == pytest.approx(value, abs=0.005)
        assert found[name].low == pytest.approx(low, abs=0.0005)
        assert found[name].high == pytest.approx(high, abs=0.005)


def test_icc_without_spread_is_nan_and_of_equal_raters_one():
    assert all(math.isnan(one.value) for one in icc_family(np.full((4, 3), 2.0)).values())
    assert all(math.isnan(one.value) for one in icc_family(np.array([[1.0], [2.0]])).values())
    same = icc_family(np.array([[1, 1], [2, 2], [4, 4.0]]))
    assert all(one.value == 1.0 and math.isnan(one.low) and one.note for one in same.values())
    shifted = icc_family(np.array([[1, 2], [2, 3], [4, 5], [7, 8.0]]))
    assert shifted["ICC(C,1)"].value == pytest.approx(1) and shifted["ICC(A,1)"].value < 1


@pytest.mark.parametrize(
    ("kind", "oracle"),
    [("pearson", stats.pearsonr), ("spearman", stats.spearmanr), ("kendall", stats.kendalltau)],
)
def test_correlations_are_scipys_and_leave_out_missing_pairs(ratings, kind, oracle):
    a, b = ratings[:, 0].copy(), ratings[:, 1]
    a[:5] = math.nan
    found = correlation(a, b, kind)
    assert found.value == pytest.approx(oracle(a[5:], b[5:])[0]) and found.n == 55
    assert found.low < found.value < found.high
    assert math.isnan(correlation([0.3, 0.1 + 0.2, 0.3], [1, 2, 3], kind).value)
    assert math.isnan(correlation([1], [2], kind).value)


def test_pearsons_interval_is_scipys(ratings):
    found = correlation(ratings[:, 0], ratings[:, 1])
    theirs = stats.pearsonr(ratings[:, 0], ratings[:, 1]).confidence_interval()
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


def test_within_groups_counts_groups_without_spread_apart():
    x = [1, 2, 3, 3, 2, 1, 1, 1, 1, 5, 1, 2]
    found = within_groups(x, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 1, 2], list("aaabbbcccdee"))
    # a: 1, b: -1, c constant, d one item, e: 1
    assert (found.constant, found.small, found.estimate.n) == (1, 1, 3)
    assert found.estimate.value == pytest.approx(1 / 3)
    assert math.isnan(within_groups([1, 1], [1, 2], ["a", "a"]).estimate.value)


def test_few_raters_over_many_items_are_warned_of() -> None:
    rng = np.random.default_rng(0)
    many = rng.normal(size=(400, 1)) + rng.normal(size=(400, 3))
    notes = {name: one.note for name, one in icc_family(many).items()}
    warned = {name for name, note in notes.items() if "too narrow" in note}
    assert warned == {"ICC(A,1)", "ICC(A,k)"}
    assert not any(one.note for one in icc_family(many[:100]).values())
