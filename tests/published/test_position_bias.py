"""Position consistency of nine judges on MT-Bench and DevBench, in all 54 published cells.

The publishers' rule: a verdict is consistent when its swapped partner names the same model (or
both are ties); a verdict whose partner could not be parsed counts as consistent with itself.
"""

import pandas as pd
import pytest

from analysis.external.pairwise import check_pairwise, judge_pairs

CELL = ["set", "rep", "judge"]


@pytest.fixture(scope="module")
def verdicts(published) -> pd.DataFrame:
    """A pairwise table with the columns set and rep; ``first`` is first by the alphabet."""
    raw = pd.read_parquet(published("position_bias", "verdicts_repeated.parquet"))
    first = raw[["A", "B"]].min(axis=1)
    second = raw[["A", "B"]].max(axis=1)
    swapped = raw["A"] != first
    shown = raw["extracted"].map({"A": "first", "B": "second", "C": "tie"})
    back = shown.map({"first": "second", "second": "first", "tie": "tie"})
    question = raw["cmp_index"].str.split(";").str[0]
    return pd.DataFrame(
        {
            "item": question + ";" + first + ";" + second,
            "judge": raw["judge"],
            "order": swapped.astype(int),
            "repeat": raw["rep"],
            "verdict": shown.where(~swapped, back),
            "gold": "",
            "set": raw["set"],
            "rep": raw["rep"],
        }
    )


def test_every_published_consistency_cell(published, verdicts):
    table = pd.read_csv(published("position_bias", "consistency_published.csv"))
    cells = table.dropna(subset="rep").set_index(CELL)
    assert len(cells) == 54
    for key, part in verdicts.groupby(CELL):
        (found,) = judge_pairs(check_pairwise(part)).values()
        agreeing = round(found["position_agreement"] * found["pairs"])
        alone = found["n"] - 2 * found["pairs"]
        cell = cells.loc[key]
        assert (2 * agreeing + alone, found["n"]) == (cell["consistent"], cell["of"])
        assert 100 * cell["consistent"] / cell["of"] == pytest.approx(cell["rate"], abs=0.005)
    assert set(cells.index) == set(verdicts.groupby(CELL).size().index)


def test_repetition_stability_on_mt_bench(verdicts):
    found = judge_pairs(check_pairwise(verdicts[verdicts["set"] == "MTBench_repetition"]))
    stability = {name: round(one["repeat_stability"], 3) for name, one in found.items()}
    published = {"gpt-4-0613": 0.967, "gpt-3.5-turbo-1106": 0.963, "gemini-pro": 0.895}
    assert {name: stability[name] for name in published} == published
    assert stability["claude-3-opus-20240229"] == 0.953


def test_a_judge_that_leans_to_one_place_is_told_from_one_that_is_only_unsteady(verdicts):
    leaning = judge_pairs(check_pairwise(verdicts[verdicts["set"] == "DevBench_repetition"]))
    haiku = leaning["claude-3-haiku-20240307"]
    # of the pairs that it judges both ways, all but two go to the answer shown second
    assert (haiku["first_first"], haiku["second_second"]) == (2, 174)
    assert haiku["position_p_items"] < 1e-20
    steady = judge_pairs(check_pairwise(verdicts[verdicts["set"] == "MTBench_repetition"]))
    gpt = steady["gpt-4-0613"]
    assert (gpt["first_first"], gpt["second_second"]) == (12, 8)
    assert gpt["position_agreement"] < 0.9 and gpt["position_p_items"] > 0.05
