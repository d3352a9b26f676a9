"""The ratings report against tables small enough to work out by hand, and the command line."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.ratings import agreement_report, check_ratings, main
from study.errors import UserError


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


def test_missing_scores_are_left_out_and_counted():
    gap = math.nan
    found = report({"h1": [1, 2, gap, 4], "h2": [1, gap, gap, 2], "j": [1, 2, 3, gap]})
    assert found["raters"]["j"]["missing"] == 1
    assert found["judges"]["j"]["n"] == 2
    assert found["fleiss"]["n"] == 1 and math.isnan(found["fleiss"]["value"])
    assert found["krippendorff"]["nominal"]["n"] == 3


def test_constant_scores_give_nan_and_words_everywhere():
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


def test_a_split_human_vote_is_no_label():
    one = report({"h1": [1, 1, 0, 0], "h2": [1, 0, 0, 0], "j": [1, 1, 0, 1]})["judges"]["j"]
    assert one["binary"]["halved"] == 1
    assert (one["binary"]["tp"], one["binary"]["fp"], one["binary"]["tn"]) == (1, 1, 1)


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


def test_a_graded_judge_of_a_binary_truth_has_an_auc():
    found = report({"h": [0, 0, 1, 1], "j": [0.1, 0.4, 0.35, 0.8]})["judges"]["j"]
    assert found["auc"]["value"] == 0.75 and found["binary"] is None


def test_judges_without_humans_still_agree_among_themselves():
    found = report({"j1": [1, 2, 3, 3], "j2": [1, 2, 3, 2]})
    assert found["fleiss"]["value"] == pytest.approx(0.6190476)
    assert found["judges"]["j1"]["n"] == 0
    assert math.isnan(found["judges"]["j1"]["overall"]["pearson"]["value"])


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
