"""AlpacaEval 2: win rates, standard errors and length-controlled rates as the leaderboard has them.

The rules: a preference of 0 counts as a tie (1.5); a length-controlled rate is the mean over the
instructions of sigmoid(weight of the model + weight of difficulty * difficulty).
"""

import numpy as np
import pandas as pd
import pytest

from analysis.external.importers import alpaca_eval
from analysis.external.pairwise import check_pairwise, judge_pairs
from tests.published.alpaca_rates import (
    alpaca_win_rates,
    length_controlled_rate,
    length_controlled_refit,
)

JUDGE = "weighted_alpaca_eval_gpt4_turbo"
CUT = (
    "gpt35_turbo_instruct", "llama-2-70b-chat-hf", "minotaur-13b", "platolm-7b",
    "text_davinci_001", "alpaca-7b_verbose", "alpaca-7b_concise", "phi-2",
)  # fmt: skip
"""Models with n < 805 annotations whose published rate is over the first n instructions."""
OTHER_WEIGHTS = {"NullModel": 0.1328, "dbrx-instruct": 0.1901}
"""How far below the leaderboard the published weights of these two put them, in points."""


@pytest.fixture(scope="module")
def leaderboard(published) -> pd.DataFrame:
    return pd.read_csv(published("alpaca_eval", "leaderboard_v2.csv"), index_col=0)


@pytest.fixture(scope="module")
def annotations(published) -> pd.DataFrame:
    return alpaca_eval(published("alpaca_eval", "annotations_58_models.parquet"), JUDGE)


def test_win_rates_errors_and_counts_of_every_model_given(annotations, leaderboard):
    assert len(annotations) == 46_680 and annotations["model"].nunique() == 58
    rates = alpaca_win_rates(annotations).droplevel("judge")
    # one of the 58 has no line on this leaderboard
    assert set(rates.index) - set(leaderboard.index) == {"text_davinci_003"}
    rates = rates.drop(index="text_davinci_003")
    theirs = leaderboard.loc[rates.index]
    for name in ("win_rate", "standard_error"):
        np.testing.assert_allclose(rates[name], theirs[name], rtol=0, atol=1e-6, err_msg=name)
    for mine, name in (("wins", "n_wins"), ("losses", "n_wins_base"), ("draws", "n_draws")):
        assert rates[mine].tolist() == theirs[name].tolist()
    assert rates["n"].tolist() == theirs["n_total"].tolist()


def test_length_controlled_rates_from_the_published_weights(published, leaderboard):
    weights = pd.read_csv(published("alpaca_eval", "lc_glm_weights.csv"), index_col=0)
    weights = weights.loc[weights.index.intersection(leaderboard.index)]
    given = pd.read_parquet(published("alpaca_eval", "instructions_and_baseline.parquet"))
    difficulty = given.sort_values("index")["instruction_difficulty"].to_numpy()
    assert (len(weights), len(difficulty)) == (199, 805)
    off = {}
    for model, row in weights.iterrows():
        kept = int(leaderboard.loc[model, "n_total"]) if model in CUT else len(difficulty)
        found = length_controlled_rate(
            row["not_gamed_baseline.astype(float)"],
            row["instruction_difficulty"],
            difficulty[:kept],
        )
        off[model] = leaderboard.loc[model, "length_controlled_winrate"] - found
    assert {name: round(off.pop(name), 4) for name in OTHER_WEIGHTS} == OTHER_WEIGHTS
    assert len(off) == 197 and max(map(abs, off.values())) < 1e-6


def test_length_control_fitted_from_the_annotations_is_near_the_published_one(
    published, annotations, leaderboard
):
    raw = pd.read_parquet(published("alpaca_eval", "annotations_58_models.parquet"))
    given = pd.read_parquet(published("alpaca_eval", "instructions_and_baseline.parquet"))
    given = given.set_index("index").add_prefix("base_")
    rows = raw.join(given, on="index").assign(
        share=annotations["preference"].mask(annotations["preference"] == 0, 1.5) - 1
    )
    theirs = leaderboard["length_controlled_winrate"].dropna()
    found = {
        model: length_controlled_refit(
            part["share"], part["base_chars"] - part["chars"], part["base_instruction_difficulty"]
        )
        for model, part in rows.groupby("model")
        if model in theirs.index
    }
    assert np.isnan(found.pop("gpt4_1106_preview"))  # the baseline against itself: equal lengths
    mine = pd.Series(found)
    theirs = theirs[mine.index]
    assert len(mine) == 56
    assert mine.corr(theirs) == pytest.approx(0.992, abs=5e-4)
    assert mine.corr(theirs, method="spearman") == pytest.approx(0.978, abs=5e-4)
    assert (mine - theirs).abs().mean() == pytest.approx(1.5, abs=0.05)
    # gaming shows: only the published fit has rows against it
    assert mine["gpt4_gamed"] == pytest.approx(25.4, abs=0.05)
    assert theirs["gpt4_gamed"] == pytest.approx(12.2, abs=0.05)


def test_annotations_are_a_pairwise_table_without_gold_and_with_one_order(annotations):
    model = annotations[annotations["model"] == "NullModel"]
    found = judge_pairs(check_pairwise(model))[JUDGE]
    assert (found["n"], found["invalid"], found["pairs"]) == (805, 0, 0)
    assert np.isnan(found["accuracy"]) and np.isnan(found["position_p"])
    assert (model["verdict"] == "second").mean() == pytest.approx(676 / 805)


def test_other_judges_annotations_are_read_with_their_ties(published):
    found = alpaca_eval(published("alpaca_eval", "annotations_other_judges.parquet"))
    rates = alpaca_win_rates(found)
    assert rates.index.get_level_values("judge").nunique() == 4
    # 60,375 rows, of which 64 could not be parsed: they are in no rate
    assert rates["n"].sum() == 60_311 and (found["verdict"] == "").sum() == 64
    assert (rates[["wins", "losses", "draws"]].sum(axis=1) == rates["n"]).all()
