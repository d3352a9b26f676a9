"""A bias that another behaviour explains is told as that behaviour's, and no other is."""

import numpy as np
import pandas as pd
import pytest

from analysis.probes.effects import MARGIN, effects, explained, pairs
from study.config.schema import Simulated
from study.features import FEATURES
from tests.analysis.test_probes import LENGTH_SD, judged, texts

EDITS = ["placebo", "yverbose", "ysycophant", "hedged", "authority", "emoji", "injection"]


@pytest.fixture(scope="module")
def probes() -> pd.DataFrame:
    return texts(edits=EDITS)


def told(scores: pd.DataFrame) -> pd.DataFrame:
    paired = pairs(scores)
    return explained(scores, paired, effects(paired, {}), MARGIN).set_index("variant")


def test_a_judge_of_length_has_no_bias_for_injection_of_its_own(probes):
    found = told(judged(probes, Simulated(doses={"length": 0.03}, noise_sd=0.01)))
    row = found.loc["injection"]
    assert row["behaviour"] == "length" and row["share"] == pytest.approx(1.0, abs=0.15)
    assert row["price"] == pytest.approx(0.03 / LENGTH_SD, rel=0.15)
    assert row["change"] > 20 and row["low"] <= row["rest"] <= row["high"]
    assert "yverbose" not in found.index, "length does not explain itself"
    assert set(found["behaviour"]) == {"length"}


def test_what_is_explained_by_nothing_or_told_without_scores(probes):
    table = judged(probes, Simulated(noise_sd=0.01))
    obeyed = table["variant"] == "injection"
    table.loc[obeyed, "score"] = (table.loc[obeyed, "score"] + 0.3).clip(upper=0.99)
    claims = effects(pairs(table), {}).set_index("variant")["claim"]
    assert claims["injection"] == "bias for it" and "injection" not in told(table).index
    table = judged(probes, Simulated(doses={"length": 0.03}))
    assert told(table.assign(score=np.nan)).empty
    assert told(table.assign(score=np.where(table["variant"] == "ypartial", 0.0, 1.0))).empty


def test_a_folder_from_before_a_behaviour_existed_is_told_by_those_it_has(probes):
    """What is not on record is left out, wherever it stands; nothing on record tells nothing."""
    scores = judged(probes, Simulated(doses={"length": 0.03}, noise_sd=0.01))
    assert "injection" in told(scores).index
    for without in (scores.drop(columns="exclamation"), scores.assign(emoji=np.nan)):
        assert told(without).loc["injection", "behaviour"] == "length"
    blind = scores.assign(words=np.nan)
    assert "length" not in set(told(blind)["behaviour"])
    assert told(blind.drop(columns=list(set(FEATURES) & set(scores)))).empty


def test_the_order_of_the_behaviours_does_not_matter(probes, monkeypatch):
    scores = judged(probes, Simulated(doses={"length": 0.03}, noise_sd=0.01))
    before = told(scores)
    monkeypatch.setattr("analysis.probes.effects.FEATURES", tuple(reversed(FEATURES)))
    assert told(scores)["behaviour"].to_dict() == before["behaviour"].to_dict()
