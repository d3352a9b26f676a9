"""Pairwise figures against verdicts that can be counted by hand, and the command line."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from statsmodels.stats.proportion import proportion_confint

from analysis.external.pairwise import check_pairwise, judge_pairs
from analysis.external.tables import read_table
from analysis.pairwise import main
from study.errors import UserError

# item: order 0, order 1, gold
HAND = {
    "1": ("first", "first", "first"),
    "2": ("first", "second", "second"),
    "3": ("", "first", "first"),
    "4": ("tie", "tie", "tie"),
    "5": ("second", "first", "first"),
    "6": ("first", "second", "first"),
    "7": ("tie", "first", "first"),
    "8": ("first", "second", "second"),
}


def table(verdicts: dict[str, tuple[str, str, str]], judge: str = "a", repeat: int = 0):
    rows = [
        (item, judge, order, repeat, pair[order], pair[2])
        for item, pair in verdicts.items()
        for order in (0, 1)
    ]
    return pd.DataFrame(rows, columns=["item", "judge", "order", "repeat", "verdict", "gold"])


@pytest.mark.parametrize(
    ("invalid", "order0", "order1", "both", "agreement"),
    [
        ("exclude", 3 / 7, 7 / 8, 2 / 7, 2 / 7),
        ("wrong", 3 / 8, 7 / 8, 2 / 8, 2 / 8),
        ("half", 3.5 / 8, 7 / 8, 2.5 / 8, 2.5 / 8),
    ],
)
def test_every_figure_of_a_hand_made_table(invalid, order0, order1, both, agreement):
    found = judge_pairs(check_pairwise(table(HAND)), invalid)["a"]
    assert (found["n"], found["items"], found["pairs"], found["invalid"]) == (16, 8, 8, 1)
    assert found["accuracy_order0"] == pytest.approx(order0)
    assert found["accuracy_order1"] == pytest.approx(order1)
    assert found["accuracy"] == pytest.approx((order0 + order1) / 2)
    assert found["both_correct"] == pytest.approx(both)
    assert found["position_agreement"] == pytest.approx(agreement)
    # shown first wins twice: items 2, 6, 8; shown second twice: item 5
    assert (found["first_first"], found["second_second"]) == (3, 1)
    assert found["position_p"] == found["position_p_items"] == binomtest(3, 4).pvalue


def by_adding(verdicts: tuple[str, ...], gold: str) -> bool:
    """Whether a pair is right by its votes, counted one by one."""
    other = {"first": "second", "second": "first"}[gold]
    return sum((verdict == gold) - (verdict == other) for verdict in verdicts) > 0


@pytest.mark.parametrize("invalid", ["exclude", "wrong", "half"])
def test_votes_of_both_orders_are_added_and_a_tie_of_them_is_wrong(invalid):
    # items 1, 3, 4 and 7 are right: a blank or a tie leaves the decision to the other vote
    judged = judge_pairs(check_pairwise(table(HAND)), invalid)["a"]
    assert judged["votes_correct"] == 0.5
    interval = proportion_confint(4, 8, method="wilson")
    assert judged["intervals"]["votes_correct"] == pytest.approx(interval)


@pytest.mark.parametrize(("invalid", "share"), [("exclude", 1.0), ("wrong", 0.5), ("half", 0.75)])
def test_a_pair_without_a_vote_is_what_invalid_says(invalid, share):
    rows = table({"1": ("first", "first", "first"), "2": ("", "", "first")})
    assert judge_pairs(check_pairwise(rows), invalid)["a"]["votes_correct"] == share
    unknown = table({"1": ("first", "first", ""), "2": ("", "", "")})
    assert math.isnan(judge_pairs(check_pairwise(unknown), invalid)["a"]["votes_correct"])


def test_intervals_are_wilsons_and_stability_is_the_share_of_the_majority():
    found = judge_pairs(check_pairwise(table(HAND)))["a"]["intervals"]
    assert found["accuracy_order0"] == pytest.approx(proportion_confint(3, 7, method="wilson"))
    assert found["both_correct"] == pytest.approx(proportion_confint(2, 7, method="wilson"))
    verdicts = ["first", "first", "second"]
    frames = [table({"1": (one, "first", "first")}, repeat=k) for k, one in enumerate(verdicts)]
    found = judge_pairs(check_pairwise(pd.concat(frames)))["a"]
    assert found["repeat_stability"] == pytest.approx((2 / 3 + 1) / 2)


def test_repeats_add_no_information_and_one_order_gives_no_numbers():
    once = judge_pairs(check_pairwise(table(HAND)))["a"]
    thrice = judge_pairs(check_pairwise(pd.concat([table(HAND, repeat=k) for k in range(3)])))["a"]
    for name in ("accuracy_order0", "accuracy_order1", "both_correct", "position_agreement"):
        assert thrice["intervals"][name] == pytest.approx(once["intervals"][name])
    assert thrice["first_first"] == 9 and thrice["position_p"] < once["position_p"]
    assert thrice["position_p_items"] == once["position_p_items"]
    assert "position_p_items" in thrice["note"]
    assert thrice["repeat_stability"] == 1.0 and thrice["repeat_cells"] == 15
    assert math.isnan(once["repeat_stability"])
    rows = table({"1": ("first", "first", ""), "2": ("second", "first", "")})
    found = judge_pairs(check_pairwise(rows))["a"]
    assert math.isnan(found["accuracy"]) and math.isnan(found["both_correct"])
    assert found["position_agreement"] == 0.5 and "no gold" in found["note"]
    rows = table(HAND)
    found = judge_pairs(check_pairwise(rows[rows["order"] == 0]))["a"]
    assert math.isnan(found["accuracy"]) and math.isnan(found["position_p"])
    assert found["accuracy_order0"] == pytest.approx(3 / 7) and "both orders" in found["note"]


def test_a_fair_judge_with_a_position_habit_is_seen_though_gold_is_unbalanced():
    habit = {str(k): ("first", "second", "first") for k in range(12)}
    found = judge_pairs(check_pairwise(table(habit)))["a"]
    assert found["accuracy"] == 0.5 and found["position_agreement"] == 0.0
    assert found["position_p"] == pytest.approx(2 / 2**12)
    honest = {str(k): ("first", "first", "first") for k in range(12)}
    found = judge_pairs(check_pairwise(table(honest)))["a"]
    assert found["accuracy"] == found["position_agreement"] == 1.0
    assert found["position_p"] == 1.0
    interval = proportion_confint(12, 12, method="wilson")
    assert found["intervals"]["accuracy"] == pytest.approx(interval)


WORD = st.sampled_from(["first", "second", "tie", ""])
GOLD = st.sampled_from(["first", "second"])


@settings(max_examples=30)
@given(st.lists(st.tuples(WORD, WORD, GOLD), min_size=1, max_size=25))
def test_added_votes_are_what_counting_them_one_by_one_gives(rows):
    pairs = {str(k): row for k, row in enumerate(rows)}
    judged = judge_pairs(check_pairwise(table(pairs)), "wrong")["a"]
    right = sum(by_adding(row[:2], row[2]) for row in rows)
    assert judged["votes_correct"] == pytest.approx(right / len(rows))
    assert judged["votes_correct"] >= judged["both_correct"] - 1e-12


@settings(max_examples=30)
@given(st.lists(st.tuples(WORD, WORD, WORD), min_size=1, max_size=25))
def test_swapping_the_answers_of_every_item_changes_nothing_but_names(rows):
    flip = {"first": "second", "second": "first"}
    given_ = {str(k): row for k, row in enumerate(rows)}
    swapped = {k: tuple(flip.get(word, word) for word in row) for k, row in given_.items()}
    one = judge_pairs(check_pairwise(table(given_)))["a"]
    other = judge_pairs(check_pairwise(table(swapped)))["a"]
    same = ("n", "invalid", "accuracy", "both_correct", "votes_correct", "position_agreement")
    for key in (*same, "position_p"):
        assert one[key] == pytest.approx(other[key], nan_ok=True)
    assert one["first_first"] == other["second_second"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "parquet"])
def test_command_reads_every_kind_and_writes_plain_json(tmp_path: Path, capsys, suffix):
    rows = pd.concat([table(HAND), table(HAND | {"3": ("tie", "first", "first")}, "b")])
    file, out = tmp_path / f"v.{suffix}", tmp_path / "deep" / "out.json"
    if suffix == "csv":
        rows.to_csv(file, index=False)
    elif suffix == "parquet":
        rows.to_parquet(file)
    else:
        rows.to_json(file, orient="records", lines=suffix == "jsonl")
    assert main([str(file), f"out={out}", "invalid=wrong"]) == 0
    printed = capsys.readouterr().out
    assert "invalid=wrong" in printed and "0.375" in printed
    found = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert found["options"]["invalid"] == "wrong" and set(found["judges"]) == {"a", "b"}
    assert found["judges"]["a"]["accuracy_order0"] == 0.375
    assert found["judges"]["a"]["repeat_stability"] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"order": "2"}, "row 3, column order"),
        ({"verdict": "third"}, "row 3, column verdict"),
        ({"repeat": "x"}, "row 3, column repeat"),
        ({"repeat": "0.5"}, "row 3, column repeat"),
        ({"item": " "}, "row 3, column item"),
        ({"item": "1"}, "repeats item '1'"),
        ({"gold": "first"}, "has more than one gold: first, second"),
    ],
)
def test_a_bad_cell_is_named_by_file_row_and_column(tmp_path: Path, change, said):
    rows = table(HAND).astype(str)
    for column, value in change.items():
        rows.loc[2, column] = value
    file = tmp_path / "v.csv"
    rows.to_csv(file, index=False)
    with pytest.raises(UserError) as error:
        check_pairwise(read_table(file))
    assert said in str(error.value) and str(file) in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs a word for file"),
        (["v.csv"], "needs out= (JSON file"),
        (["v.csv", "out=o.json", "invalid=maybe"], "exclude, wrong, half"),
        (["v.csv", "out=o.json", "seed=1"], "'seed=1' is not an option"),
        (["none.csv", "out=o.json"], "none.csv is not a file"),
    ],
)
def test_bad_commands_exit_2_with_what_to_type(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(HAND).to_csv("v.csv", index=False)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("v.jsonl", '{"item": 1}\n{"item": \n', "line 2 is not JSON"),
        ("v.jsonl", "[1, 2]", "record 1 is not a JSON object"),
        ("v.csv", "a,b\n1,2,3\n", "more cells"),
        ("v.csv", "", "cannot be read"),
        ("v.csv", "item,judge,order,repeat,verdict,gold\n", "no rows"),
        ("v.csv", "item,item\n1,2\n", "no column"),
        ("v.csv", "item,judge,order,verdict\n1,a,0,first\n", "no column repeat, gold"),
        ("v.json", "[]", "no column"),
        ("v.jsonl", "\n", "no column"),
        ("v.parquet", "text", "cannot be read as parquet"),
        ("v.xlsx", "text", "unknown kind"),
    ],
)
def test_a_damaged_file_is_a_sentence_not_a_traceback(tmp_path, capsys, name, text, said):
    (tmp_path / name).write_text(text)
    assert main([str(tmp_path / name), f"out={tmp_path / 'o.json'}"]) == 2
    told = capsys.readouterr().err
    assert said in told and str(tmp_path / name) in told and not (tmp_path / "o.json").exists()
