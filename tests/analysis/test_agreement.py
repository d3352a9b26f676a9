"""Agreement statistics and the ratings report: hand-worked tables, other libraries, the command."""

import json
import math
from pathlib import Path

import krippendorff
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from analysis.external.ratings import agreement_report, check_ratings
from analysis.ratings import main
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
from study.errors import UserError

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


def test_kappa_is_of_the_scores_and_one_at_full_agreement():
    a, b = [1, 1, 2, 2, 9, 9], [1, 2, 2, 1, 9, 2]
    near = cohen_kappa(a, b, "linear").value
    ranks = cohen_kappa([0, 0, 1, 1, 2, 2], [0, 1, 1, 0, 2, 1], "linear").value
    assert near != pytest.approx(ranks)
    found = cohen_kappa([1, 2, 3], [1, 2, 3])
    assert found.value == 1.0 and math.isnan(found.low) and "agree" in found.note


@pytest.mark.parametrize(
    ("a", "b"),
    [([1, 1, 1], [1, 1, 1]), ([1, 1, 1], [1, 2, 1]), ([], []), ([math.nan], [1]), ([1, 2], [3, 4])],
)
def test_kappa_of_a_rater_without_spread_is_nan_and_says_why(a, b):
    found = cohen_kappa(a, b)
    assert math.isnan(found.value) and math.isnan(found.low) and found.note


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


def test_alpha_of_negative_ratios_and_pearson_are_as_elsewhere(ratings):
    assert math.isnan(krippendorff_alpha(np.array([[-1, 1], [2, 2.0]]), "ratio").value)
    found = correlation(ratings[:, 0], ratings[:, 1])
    theirs = stats.pearsonr(ratings[:, 0], ratings[:, 1]).confidence_interval()
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


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


def test_icc_without_spread_is_nan_of_equal_raters_one_and_of_few_warned_of() -> None:
    assert all(math.isnan(one.value) for one in icc_family(np.full((4, 3), 2.0)).values())
    assert all(math.isnan(one.value) for one in icc_family(np.array([[1.0], [2.0]])).values())
    same = icc_family(np.array([[1, 1], [2, 2], [4, 4.0]]))
    assert all(one.value == 1.0 and math.isnan(one.low) and one.note for one in same.values())
    shifted = icc_family(np.array([[1, 2], [2, 3], [4, 5], [7, 8.0]]))
    assert shifted["ICC(C,1)"].value == pytest.approx(1) and shifted["ICC(A,1)"].value < 1
    rng = np.random.default_rng(0)
    many = rng.normal(size=(400, 1)) + rng.normal(size=(400, 3))
    notes = {name: one.note for name, one in icc_family(many).items()}
    warned = {name for name, note in notes.items() if "too narrow" in note}
    assert warned == {"ICC(A,1)", "ICC(A,k)"}
    assert not any(one.note for one in icc_family(many[:100]).values())


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


def test_within_groups_counts_groups_without_spread_apart():
    x = [1, 2, 3, 3, 2, 1, 1, 1, 1, 5, 1, 2]
    found = within_groups(x, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 1, 2], list("aaabbbcccdee"))
    # a: 1, b: -1, c constant, d one item, e: 1
    assert (found.constant, found.small, found.estimate.n) == (1, 1, 3)
    assert found.estimate.value == pytest.approx(1 / 3)
    assert math.isnan(within_groups([1, 1], [1, 2], ["a", "a"]).estimate.value)


def long(scores: dict[str, list[float]], groups: list[str] | None = None) -> pd.DataFrame:
    """Columns item, rater, role (raters named h... are human), score, group."""
    rows = [
        (f"i{item}", rater, "human" if rater.startswith("h") else "judge", score)
        for rater, given in scores.items()
        for item, score in enumerate(given)
    ]
    table = pd.DataFrame(rows, columns=["item", "rater", "role", "score"])
    return table.assign(group=groups * len(scores)) if groups else table


def report(scores: dict[str, list[float]], groups: list[str] | None = None) -> dict:
    return agreement_report(check_ratings(long(scores, groups)))


