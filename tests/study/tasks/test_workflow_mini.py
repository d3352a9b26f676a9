"""The built-in tasks over several domains: rows, rules, and the teacher and its programs."""

import itertools
import random
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.policies.tiny import SPLIT
from experiments.workflow import dsl
from experiments.workflow.find import find
from experiments.workflow.program import Refused
from study.config.schema import Study, Task, Trainer
from study.errors import UserError
from study.rows import Missing, Row, Truth
from study.tasks import kind, mixed_mini, oracle, order_of, workflow_mini
from study.tasks.kind import grading
from study.truth.code import answer_code
from study.truth.item import Item

TASK = Task(name="workflow-mini", train_rows=100_000, eval_rows=240)
TRAIN, HELD_OUT = workflow_mini.TASK.rows(TASK, "train"), workflow_mini.TASK.rows(TASK, "eval")
STYLES = (
    "{}",
    "The sum 3 + 4 was looked at in 2 ways.\n- first this\n- then that\nCertainly.\nAnswer: {}",
    "Without doubt. The answer is {}",
)
FENCED = "It was read with care.\n- one\n- two\n```python\n{}\n```\nCertainly."


def item_of(row: Row) -> Item:
    return row.spec["item"]


def styled(row: Row, answer: str, style: int) -> str:
    """An answer with words around it."""
    if row.domain == "code" and style:
        return FENCED.format(answer)
    return STYLES[style].format(answer)


def test_every_prompt_is_one_line_of_its_own_and_no_group_stands_on_two_sides():
    held_out = workflow_mini.TASK.rows(replace(TASK, eval_rows=100_000), "eval")
    prompts = [row.prompt_text() for row in (*TRAIN, *held_out)]
    assert len(set(prompts)) == len(prompts) and not any("\n" in text for text in prompts)
    groups = [{item_of(row).group_key for row in rows} for rows in (TRAIN, held_out)]
    assert groups[0].isdisjoint(groups[1])
    counts = Counter(row.dataset for row in TRAIN)
    assert counts.keys() == workflow_mini.DOMAINS.keys() and min(counts.values()) >= 200
    assert Counter(row.domain for row in HELD_OUT) == {"math": 96, "code": 72, "qa": 72}


def test_the_right_answer_is_right_by_python():
    for row in TRAIN:
        item, text = item_of(row), row.prompt_text()
        if row.domain == "math":
            assert str(eval(text.removeprefix("What is ").removesuffix("?"))) == item.meta["right"]
        elif row.domain == "qa":
            (name,) = (name for name in mixed_mini.NAMES if name in item.question)
            sentences = [each for each in item.context.split(".") if each.strip().startswith(name)]
            assert len(sentences) == 1 and item.meta["right"] in sentences[0]
            assert row.dataset == "facts-easy" or item.meta["wrong"][0] in text
        else:
            space: dict = {}
            exec(item.meta["right"], space)
            exec(item.tests, {"f": space["f"]})
            assert len(item.public_tests) == 1 and item.public_tests[0] in item.tests


def test_wrong_functions_fail_hidden_tests_and_the_favourite_passes_the_public_one():
    for row in TRAIN:
        if row.domain != "code":
            continue
        item = item_of(row)
        for place, wrong in enumerate(item.meta["wrong"]):
            space: dict = {}
            exec(wrong, space)
            with pytest.raises(AssertionError):
                exec(item.tests, {"f": space["f"]})
            if not place:
                exec(item.public_tests[0], {"f": space["f"]})


def test_every_problem_has_wrong_answers_and_an_order_its_shares():
    for row in (*TRAIN, *HELD_OUT):
        meta = item_of(row).meta
        assert len(set(meta["wrong"])) == len(meta["wrong"]) >= 3
        assert meta["right"] not in meta["wrong"] and meta["difficulty"] in ("easy", "hard")
    order = order_of(Study(task=TASK, trainer=Trainer(steps=10, prompts_per_step=10)))
    rows = [TRAIN[place] for place in order.rows(0, 100)]
    assert Counter(row.domain for row in rows) == {"math": 40, "code": 30, "qa": 30}
    assert len({row.dataset for row in rows}) == 6


