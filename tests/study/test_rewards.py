import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.config.schema import Judge, Overlong, Repetition, Reward, Study
from study.errors import UserError
from study.rewards.checks import check_reward, for_judge
from study.rewards.compose import RewardInputs, composed, recompose, recorded
from study.rewards.failure import POLICIES, TooManyMissing, apply_failure_policy
from study.rewards.formulas import REWARDS, Parts, overlong, repetition, rule_part
from study.rows import Criterion, Rule, make_row

SCORES = st.lists(st.none() | st.floats(0, 1), min_size=4, max_size=4)


@pytest.mark.parametrize(
    ("rules", "mean", "every"),
    [
        ((True, True), 1.0, 1.0), ((True, False, True, True), 0.75, 0.0), ((True, None), 1.0, None),
        ((False, None), 0.0, 0.0), ((None, None), None, None),
    ],
)  # fmt: skip
def test_rule_part(rules, mean, every):
    assert rule_part(rules, "mean") == mean
    assert rule_part(rules, "all") == every


HALF = (True, False)
MIXED = {"truth_weight": 0.25}
WEIGHED = {"weights": {"judge": 0.5, "rule": 0.25, "truth": 0.25}}
RUBRIC = {"judge": 0.25, "judge_points": 8.0}
POINTS = (2.0, -1.0)
DOMAINS = {"domains": {"math": "rule", "qa": "judge"}}


@pytest.mark.parametrize(
    ("name", "settings", "parts", "expected"),
    [
        ("judge", {}, {"judge": 0.2}, 0.2),
        ("judge", {}, {"truth": 1.0}, None),
        # a needed part that is missing makes the reward missing
        ("judge", MIXED, {"judge": 0.4, "truth": 0.8}, 0.75 * 0.4 + 0.25 * 0.8),
        ("judge", MIXED, {"truth": 0.8}, None),
        ("judge", MIXED, {"judge": 0.4}, None),
        ("judge", {"truth_weight": 1.0}, {"truth": 0.3}, 0.3),
        ("verif", {}, {"judge": 1.0, "rules": HALF}, 0.5),
        ("verif", {"rule_part": "all"}, {"judge": 1.0, "rules": HALF}, 0.0),
        ("verif", {}, {"judge": 0.5}, 0.5),  # no rules to run: nothing to break
        ("verif", {}, {"judge": None, "rules": (False,)}, None),
        ("verif", {}, {"judge": 0.0, "rules": (None,)}, None),
        ("rubric", {}, RUBRIC, 0.25),
        # 2 of 8 points from the judge, 2 of 2 and a lost penalty of 1 from code: (2 + 2) / 10
        ("rubric", {}, RUBRIC | {"rules": HALF, "rule_points": POINTS}, 0.4),
        ("rubric", {}, RUBRIC | {"rules": (True, True), "rule_points": POINTS}, 0.3),
        ("rubric", {}, RUBRIC | {"judge": None}, None),
        ("rubric", {}, RUBRIC | {"rules": (None,), "rule_points": (1.0,)}, None),
        # rules go before truth, and the judge never counts
        ("rule", {}, {"judge": 1.0, "truth": 0.3, "rules": (False,)}, 0.0),
        ("rule", {}, {"judge": 1.0, "truth": 0.3}, 0.3),
        ("rule", {}, {"judge": 1.0}, None),
        ("binary", {}, {"judge": 0.5}, 0.0),  # above the threshold
        ("binary", {}, {"judge": 0.51}, 1.0),
        ("binary", {}, {"judge": 0.0}, 0.0),
        ("binary", {}, {"judge": None}, None),
        ("hybrid", WEIGHED, {"judge": 0.4, "truth": 1.0, "rules": HALF}, 0.2 + 0.125 + 0.25),
        ("hybrid", WEIGHED, {"judge": 0.4, "truth": 1.0, "rules": ()}, None),
        ("hybrid", {"weights": {"judge": 1.0}}, {"judge": 0.4}, 0.4),
        ("by-domain", DOMAINS, {"judge": 0.25, "truth": 1.0, "domain": "qa"}, 0.25),
        ("by-domain", DOMAINS, {"judge": 0.25, "truth": 1.0, "domain": "math"}, 1.0),
        ("by-domain", DOMAINS, {"truth": 1.0, "domain": "math", "rules": (False,)}, 0.0),
        ("by-domain", DOMAINS, {"judge": 0.25, "truth": 1.0, "domain": "code"}, None),
        ("by-domain", DOMAINS, {"truth": 1.0, "domain": "qa"}, None),
        ("by-domain", DOMAINS, {"judge": 1.0, "domain": "math"}, None),
    ],
)
def test_a_reward_is_that_of_its_parts(name, settings, parts, expected):
    reward = REWARDS[name](Reward(**settings), Parts(**parts))
    assert reward == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("tokens", "expected"), [(50, 0.0), (60, 0.0), (80, -0.25), (100, -0.5), (120, -0.5)]
)
def test_overlong_falls_along_the_buffer(tokens, expected):
    assert overlong(Overlong(buffer=40, factor=0.5), tokens, 100) == pytest.approx(expected)