def test_a_judge_is_held_against_the_mean_of_the_humans():
    humans = {"h1": [1, 2, 3, 4, 5, 1], "h2": [3, 2, 5, 4, 5, 3]}
    judge = [2, 3, 3, 5, 4, 1]
    found = report(humans | {"j": judge})
    truth = [2, 2, 4, 4, 5, 2]
    one = found["judges"]["j"]
    assert one["overall"]["pearson"]["value"] == pytest.approx(stats.pearsonr(judge, truth)[0])
    assert one["overall"]["spearman"]["value"] == pytest.approx(stats.spearmanr(judge, truth)[0])
    assert one["overall"]["kendall"]["value"] == pytest.approx(stats.kendalltau(judge, truth)[0])
    assert one["mae"]["value"] == pytest.approx(5 / 6)
    assert one["binary"] is None and found["groups"] == 0
    assert one["within_group"]["pearson"]["n"] == 0
    assert found["raters"]["h1"] == {"role": "human", "scored": 6, "missing": 0}
    pairs = {(pair["a"], pair["b"]) for pair in found["pairs"]}
    assert pairs == {("h1", "h2"), ("h1", "j"), ("h2", "j")}
    assert set(found["krippendorff"]) == {"nominal", "ordinal", "interval", "ratio"}
    assert found["humans"]["icc"]["ICC(A,1)"]["n"] == 6
    assert math.isnan(found["judges_among"]["fleiss"]["value"])


def test_within_groups_a_judge_may_say_the_opposite_of_what_it_says_overall():
    truth = [1, 2, 3, 11, 12, 13, 5, 5]
    found = report({"h": truth, "j": [3, 2, 1, 13, 12, 11, 1, 9]}, list("aaabbbcc"))["judges"]["j"]
    assert found["overall"]["pearson"]["value"] > 0.5
    within = found["within_group"]["pearson"]
    assert (within["value"], within["n"], within["groups_constant"]) == (pytest.approx(-1), 2, 1)


def test_missing_and_constant_scores_are_counted_and_said():
    gap = math.nan
    found = report({"h1": [1, 2, gap, 4], "h2": [1, gap, gap, 2], "j": [1, 2, 3, gap]})
    assert found["raters"]["j"]["missing"] == 1
    assert found["judges"]["j"]["n"] == 2
    assert found["fleiss"]["n"] == 1 and math.isnan(found["fleiss"]["value"])
    assert found["krippendorff"]["nominal"]["n"] == 3
    found = report({"h1": [1, 1, 1], "h2": [1, 1, 1], "j": [1, 1, 1]})
    numbers = [found["fleiss"], *found["krippendorff"].values(), *found["icc"].values()]
    numbers += [pair["kappa"] for pair in found["pairs"]]
    numbers += found["judges"]["j"]["overall"].values()
    numbers += [found["judges"]["j"]["auc"], found["judges"]["j"]["binary"]["phi"]]
    assert all(math.isnan(one["value"]) and one["note"] for one in numbers)


def binary_scores(groups: int = 1) -> dict[str, list[float]]:
    """Per group 10 true, 9 of them passed, and 10 false, 2 of them passed."""
    truth = ([1] * 10 + [0] * 10) * groups
    judge = ([1] * 9 + [0] + [1] * 2 + [0] * 8) * groups
    return {"h": truth, "j": judge}


def test_binary_rates_by_hand():
    one = report(binary_scores())["judges"]["j"]["binary"]
    assert (one["tp"], one["fp"], one["fn"], one["tn"]) == (9, 2, 1, 8)
    assert one["tpr"]["value"] == 0.9 and one["fpr"]["value"] == 0.2
    assert one["youden_j"]["value"] == pytest.approx(0.7)
    assert one["phi"]["value"] == pytest.approx((9 * 8 - 2 * 1) / math.sqrt(11 * 9 * 10 * 10))
    assert one["rogan_gladen"]["value"] == pytest.approx(0.5)
    assert "own share" in one["rogan_gladen"]["note"]