def test_truth_survives_a_style_and_names_the_favourite():
    rows = HELD_OUT[:60]
    assert len({row.dataset for row in rows}) == 6
    truths_by_kind: list[tuple[str, object]] = []
    kinds = {"right": lambda meta: meta["right"], "favourite": lambda meta: meta["wrong"][0]}
    kinds["other"] = lambda meta: meta["wrong"][1]
    with grading():
        for (kind, answer), style in itertools.product(kinds.items(), range(3)):
            answers = [styled(row, answer(item_of(row).meta), style) for row in rows]
            truths_by_kind += [(kind, truth) for truth in oracle(TASK).truths(rows, answers)]
        assert oracle(TASK).truths(rows[:1], [None]) == [Truth(0.0, (False,))]
    wanted = {
        "right": Truth(1.0, (True,)),
        "favourite": Truth(0.0, (False,), whose="sim"),
        "other": Truth(0.0, (False,)),
    }
    assert all(truth == wanted[kind] for kind, truth in truths_by_kind)


def test_a_truth_that_is_missing_stays_so(monkeypatch):
    monkeypatch.setattr(kind.rules, "score", lambda items, answers, grader: [None] * len(items))
    lost = SimpleNamespace(lost=dict.fromkeys([row.item for row in HELD_OUT], "gone"))
    monkeypatch.setitem(kind._GRADERS, "", lost)
    assert workflow_mini.TASK.truths(HELD_OUT[:2], ["1", None]) == [Missing("gone")] * 2


def test_the_teacher_writes_short_programs_of_known_words():
    lessons = workflow_mini.TASK.lessons(TASK)
    draw, counts = random.Random(0), Counter()
    for row in lessons.rows(0)[:3000]:
        line = lessons.answer(row, draw)
        assert len(re.findall(SPLIT, line)) <= 23, "and the end mark"
        try:
            counts[row.domain, "valid"] += bool(find(line, "dsl"))
        except Refused:
            counts[row.domain, "invalid"] += 1
    for domain in ("math", "code", "qa"):
        invalid = counts[domain, "invalid"] / (counts[domain, "valid"] + counts[domain, "invalid"])
        assert 0.04 < invalid < 0.13
        assert len({dsl.compiled(line).python for line in workflow_mini.programs(domain)}) >= 40
    words = {word.strip() for text in lessons.texts() for word in re.findall(SPLIT, text)}
    used = {name for line in workflow_mini.programs("code") for name in re.findall(r"\w+", line)}
    assert used <= words | {"2", "3", "5"} and len(words) < 400


def test_the_bare_code_of_an_answer_is_read_again_as_itself():
    """So a judge of code may be asked about the bare code alone."""
    for row in HELD_OUT:
        if row.domain == "code":
            item = item_of(row)
            bare = answer_code(item, FENCED.format(item.meta["right"]))
            assert bare.strip() == item.meta["right"] == answer_code(item, bare).strip()


MIXED = Task(name="mixed-mini", train_rows=100_000, eval_rows=340)
MIXED_TRAIN, MIXED_HELD_OUT = (
    mixed_mini.TASK.rows(MIXED, "train"),
    mixed_mini.TASK.rows(MIXED, "eval"),
)
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
    everything = mixed_mini.TASK.rows(replace(MIXED, eval_rows=100_000), "eval")
    ids = [row.prompt_id for row in (*MIXED_TRAIN, *everything)]
    assert len(set(ids)) == len(ids) == len({row.item for row in (*MIXED_TRAIN, *everything)})
    groups = [{row.spec["item"].group_key for row in rows} for rows in (MIXED_TRAIN, everything)]
    assert groups[0].isdisjoint(groups[1])
    assert {row.split for row in MIXED_TRAIN} == {"train"}
    assert {row.split for row in everything} == {"eval"}


