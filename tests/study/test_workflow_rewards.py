"""Rewards of executed programs: the order they keep, against a second writing of each formula."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from study.programs.rewards import (
    FORMULAS,
    INFRASTRUCTURE,
    OK,
    OUTCOMES,
    ExecutedProgram,
    agreement,
    by_source,
    effective_share,
    gated,
    places,
    seed_additive,
    total,
)

SHARE = st.floats(0, 1)
PLAYED = st.builds(
    ExecutedProgram,
    outcome=st.sampled_from((*OUTCOMES, *[OK] * 12)),
    correct=st.none() | SHARE | st.sampled_from([0.0, 0.5, 1.0]),
    efficiency=st.sampled_from([0.0, 0.3, 1.0]) | SHARE,
    simplicity=SHARE,
    format=SHARE,
    repetition=SHARE,
    judge=st.none() | SHARE,
    rule=st.none() | SHARE,
)
GROUP = st.lists(PLAYED, min_size=1, max_size=9)


def paid(formula, group):
    return [total(terms) for terms in formula(group)]


def kind(rollout):
    """masked, invalid, unknown, wrong or right."""
    if rollout.outcome in INFRASTRUCTURE:
        return "masked"
    if rollout.outcome != OK:
        return "invalid"
    if rollout.correct is None:
        return "unknown"
    return "right" if rollout.correct > 0.5 else "wrong"


def place(value, all_values):
    """Average rank of the best first, by counting: half of those that tie stand before it."""
    better = sum(other < value for other in all_values)
    ties = sum(other == value for other in all_values) - 1
    return better + ties / 2


def gated_by_hand(group):
    kinds = [kind(rollout) for rollout in group]
    right = [rollout for rollout in group if kind(rollout) == "right"]
    flat = set(kinds) <= {"right", "masked", "unknown"}
    rewards = []
    for rollout, name in zip(group, kinds, strict=True):
        if name in ("masked", "unknown"):
            rewards.append(None)
        elif name != "right":
            rewards.append(0.0 if name == "invalid" else 0.025 * (1 + rollout.format))
        elif flat or len(right) == 1:
            rewards.append(1.0)
        else:
            lost = 0.0
            for weight, key, sign in (
                (0.10, "efficiency", -1),
                (0.067, "simplicity", -1),
                (0.033, "repetition", 1),
            ):
                values = [sign * getattr(other, key) for other in right]
                lost += weight * place(sign * getattr(rollout, key), values) / (len(right) - 1)
            rewards.append(1 - lost)
    return rewards


@given(GROUP)
def test_gated_is_what_its_words_say(group):
    for reward, expected in zip(paid(gated, group), gated_by_hand(group), strict=True):
        assert (reward is None) == (expected is None)
        assert reward is None or reward == pytest.approx(expected, abs=1e-12)


@given(st.lists(SHARE, min_size=1, max_size=8), st.integers(0, 3))
def test_a_group_of_right_answers_is_flat(shares, masked):
    group = [ExecutedProgram(OK, 1.0, share, 1 - share, share, share) for share in shares]
    group += [ExecutedProgram("operator_error", 1.0)] * masked
    assert paid(gated, group) == [1.0] * len(shares) + [None] * masked


@given(st.lists(st.integers(-3, 3) | SHARE, max_size=12), st.booleans())
def test_places_are_average_ranks(values, low_is_best):
    signed = values if low_is_best else [-value for value in values]
    assert places(values, low_is_best) == pytest.approx(rankdata(signed) - 1)


def test_ties_share_their_rank():
    right = [
        ExecutedProgram(OK, 1.0, efficiency, 0.5, 1.0, 0.5) for efficiency in (0.9, 0.4, 0.4, 0.1)
    ]
    rewards = paid(gated, [*right, ExecutedProgram(OK, 0.0)])
    alike = 0.5 * (0.067 + 0.033)
    expected = [1 - alike, 1 - alike - 0.05, 1 - alike - 0.05, 1 - alike - 0.1, 0.025]
    assert rewards == pytest.approx(expected)


def test_the_seed_formula_by_its_numbers():
    best = ExecutedProgram(OK, 1.0, 1.0, 1.0, 1.0, 0.0)
    assert paid(seed_additive, [best]) == [6.8]
    wrong = dataclasses.replace(best, correct=0.5)
    group = [
        wrong,
        ExecutedProgram("timeout", 1.0, 1.0, 1.0, 1.0, 1.0),
        ExecutedProgram("sandbox_error", 1.0),
    ]
    assert paid(seed_additive, group) == pytest.approx([-2.95, -3.25, None])
    assert paid(
        seed_additive, [ExecutedProgram(OK, None), ExecutedProgram(OK, 0.9, repetition=1.0)]
    ) == [None, 6.45]


@given(GROUP)
def test_every_formula_has_three_states(group):
    for name, formula in FORMULAS.items():
        for rollout, reward in zip(group, paid(formula, group), strict=True):
            if rollout.outcome in INFRASTRUCTURE:
                assert reward is None
            elif rollout.outcome != OK:
                assert reward == (-3.25 if name == "seed-additive" else 0.0)


@pytest.mark.parametrize(
    ("judge", "rule", "both", "by"),
    [
        (1.0, 1.0, 1.0, {"judge": 1.0, "rule": 1.0, "judge-first": 1.0, "rule-first": 1.0}),
        (1.0, 0.0, None, {"judge": 1.0, "rule": 0.0, "judge-first": 1.0, "rule-first": 0.0}),
        (0.2, 0.0, 0.0, {"judge": 0.2, "rule": 0.0, "judge-first": 0.2, "rule-first": 0.0}),
        (None, 0.0, None, {"judge": None, "rule": 0.0, "judge-first": 0.0, "rule-first": 0.0}),
        (1.0, None, None, {"judge": 1.0, "rule": None, "judge-first": 1.0, "rule-first": 1.0}),
        (0.5, 0.0, 0.0, {"judge": 0.5, "rule": 0.0, "judge-first": 0.5, "rule-first": 0.0}),
    ],
)
def test_sources_and_their_agreement(judge, rule, both, by):
    rollout = ExecutedProgram(OK, judge=judge, rule=rule)
    assert paid(agreement, [rollout]) == [both]
    for source, expected in by.items():
        assert by_source(source, judge, rule) == expected
    for name, verdict in (("judge-binary", judge), ("rule-binary", rule)):
        expected = None if verdict is None else float(verdict > 0.5)
        assert paid(FORMULAS[name], [rollout]) == [expected]


@settings(max_examples=40)
@given(st.lists(GROUP, min_size=1, max_size=4))
def test_effective_shares_are_a_regression_inside_groups(groups):
    """cov/var is the slope of each component on the reward, both without their groups' means."""
    for formula in FORMULAS.values():
        terms = [formula(group) for group in groups]
        shares = effective_share(terms)
        rewards, dummies, parts = [], [], {name: [] for name in shares}
        for number, group in enumerate(terms):
            for line in group:
                if line is not None:
                    rewards.append(total(line))
                    dummies.append(number)
                    for name in shares:
                        parts[name].append(line[name])
        spread = sum(
            np.var([r for r, d in zip(rewards, dummies, strict=True) if d == number])
            for number in set(dummies)
        )
        if spread < 1e-9:
            continue
        design = np.column_stack([rewards, *(np.array(dummies) == n for n in sorted(set(dummies)))])
        for name, share in shares.items():
            slope = np.linalg.lstsq(design, np.array(parts[name]), rcond=None)[0][0]
            assert share == pytest.approx(slope, abs=1e-6)
        assert math.fsum(shares.values()) == pytest.approx(1.0)


def test_without_variance_there_are_no_shares():
    shares = effective_share([gated([ExecutedProgram(OK, 1.0), ExecutedProgram(OK, 1.0)])])
    assert set(shares) == {"correct", "format", "efficiency", "simplicity", "repetition"}
    assert all(math.isnan(share) for share in shares.values())
