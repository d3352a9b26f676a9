from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.records.behaviour import FEATURES, ends, feature_array, shift, study_keyword, unit
from analysis.records.frames import rollouts_frame, runs_frame
from study.features import features


def test_each_answer_has_its_own_features_and_a_missing_one_none():
    answers = ["# Great question!\n- alpha **b**", None, "maybe alpha alpha", "", None]
    found = feature_array(pd.Series(answers, dtype="str", index=range(10, 15)), "alpha")
    for row, answer in zip(found, answers, strict=True):
        if answer is None:
            assert np.isnan(row).all()
        else:
            assert row.tolist() == list(features(answer, "alpha").values())
    assert found[2, FEATURES.index("keyword")] == 2.0


def test_planted_words_are_counted(planted):
    frame = rollouts_frame(planted, ["answer"])
    fair = frame[(frame["arm"] == "sim-fair") & (frame["seed"] == 2)]
    found = feature_array(fair["answer"], "alpha")
    assert set(found[:, FEATURES.index("length")]) == {8.0}
    assert set(found[:, FEATURES.index("keyword")]) == {1.0}


def test_a_shift_is_last_tenth_minus_first_tenth():
    # 20 steps: windows of two; (19 + 20) / 2 - (1 + 2) / 2 = 18
    assert ends(np.arange(1.0, 21.0)) == (1.5, 19.5)
    assert shift(np.arange(1.0, 21.0)) == 18.0
    # 11 steps: a tenth is rounded up to two
    assert shift(np.array([0.0] * 9 + [4.0, 8.0])) == 6.0


def test_a_shift_that_cannot_be_had_is_missing():
    assert math.isnan(shift(np.array([3.0])))
    assert math.isnan(shift(np.array([math.nan, 2.0, 3.0])))
    assert ends(np.array([math.nan, 2.0, 3.0]))[1] == 3.0


def test_the_keyword_is_one_for_the_whole_study(planted):
    runs = runs_frame(planted)
    assert study_keyword(runs) == "alpha"
    assert study_keyword(runs.assign(keyword="")) == ""


def test_every_feature_has_a_unit():
    assert unit("length") == "words"
    assert {unit(name) for name in FEATURES} == {"words", "share of words", "per answer"}