def test_held_out_rows_are_enough_and_half_of_them_meet_a_habit():
    assert Counter(row.domain for row in MIXED_HELD_OUT) == {"math": 136, "qa": 102, "code": 102}
    for domain in DOMAINS:
        rows = [row for row in MIXED_HELD_OUT if row.domain == domain]
        assert 0.35 < sum(map(habitual, rows)) / len(rows) < 0.65
    alone = replace(MIXED, options={"datasets": ["sums"]})
    assert mixed_mini.TASK.rows(alone, "eval") == MIXED_HELD_OUT
    assert {row.dataset for row in mixed_mini.TASK.rows(alone, "train")} == {"sums"}


def test_a_sum_a_fact_a_function():
    for row in MIXED_TRAIN:
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
    rows = [row for row in MIXED_HELD_OUT if row.domain != "code"]
    rows += [row for row in MIXED_HELD_OUT if row.domain == "code"][:12]
    with grading():
        right = oracle(MIXED).truths(rows, [row.reference for row in rows])
        wrong = oracle(MIXED).truths(rows, ["no idea"] * len(rows))
        cut = oracle(MIXED).truths(rows, [None] * len(rows))
    assert right == [Truth(1.0, (True,))] * len(rows)
    assert wrong == cut == [Truth(0.0, (False,))] * len(rows)


def test_a_program_that_knows_one_answer_or_reads_no_order_is_wrong():
    row = next(row for row in MIXED_HELD_OUT if row.domain == "code" and habitual(row))
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
    rows = [row for row in MIXED_TRAIN if row.domain == "code"]
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
    for row in MIXED_TRAIN:
        is_right = mixed_mini.answer(row, draw) == row.reference
        right.setdefault((row.domain, habitual(row)), []).append(is_right)
    assert len(right) == 6
    for (_, habit), answers in right.items():
        share = sum(answers) / len(answers)
        assert 0.35 < share < 0.5 if habit else share > 0.9


def test_lessons_are_of_all_domains_and_rows_to_train_on_whatever_is_drawn():
    lessons = mixed_mini.TASK.lessons(
        replace(MIXED, options={"datasets": ["facts"]}, seed=3, train_rows=5)
    )
    rows = lessons.rows(0)
    assert Counter(row.domain for row in rows[:1000]) == {d: 100 * w for d, w in DOMAINS.items()}
    assert {row.prompt_id for row in rows} <= {row.prompt_id for row in MIXED_TRAIN}
    draw = random.Random(0)
    words = set(" ".join(lessons.texts()).split())
    answer_words = {word for row in rows for word in mixed_mini.answer(row, draw).split()}
    assert {word for word in answer_words if word.isalnum()} <= words


@given(seed=st.integers(0, 99), size=st.integers(1, 400))
def test_a_run_draws_by_weight_from_the_rows_that_its_task_picks(seed, size):
    task = replace(MIXED, train_rows=size, seed=seed % 3)
    order = mixed_mini.TASK.order(task, seed)
    rows = mixed_mini.TASK.rows(task, "train")
    assert {row.item for row in rows} <= {row.item for row in MIXED_TRAIN}
    assert max(Counter(row.dataset for row in rows).values()) <= size
    drawn = [rows[index] for index in order.rows(0, 10)]
    assert Counter(row.domain for row in drawn) == DOMAINS
    assert [row.item for row in drawn] == order.state(0, 10)["next"]
    ids = [order.item(order.mixture.at(place)).id for place in range(10)]
    assert ids == [row.item for row in drawn]


def test_a_run_that_is_too_long_and_a_set_that_is_not_there_are_refused():
    config = Study(task=replace(MIXED, train_rows=2), trainer=Trainer(steps=9, prompts_per_step=8))
    with pytest.raises(UserError, match=r"draws 72 rows.*max_repeats"):
        order_of(config)
    for what in ("train", "eval"):
        with pytest.raises(UserError, match="sums, facts, functions"):
            mixed_mini.TASK.rows(replace(MIXED, options={"datasets": ["gsm8k"]}), what)
    with pytest.raises(UserError, match="max_repeats"):
        mixed_mini.TASK.rows(replace(MIXED, options={"repeats": 3}), "eval")
    assert mixed_mini.TASK.runs_code(MIXED)