def test_repetition_counts_ngrams_that_came_before():
    # the cat sat | cat sat the | sat the cat | the cat sat: one of four is a repeat
    assert repetition(Repetition(2.0, 3), "The cat sat the cat sat") == pytest.approx(-0.5)
    assert repetition(Repetition(2.0, 3), "too short") == 0.0
    assert overlong(Overlong(), 10**6, 10) == repetition(Repetition(), "a a a a") == 0.0


ROW = make_row(({"role": "user", "content": "Write."},), (Criterion("Is kind."),))
RULED = dataclasses.replace(ROW, rules=(Rule("0:1", "Word", "Is short.", "..."),))
QA, MATH = (dataclasses.replace(ROW, domain=domain) for domain in ("qa", "math"))
BY_DOMAIN = Reward(name="by-domain", **DOMAINS)


@pytest.mark.parametrize(
    ("reward", "rows", "message"),
    [
        (Reward(name="rubric"), [ROW], "judge.grading.name=rubric_batch"),
        (Reward(name="hybrid"), [ROW], "names no part of reward=hybrid"),
        (Reward(name="hybrid", weights={"judges": 1.0}), [ROW], "Legal are judge, rule, truth"),
        (Reward(overlong=Overlong(buffer=101)), [ROW], "trainer.max_completion_length=100"),
        (Reward(rules="run"), [ROW], "no row of the task has one"),
        (Reward(name="rule", rules="ignore"), [RULED], "reward.rules is ignore"),
        (Reward(name="rule", rules="run"), [RULED, ROW], "1 of 2 rows have no rule"),
        (Reward(name="by-domain"), [QA, MATH], "reward.domains.math=rule reward.domains.qa=rule"),
        (Reward(name="by-domain"), [QA], "needs reward.domains, which is empty"),
        (BY_DOMAIN, [ROW], "the rows of the task have no domain"),
        (BY_DOMAIN, [QA, ROW], "some rows of the task have no domain"),
        (BY_DOMAIN, [QA], "reward.domains names math, but the task's domains are qa."),
        (Reward(name="by-domain", domains={"qa": "judge"}), [QA, MATH], "a reward and math none"),
        (Reward(domains={"qa": "rule"}), [QA], "Type reward=by-domain"),
    ],
)
def test_rewards_that_cannot_be_had_are_user_errors(reward, rows, message):
    with pytest.raises(UserError, match=re.escape(message)):
        check_reward(reward, Judge(), rows, 100)


def test_good_rewards_pass_and_domains_that_no_sampled_row_shows_need_one():
    check_reward(Reward(name="verif", rules="run"), Judge(), [RULED, ROW], 100)
    check_reward(Reward(name="rule"), Judge(), [ROW], 100)
    assert for_judge(RULED, "run") is RULED and for_judge(RULED, "ignore") is RULED
    assert [item.text for item in for_judge(RULED, "judge").criteria] == ["Is kind.", "Is short."]
    check_reward(BY_DOMAIN, Judge(), [QA, MATH], 100, ["math", "qa"])
    with pytest.raises(UserError, match="math, qa a reward and code none"):
        check_reward(BY_DOMAIN, Judge(), [QA, MATH], 100, ["math", "qa", "code"])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("unscored", [1.0, None, 0.5, 0.0]),
        ("zero", [1.0, 0.0, 0.5, 0.0]),
        ("drop_group", [None, None, 0.5, 0.0]),
    ],
)
def test_failure_policies(policy, expected):
    assert apply_failure_policy([1.0, None, 0.5, 0.0], 2, policy, 1.0) == expected