def test_rogan_gladen_reads_the_unlabelled_items_and_its_interval_carries_calibration():
    scores = binary_scores()
    scores["h"] += [math.nan] * 100
    scores["j"] += [1] * 60 + [0] * 40
    one = report(scores)["judges"]["j"]["binary"]["rogan_gladen"]
    p = (0.6 - 0.2) / 0.7
    assert one["value"] == pytest.approx(p) and one["n"] == 100
    variance = (0.24 / 100 + (1 - p) ** 2 * 0.16 / 10 + p**2 * 0.09 / 10) / 0.49
    assert one["low"] == pytest.approx(p - 1.959964 * math.sqrt(variance))
    assert one["test"] == "items without a human label"


def test_reports_of_few_humans_and_judges_are_whole():
    one = report({"h1": [1, 1, 0, 0], "h2": [1, 0, 0, 0], "j": [1, 1, 0, 1]})["judges"]["j"]
    assert one["binary"]["halved"] == 1
    assert (one["binary"]["tp"], one["binary"]["fp"], one["binary"]["tn"]) == (1, 1, 1)
    found = report({"h": [0, 0, 1, 1], "j": [0.1, 0.4, 0.35, 0.8]})["judges"]["j"]
    assert found["auc"]["value"] == 0.75 and found["binary"] is None
    found = report({"j1": [1, 2, 3, 3], "j2": [1, 2, 3, 2]})
    assert found["fleiss"]["value"] == pytest.approx(0.6190476)
    assert found["judges"]["j1"]["n"] == 0
    assert math.isnan(found["judges"]["j1"]["overall"]["pearson"]["value"])


def test_leave_one_group_out_calibrates_on_the_others():
    scores = binary_scores(groups=3)
    groups = [name for name in "abc" for _ in range(20)]
    left = report(scores, groups)["judges"]["j"]["binary"]["leave_one_group_out"]
    assert set(left["groups"]) == {"a", "b", "c"}
    assert left["groups"]["a"]["value"] == pytest.approx((11 / 20 - 0.2) / 0.7)
    assert left["mean_error"] == pytest.approx(0.0) and left["covered"] == 1.0
    # a judge that passes everything in one group cannot be corrected by the others
    scores["j"][40:] = [1] * 20
    left = report(scores, groups)["judges"]["j"]["binary"]["leave_one_group_out"]
    assert left["groups"]["c"]["value"] == 1.0 and "cut" in left["groups"]["c"]["note"]
    assert left["covered"] < 1
    none = report(binary_scores())["judges"]["j"]["binary"]["leave_one_group_out"]
    assert none["note"] == "needs two groups"


def test_command_writes_null_for_what_is_not_known(tmp_path: Path, capsys):
    rows = long({"h": [1, 2, 3, math.nan], "j": [1, 1, 1, 1]})
    file, out = tmp_path / "r.csv", tmp_path / "o.json"
    rows.to_csv(file, index=False)
    assert main([str(file), f"out={out}"]) == 0
    assert "no spread" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["judges"]["j"]["overall"]["pearson"]["value"] is None
    assert found["raters"]["h"]["missing"] == 1 and "NaN" not in out.read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: pd.concat([t, t.iloc[[1]]]), "row 7 repeats item 'i1', rater 'h' of row 2"),
        (lambda t: t.drop(columns="role"), "no column role"),
        (lambda t: t.assign(score=["x", *t["score"][1:]]), "row 1, column score holds 'x'"),
        (lambda t: t.assign(score=[np.inf, *t["score"][1:]]), "row 1, column score"),
        (lambda t: t.assign(role=["judge", *t["role"][1:]]), "rater 'h' has more than one role"),
        (lambda t: t.assign(group=list("abcdef")), "item 'i0' has more than one group"),
    ],
)
def test_bad_tables_are_refused_with_their_place(tmp_path: Path, capsys, change, said):
    file = tmp_path / "r.csv"
    change(long({"h": [1, 2, 3], "j": [1, 2, 2]})).to_csv(file, index=False)
    assert main([str(file), f"out={tmp_path / 'o.json'}"]) == 2
    message = capsys.readouterr().err
    assert said in message and "r.csv" in message


def test_a_table_in_memory_is_checked_alike():
    with pytest.raises(UserError, match="The table has no rows"):
        check_ratings(long({"h": [1.0]}).iloc[:0])
