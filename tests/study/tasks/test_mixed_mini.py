"""The generated mixture: rows, splits, order, rules and the teacher's habits."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.config.schema import Study, Task, Trainer
from study.errors import UserError
from study.rows import Row, Truth
from study.tasks import mixed_mini, oracle, order_of
from study.tasks.kind import grading

TASK = Task(name="mixed-mini", train_rows=100_000, eval_rows=340)
TRAIN, HELD_OUT = mixed_mini.TASK.rows(TASK, "train"), mixed_mini.TASK.rows(TASK, "eval")
DOMAINS = {"math": 4, "qa": 3, "code": 3}


def habitual(row: Row) -> bool:
    """Whether the teacher has a habit with this row."""
    item = row.spec["item"]
    if row.domain == "math":
        return row.prompt_text().startswith("Add ")
    return (
        not item.answerable
        if row.domain == "qa"
        else item.reference.startswith("def f(x): return (")
    )


def test_no_row_comes_twice_and_no_group_stands_on_two_sides():
    everything = mixed_mini.TASK.rows(replace(TASK, eval_rows=100_000), "eval")
    ids = [row.prompt_id for row in (*TRAIN, *everything)]
    assert len(set(ids)) == len(ids) == len({row.item for row in (*TRAIN, *everything)})
    groups = [{row.spec["item"].group_key for row in rows} for rows in (TRAIN, everything)]
    assert groups[0].isdisjoint(groups[1])
    assert {row.split for row in TRAIN} == {"train"}
    assert {row.split for row in everything} == {"eval"}


def test_held_out_rows_are_enough_and_half_of_them_meet_a_habit():
    assert Counter(row.domain for row in HELD_OUT) == {"math": 136, "qa": 102, "code": 102}
    for domain in DOMAINS:
        rows = [row for row in HELD_OUT if row.domain == domain]
        assert 0.35 < sum(map(habitual, rows)) / len(rows) < 0.65
    alone = replace(TASK, options={"datasets": ["sums"]})
    assert mixed_mini.TASK.rows(alone, "eval") == HELD_OUT
    assert {row.dataset for row in mixed_mini.TASK.rows(alone, "train")} == {"sums"}


def test_a_sum_a_fact_a_function():
    for row in TRAIN:
        item, text = row.spec["item"], row.prompt_text()
        if row.domain == "math":
            numbers = [int(word) for word in text.split() if word.isdigit()]
            assert sum(numbers) == int(item.answers[0]) <= 12
        elif row.domain == "qa":
            assert text == f"{item.context} {item.question}"
            assert all(answer in item.context for answer in item.answers)
            assert (row.reference == "unanswerable") == (not item.answerable)
        else:
            space: dict = {}
            exec(item.reference, space)
            exec(item.tests, {"f": space["f"]})
            assert item.tests not in text and "assert" not in text


def test_the_rules_tell_right_from_wrong():
    rows = [row for row in HELD_OUT if row.domain != "code"]
    rows += [row for row in HELD_OUT if row.domain == "code"][:12]
    with grading():
        right = oracle(TASK).truths(rows, [row.reference for row in rows])
        wrong = oracle(TASK).truths(rows, ["no idea"] * len(rows))
        cut = oracle(TASK).truths(rows, [None] * len(rows))
    assert right == [Truth(1.0, (True,))] * len(rows)
    assert wrong == cut == [Truth(0.0, (False,))] * len(rows)


def test_a_program_that_knows_one_answer_or_reads_no_order_is_wrong():
    row = next(row for row in HELD_OUT if row.domain == "code" and habitual(row))
    (first, n), (second, m) = row.spec["item"].meta["steps"]
    programs = [
        row.reference,
        f"def f(x): return x {first} {n} {second} {m}",
        "def f(x): return 0",
        "def f(x): return type('A', (), {'__eq__': lambda s, o: True})()",
        f"def f(x):\n    y = x {first} {n}\n    return y {second} {m}",
        "f(x) = x",
    ]
    with grading():
        truths = mixed_mini.TASK.truths([row] * len(programs), programs)
    assert [truth.score for truth in truths if isinstance(truth, Truth)] == [1, 0, 0, 0, 1, 0]


def test_a_program_is_run_once_for_all_rows_with_the_same_tests():
    rows = [row for row in TRAIN if row.domain == "code"]
    first = rows[0].spec["item"]
    alike = [row for row in rows if row.spec["item"].tests == first.tests]
    other = next(row for row in rows if row.spec["item"].tests != first.tests)
    with grading() as grader:
        truths = mixed_mini.TASK.truths([*alike, other], [first.reference] * (len(alike) + 1))
        assert grader.crew("code", lambda: None).outcomes.total() == 2
    assert truths == [Truth(1.0, (True,))] * len(alike) + [Truth(0.0, (False,))] and len(alike) == 3


def test_the_teacher_is_wrong_by_habit_and_right_otherwise():
    draw = random.Random(0)
    right: dict[tuple[str, bool], list[bool]] = {}
    for row in TRAIN:
        is_right = mixed_mini.answer(row, draw) == row.reference
        right.setdefault((row.domain, habitual(row)), []).append(is_right)
    assert len(right) == 6
    for (_, habit), answers in right.items():
        share = sum(answers) / len(answers)
        assert 0.35 < share < 0.5 if habit else share > 0.9


def test_lessons_are_of_all_domains_and_rows_to_train_on_whatever_is_drawn():
    lessons = mixed_mini.TASK.lessons(
        replace(TASK, options={"datasets": ["facts"]}, seed=3, train_rows=5)
    )
    rows = lessons.rows(0)
    assert Counter(row.domain for row in rows[:1000]) == {d: 100 * w for d, w in DOMAINS.items()}
    assert {row.prompt_id for row in rows} <= {row.prompt_id for row in TRAIN}
    draw = random.Random(0)
    words = set(" ".join(lessons.texts()).split())
    answer_words = {word for row in rows for word in mixed_mini.answer(row, draw).split()}
    assert {word for word in answer_words if word.isalnum()} <= words


@given(seed=st.integers(0, 99), size=st.integers(1, 400))
def test_a_run_draws_by_weight_from_the_rows_that_its_task_picks(seed, size):
    task = replace(TASK, train_rows=size, seed=seed % 3)
    order = mixed_mini.TASK.order(task, seed)
    rows = mixed_mini.TASK.rows(task, "train")
    assert {row.item for row in rows} <= {row.item for row in TRAIN}
    assert max(Counter(row.dataset for row in rows).values()) <= size
    drawn = [rows[index] for index in order.rows(0, 10)]
    assert Counter(row.domain for row in drawn) == DOMAINS
    assert [row.item for row in drawn] == order.state(0, 10)["next"]
    ids = [order.item(order.mixture.at(place)).id for place in range(10)]
    assert ids == [row.item for row in drawn]


def test_a_run_that_is_too_long_and_a_set_that_is_not_there_are_refused():
    config = Study(task=replace(TASK, train_rows=2), trainer=Trainer(steps=9, prompts_per_step=8))
    with pytest.raises(UserError, match=r"draws 72 rows.*max_repeats"):
        order_of(config)
    for what in ("train", "eval"):
        with pytest.raises(UserError, match="sums, facts, functions"):
            mixed_mini.TASK.rows(replace(TASK, options={"datasets": ["gsm8k"]}), what)
    with pytest.raises(UserError, match="max_repeats"):
        mixed_mini.TASK.rows(replace(TASK, options={"repeats": 3}), "eval")
    assert mixed_mini.TASK.runs_code(TASK)
