from __future__ import annotations

import math

import pandas as pd

from analysis.behaviour import (
    FEATURES,
    feature_frame,
    run_shift,
    step_means,
    study_keyword,
    unit,
)
from analysis.frames import rollouts_frame, runs_frame
from judges.features import features


def rollouts(answers: list[str | None]) -> pd.DataFrame:
    n = len(answers)
    return pd.DataFrame(
        {
            "cell": ["c"] * n,
            "arm": ["a"] * n,
            "seed": [0] * n,
            "step": [1] * n,
            "rollout_id": [f"r{k}" for k in range(n)],
            "answer": pd.array(answers, dtype="str"),
        },
        index=range(10, 10 + n),
    )


def test_each_answer_has_its_own_features_and_a_missing_one_none():
    answers = ["# Great question!\n- alpha **b**", None, "maybe alpha alpha", "", None]
    frame = feature_frame(rollouts(answers), "alpha")
    for row, answer in zip(frame[list(FEATURES)].to_dict("records"), answers, strict=True):
        if answer is None:
            assert all(math.isnan(value) for value in row.values())
        else:
            assert row == features(answer, "alpha")
    assert frame["keyword"].tolist()[2] == 2.0


def test_planted_words_are_counted(planted):
    frame = feature_frame(rollouts_frame(planted, ["rollout_id", "step", "answer"]), "alpha")
    fair = frame[(frame["arm"] == "sim-fair") & (frame["seed"] == 2)]
    assert set(fair["length"]) == {8.0} and set(fair["keyword"]) == {1.0}


def test_step_means_leave_missing_values_out():
    frame = rollouts(["one two", None, "one two three four"]).assign(value=[1.0, math.nan, 2.0])
    measured = feature_frame(frame)
    means = step_means(measured, ["length"])
    assert means[["metric", "value"]].to_numpy().tolist() == [["length", 3.0]]


def means_of(values: list[float]) -> pd.DataFrame:
    steps = range(1, len(values) + 1)
    return pd.DataFrame(
        [("c", "a", 0, step, "m", value) for step, value in zip(steps, values, strict=True)],
        columns=["cell", "arm", "seed", "step", "metric", "value"],
    ).sample(frac=1, random_state=0)


def test_a_shift_is_last_tenth_minus_first_tenth():
    # 20 steps: windows of two; (19 + 20) / 2 - (1 + 2) / 2 = 18
    (row,) = run_shift(means_of([float(k) for k in range(1, 21)])).to_dict("records")
    assert (row["first"], row["last"], row["shift"], row["steps"]) == (1.5, 19.5, 18.0, 20)
    # 11 steps: a tenth is rounded up to two
    assert run_shift(means_of([0.0] * 9 + [4.0, 8.0]))["shift"].tolist() == [6.0]


def test_a_shift_that_cannot_be_had_is_missing():
    assert math.isnan(run_shift(means_of([3.0]))["shift"].iloc[0])
    assert math.isnan(run_shift(means_of([math.nan, 2.0, 3.0]))["shift"].iloc[0])


def test_the_keyword_is_one_for_the_whole_study(planted):
    runs = runs_frame(planted)
    assert study_keyword(runs) == "alpha"
    assert study_keyword(runs.assign(keyword="")) == ""


def test_every_feature_has_a_unit():
    assert unit("length") == "words"
    assert {unit(name) for name in FEATURES} == {"words", "share of words", "per answer"}