def test_failures_stop_the_run_where_too_many_count_together() -> None:
    with pytest.raises(TooManyMissing, match="1 of 2"):
        apply_failure_policy([1.0, None], 2, "abort", 1.0)
    with pytest.raises(TooManyMissing, match=r"max_unscored_frac=0\.4"):
        apply_failure_policy([1.0, None], 2, "unscored", 0.4)
    assert apply_failure_policy([1.0, None], 2, "unscored", 0.5) == [1.0, None]
    config, scores = Study(reward=Reward(truth_weight=1.0)), [None, 0.5, 0.5, 0.5]
    with pytest.raises(TooManyMissing, match=r"2 of 4 verdicts or rule truths.*0\.25"):
        composed(config, lost(1), scores, 2, "unscored", 0.25)
    assert len(composed(config, lost(0), scores, 2, "unscored", 0.25)) == 4  # of one rollout


@given(SCORES, st.sampled_from([p for p in POLICIES if p != "abort"]))
def test_only_zero_turns_a_missing_verdict_into_a_number(scores, policy):
    for before, after in zip(scores, apply_failure_policy(scores, 2, policy, 1.0), strict=True):
        if before is None:
            assert after == (0.0 if policy == "zero" else None)
        elif after is not None:
            assert after == before


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("unscored", [0.5, None, 0.0, 1.0]),
        ("zero", [0.5, 0.0, 0.0, 1.0]),
        ("drop_group", [None, None, 0.0, 1.0]),
        ("abort", [0.5, None, 0.0, 1.0]),
    ],
)
def test_recorded_rollouts_are_rewarded_as_training_would_have(policy, expected):
    """A product of judge and rules: half of the rules hold, then none ran, one fails, one holds."""
    config = Study(reward=Reward(name="verif", rules="run"))
    inputs = [
        recorded(config, RULED, {"answer": "a", "tokens": 1, "truth": None, "rules": rules})
        for rules in (["0:1 passed", "0:2 failed"], None, ["0:1 failed"], ["0:1 passed vacuous"])
    ]
    scores = [1.0, None, 1.0, 1.0]
    assert recompose(config, inputs, scores, 2, policy) == expected
    if policy == "abort":
        with pytest.raises(TooManyMissing):
            composed(config, inputs, scores, 2, policy)


def test_a_record_without_an_answer_is_asked_as_an_empty_one():
    config = Study(reward=Reward(rules="judge", repetition=Repetition(1.0, 1)))
    one = recorded(config, RULED, {"answer": None, "tokens": 3, "truth": 0.5})
    row, answer = one.item
    assert answer == "" and len(row.criteria) == 2 and one.row is RULED
    ((reward, terms),) = composed(config, [one], [0.75], 1, "unscored")
    assert reward == 0.75
    assert terms == {"judge": 0.75, "truth": 0.5, "repetition": 0.0}


LOST = "the grader is gone"


def lost(*members: int, truth: float = 1.0, rules: tuple[bool, ...] = ()) -> list[RewardInputs]:
    """Four rollouts in two groups; those members have no truth."""
    return [
        RewardInputs(
            ROW, ROW, "x", 1, None if member in members else truth, rules,
            LOST if member in members else None,
        )
        for member in range(4)
    ]  # fmt: skip


def paid(reward: Reward, inputs: list[RewardInputs], policy: str, most: float = 1.0):
    config = Study(reward=reward)
    return [value for value, _ in composed(config, inputs, [0.5] * 4, 2, policy, most)]


@pytest.mark.parametrize(
    "reward",
    [Reward(name="rule"), Reward(truth_weight=1.0), Reward(name="hybrid", weights={"truth": 1.0})],
)
def test_a_truth_that_could_not_be_had_is_treated_as_a_missing_verdict(reward: Reward) -> None:
    assert paid(reward, lost(1), "unscored") == [1.0, None, 1.0, 1.0]
    assert paid(reward, lost(1), "zero") == [1.0, 0.0, 1.0, 1.0]
    assert paid(reward, lost(1), "drop_group") == [None, None, 1.0, 1.0]
    assert paid(reward, lost(0, 1, 2, 3), "zero") == [0.0] * 4
    with pytest.raises(TooManyMissing, match=f"1 of 4 rule truths are missing.*{LOST}"):
        paid(reward, lost(1), "abort")
    with pytest.raises(TooManyMissing, match=r"2 of 4 rule truths of this step.*0\.25"):
        paid(reward, lost(1, 2), "unscored", 0.25)


