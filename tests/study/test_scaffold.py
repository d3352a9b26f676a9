"""The scaffold's schedule against hand-made numbers, and what it may never touch."""

import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.config.bounds import words_of
from study.config.schema import Scaffold, freeze
from study.errors import UserError
from study.rows import Criterion, Rule, make_row
from study.tasks.scaffold import check, choose, group_share, items, show, step_share, wording

USER = {"role": "user", "content": "Say something kind."}
GROUPS, DECAYS = words_of(Scaffold, "group"), words_of(Scaffold, "decay")
ROW = make_row((USER,), tuple(Criterion(f"Point {n}.", n) for n in (3.0, -2.0, 1.0)))
ON = Scaffold(name="ruscarl")


def test_shares_of_a_group_as_published():
    shares = [group_share(ON, member, 8) for member in range(8)]
    assert [round(share, 3) for share in shares] == [1, 0.857, 0.714, 0.571, 0.429, 0.286, 0.143, 0]
    assert group_share(ON, 0, 1) == 1.0
    binary = Scaffold(name="ruscarl", group="binary", full_reveal=2)
    assert [group_share(binary, member, 4) for member in range(4)] == [1.0, 1.0, 0.0, 0.0]


def test_a_sigmoid_is_gone_after_a_quarter_and_a_steep_one_does_not_overflow():
    """Full until about step 57 of 350, one half at 70 to 71, below 1 % by 84."""
    at = [step_share(ON, step, 350) for step in range(1, 351)]
    assert at[0] == pytest.approx(1.0) and at[56] > 0.99
    assert at[69] > 0.5 > at[70]
    assert at[83] < 0.01 and at[349] == pytest.approx(0.0, abs=1e-40)
    assert step_share(Scaffold(x0=0.0, k=1e9), 350, 350) == pytest.approx(0.0, abs=1e-300)
    assert math.isclose(step_share(Scaffold(x0=0.5, k=1e-9), 350, 350), 0.5, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("none", [1, 1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25, 0]),
        ("power", [1, 0.5625, 0.25, 0.0625, 0]),
    ],
)
def test_decays_over_five_steps(decay, expected):
    scaffold = Scaffold(name="ruscarl", decay=decay, power=2.0)
    assert [step_share(scaffold, step, 5) for step in range(1, 6)] == pytest.approx(expected)
    assert step_share(scaffold, 1, 1) == 1.0


@given(st.sampled_from(DECAYS), st.integers(2, 500), st.floats(0, 1), st.floats(0.1, 500))
def test_every_decay_falls_and_stays_a_share(decay, steps, x0, k):
    scaffold = Scaffold(name="ruscarl", decay=decay, x0=x0, k=k)
    shares = [step_share(scaffold, step, steps) for step in range(1, steps + 1)]
    assert all(0 <= share <= 1 for share in shares)
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(
    ("count", "ratio", "shown"), [(1, 0.5, 0), (5, 0.5, 2), (3, 0.5, 2), (7, 0.5, 4), (6, 1.0, 6)]
)
def test_the_number_shown_rounds_half_to_even(count, ratio, shown):
    places = choose(ON, count, ratio, random.Random(0))
    assert len(places) == shown and list(places) == sorted(set(places))


@given(st.sampled_from(GROUPS), st.integers(0, 7), st.integers(1, 9), st.integers(0, 3))
def test_what_is_shown_is_the_same_again(group, member, step, seed):
    scaffold = Scaffold(name="ruscarl", group=group, decay="linear")
    first, again = (show(scaffold, ROW, member, 8, step, 9, seed) for _ in range(2))
    assert first == again
    assert set(first.items) <= {0, 1, 2}


def test_the_draw_depends_on_seed_step_and_member_and_math_holds_the_answer_back():
    rich = make_row((USER,), tuple(Criterion(f"Point {n}.") for n in range(40)))
    flat = Scaffold(name="ruscarl", decay="none")
    draws = {
        show(flat, rich, member, 8, step, 9, seed).items
        for member, step, seed in ((4, 1, 0), (4, 2, 0), (4, 1, 1))
    }
    assert len(draws) == 3 and {len(one) for one in draws} == {round(40 * 3 / 7)}
    maths = Scaffold(name="ruscarl", group="math_linear")
    draw = random.Random(0)
    assert choose(maths, 5, 1.0, draw) == (0, 1, 2, 3, 4)
    assert choose(maths, 5, 0.7, draw) == (0, 1, 3)  # round(3 * 0.7) = 2 in order, and the format
    assert choose(maths, 5, 0.0, draw) == (3,)


def test_the_first_sees_all_and_the_last_the_plain_prompt_in_one_system_turn():
    first, last = show(ON, ROW, 0, 8, 1, 350, 0), show(ON, ROW, 7, 8, 1, 350, 0)
    assert first.items == (0, 1, 2) and first.ratio == pytest.approx(1.0)
    assert last.items == () and last.messages == ROW.messages
    text = first.messages[0]["content"]
    assert first.messages[0]["role"] == "system" and first.messages[1:] == ROW.messages
    assert "- Point 3.0. (3 points)" in text and "- Point -2.0. (costs 2 points)" in text
    assert text.index("Point 1.0") < text.index("Point -2.0")  # to cover before to avoid
    last = show(Scaffold(name="ruscarl", base_prompt=True), ROW, 7, 8, 1, 350, 0)
    assert last.messages == ({"role": "system", "content": "You are a helpful assistant."}, USER)
    silent = wording(Scaffold(leak_warning=False), ROW.criteria)
    assert wording(Scaffold(), ROW.criteria).startswith(silent)
    assert "do not mention" not in silent
    row = make_row(({"role": "system", "content": "Be brief."}, USER), ROW.criteria)
    shown = show(ON, row, 0, 8, 1, 350, 0)
    assert [turn["role"] for turn in shown.messages] == ["system", "user"]
    assert shown.messages[0]["content"].endswith("\n\nBe brief.")


def test_rules_are_shown_in_words_and_rows_without_a_rubric_refused():
    row = make_row((USER,), (Criterion("a"),), rules=(Rule("0:1", "Word", "b", "code", 2.0),))
    assert items(row) == (Criterion("a"), Criterion("b", 2.0))
    bare = make_row((USER,))
    with pytest.raises(UserError, match=re.escape("1 of 2 rows have none")):
        check(ON, [ROW, bare])
    check(Scaffold(), [bare])


@pytest.mark.parametrize(
    "wrong", [{"group": "cubic"}, {"decay": "cosine"}, {"name": "x"}, {"k": 0.0}, {"power": -1.0}]
)
def test_unknown_settings_are_user_errors(wrong):
    with pytest.raises(UserError, match=rf"scaffold\.{next(iter(wrong))}=.* is not legal"):
        freeze(Scaffold, {"name": "ruscarl"} | wrong)
