"""Rewards of whole groups on the trainer's way: executed programs beside failures and replays."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.config.schema import Repetition, Reward, Study
from study.programs.rewards import FORMULAS, OK, SHARES, ExecutedProgram, total
from study.rewards.compose import RewardInputs, composed, recompose, recorded
from study.rewards.failure import TooManyMissing
from study.rows import Criterion, make_row

ROW = make_row(({"role": "user", "content": "Add."},), (Criterion("Is right."),))
GOOD = ExecutedProgram(OK, efficiency=0.5, simplicity=0.5, format=1.0, repetition=0.0)


def rollout(truth=1.0, played=GOOD, missing=None):
    return RewardInputs(ROW, ROW, "3", 5, truth, (), missing, played)


def config(name="workflow-gated", source="judge", **settings):
    return Study(reward=Reward(name=name, source=source, **settings))


INVALID, MASKED = ExecutedProgram("timeout"), ExecutedProgram("operator_error")


def test_the_three_states():
    inputs = [rollout(), rollout(), rollout(played=INVALID), rollout(played=MASKED)]
    rewards = composed(config(), inputs, [1.0, 0.0, None, None], 4, "unscored", 0.0)
    assert [reward for reward, _ in rewards] == [1.0, 0.05, 0.0, None]
    terms = rewards[0][1]
    assert terms["judge"] == terms["truth"] == terms["workflow_correct"] == 1.0
    assert rewards[3][1]["workflow_correct"] is None


def test_shares_and_policies_concern_asked_verdicts_alone():
    inputs = [rollout(), rollout(), rollout(played=INVALID), rollout(played=MASKED)]
    scores = [1.0, None, None, None]
    with pytest.raises(TooManyMissing, match="1 of 2 verdicts"):
        composed(config(), inputs, scores, 4, "unscored", 0.4)
    with pytest.raises(TooManyMissing, match="1 of 2 verdicts"):
        composed(config(), inputs, scores, 4, "abort")
    assert recompose(config(), inputs, scores, 4, "unscored") == [1.0, None, 0.0, None]
    assert recompose(config(), inputs, scores, 4, "zero") == [1.0, 0.05, 0.0, None]
    assert recompose(config(), inputs, scores, 4, "drop_group") == [None] * 4
    both = recompose(config(), inputs + inputs, [*scores, 1.0, 0.0, None, None], 4, "drop_group")
    assert both == [None] * 4 + [1.0, 0.05, 0.0, None]


def test_a_missing_truth_counts_where_the_source_is_the_rule():
    inputs = [rollout(), rollout(truth=None, missing="the grader is gone")]
    with pytest.raises(TooManyMissing, match="1 of 2 rule truths"):
        composed(config(source="rule"), inputs, [None, None], 2, "unscored", 0.4)
    assert recompose(config(source="rule"), inputs, [None, 1.0], 2, "unscored") == [1.0, None]
    assert recompose(config(source="rule-first"), inputs, [0.0, 1.0], 2, "unscored") == [1.0, 1.0]
    assert recompose(config(source="judge"), inputs, [1.0, 0.0], 2, "drop_group") == [1.0, 0.05]


@given(
    st.lists(
        st.tuples(
            st.builds(
                ExecutedProgram,
                outcome=st.sampled_from([OK, OK, OK, "timeout", "sandbox_error"]),
                efficiency=st.floats(0, 1),
                simplicity=st.floats(0, 1),
                format=st.floats(0, 1),
                repetition=st.floats(0, 1),
            ),
            st.none() | st.floats(0, 1),
            st.none() | st.floats(0, 1),
        ),
        min_size=6,
        max_size=6,
    ),
    st.sampled_from(sorted(FORMULAS)),
)
def test_the_trainer_and_its_records_pay_what_the_formula_says(rollouts, name):
    """Two groups of three; a replay of the records makes the same rewards."""
    settings = config(name, repetition=Repetition(1.0, 1))
    inputs = [rollout(truth, played) for played, _, truth in rollouts]
    scores = [score for _, score, _ in rollouts]
    rewards = [reward for reward, _ in composed(settings, inputs, scores, 3, "unscored")]
    expected = []
    for group in (rollouts[:3], rollouts[3:]):
        judged = [
            replace(played, correct=score, judge=score, rule=truth)
            for played, score, truth in group
        ]
        expected += [total(terms) for terms in FORMULAS[name](judged)]
    assert rewards == expected
    records = [
        {"answer": "3", "tokens": 5, "truth": truth, "outcome": played.outcome}
        | {f"feature/{share}": getattr(played, share) for share in SHARES}
        for played, _, truth in rollouts
    ]
    again = [recorded(settings, ROW, record) for record in records]
    assert recompose(settings, again, scores, 3, "unscored") == rewards
