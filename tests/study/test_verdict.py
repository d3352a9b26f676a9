"""A score exists exactly where the outcome says so."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.verdict import Outcome, Parsed, Verdict

WHO = {"judge_id": "a", "judge": "b", "grading": "likert", "grading_version": "1"}


def verdict(**changes):
    return Verdict(**WHO, prompt_sha="c", **changes)


@given(st.sampled_from(Outcome), st.none() | st.floats(allow_nan=True, allow_infinity=True))
def test_a_finite_score_if_and_only_if_scored(outcome, score):
    legal = (outcome == "scored") == (score is not None and math.isfinite(score))
    legal = legal and not (outcome != "scored" and score is not None)
    for build in (
        lambda: verdict(outcome=outcome, score=score),
        lambda: Parsed(outcome, (), score),
    ):
        if legal:
            assert build().score == score
        else:
            with pytest.raises(ValueError):
                build()


def test_a_label_is_one_of_three_and_no_verdict_is_edited():
    assert verdict(outcome=Outcome.unparsed, labels=("met", "unknown", "not_met")).labels
    with pytest.raises(ValueError, match="'yes'"):
        verdict(outcome=Outcome.unparsed, labels=("yes",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict(outcome=Outcome.timeout).score = 0.0


def test_the_row_is_plain_and_holds_every_field():
    row = verdict(outcome=Outcome.scored, score=0.0, labels=("met",)).as_row()
    assert set(row) == {field.name for field in dataclasses.fields(Verdict)}
    assert row["labels"] == ["met"] and type(row["outcome"]) is str
    assert json.loads(json.dumps(row)) == row
    back = Verdict(**row | {"labels": tuple(row["labels"]), "outcome": Outcome(row["outcome"])})
    assert back.as_row() == row