def test_what_was_missing_on_record_and_where_no_rule_can_tell() -> None:
    record = {"answer": "x", "tokens": 1, "truth": None, "rules": None}
    again = [recorded(Study(), ROW, record | {"truth_missing": why}) for why in (LOST, None)]
    assert [rollout.truth_missing for rollout in again] == [LOST, None]
    assert recorded(Study(), ROW, record).truth_missing is None  # of an earlier version
    assert recompose(Study(reward=Reward(name="rule")), again, [0.5, 0.5], 2, "zero") == [0.0, None]
    none = [dataclasses.replace(rollout, truth=None) for rollout in lost()]
    for policy in ("zero", "drop_group", "abort"):
        assert paid(Reward(name="rule"), none, policy, 0.0) == [None] * 4
    for policy in ("zero", "drop_group", "abort"):
        assert paid(Reward(), lost(0, 1, 2, 3), policy, 0.0) == [0.5] * 4
        ruled = lost(0, 1, 2, 3, rules=(True,))
        assert paid(Reward(name="rule", rules="run"), ruled, policy, 0.0) == [1.0] * 4


def of(domain: str, **parts: Any) -> RewardInputs:
    row = dataclasses.replace(ROW, domain=domain)
    return RewardInputs(row, row, "x", 1, **({"truth": 1.0, "rules": ()} | parts))


@given(SCORES, st.lists(st.none() | st.sampled_from([0.0, 1.0]), min_size=4, max_size=4))
def test_a_domain_of_its_own_is_paid_as_if_it_were_alone(scores, truths):
    """Against the rewards of the two halves under reward=judge and reward=rule."""
    truth_fields = [
        {"truth": truth, "truth_missing": LOST if truth is None else None} for truth in truths
    ]
    qa = [of("qa", **each) for each in truth_fields]
    maths = [of("math", **each) for each in truth_fields]
    for policy in ("unscored", "zero", "drop_group"):
        both = [*qa[:2], *maths[:2], *qa[2:], *maths[2:]]
        verdicts = [*scores[:2], *scores[:2], *scores[2:], *scores[2:]]
        paid_N = recompose(Study(reward=BY_DOMAIN), both, verdicts, 2, policy)
        by_judge = recompose(Study(reward=Reward()), qa, scores, 2, policy)
        by_rule = recompose(Study(reward=Reward(name="rule")), maths, scores, 2, policy)
        assert paid_N == [*by_judge[:2], *by_rule[:2], *by_judge[2:], *by_rule[2:]]


def test_a_verdict_that_the_rule_does_not_need_is_not_missed():
    rollouts = [of("math"), of("math"), of("qa"), of("qa")]
    config = Study(reward=BY_DOMAIN)
    scores = [None, None, 0.5, 0.25]
    for policy in POLICIES:
        rewards = composed(config, rollouts, scores, 2, policy, 0.0)
        assert [reward for reward, _ in rewards] == [1.0, 1.0, 0.5, 0.25]
        assert [terms["judge"] for _, terms in rewards] == scores  # and no score is made up
    lacking = [0.5, None, 0.5, None]
    assert recompose(config, rollouts, lacking, 2, "zero") == [1.0, 1.0, 0.5, 0.0]
    assert recompose(config, rollouts, lacking, 2, "drop_group") == [1.0, 1.0, None, None]
    with pytest.raises(TooManyMissing, match="1 of 2 verdicts are missing"):
        composed(config, rollouts, lacking, 2, "abort")
    with pytest.raises(TooManyMissing, match=r"1 of 2 verdicts of this step.*0\.25"):
        composed(config, rollouts, lacking, 2, "unscored", 0.25)


def test_a_truth_that_the_judge_does_not_need_is_not_missed():
    gone = {"truth": None, "truth_missing": LOST}
    config = Study(reward=BY_DOMAIN)
    rollouts = [of("math"), of("math"), of("qa", **gone), of("qa", **gone)]
    for policy in POLICIES:
        rewards = composed(config, rollouts, [0.5] * 4, 2, policy, 0.0)
        assert [reward for reward, _ in rewards] == [1.0, 1.0, 0.5, 0.5]
    rollouts[1] = of("math", **gone)
    assert recompose(config, rollouts, [0.5] * 4, 2, "unscored") == [1.0, None, 0.5, 0.5]
    with pytest.raises(TooManyMissing, match=f"1 of 2 rule truths.*{LOST}"):
        composed(config, rollouts, [0.5] * 4, 2, "abort")
