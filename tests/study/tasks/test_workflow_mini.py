"""The rows of workflow-mini: what is right, what is wrong, what tests see, what is taught."""

import itertools
import random
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments.policies.tiny import SPLIT
from experiments.workflow import dsl
from experiments.workflow.find import find
from experiments.workflow.program import Refused
from study.config.schema import Study, Task, Trainer
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


def test_every_problem_has_wrong_answers_besides_the_favourite():
    for row in (*TRAIN, *HELD_OUT):
        meta = item_of(row).meta
        assert len(set(meta["wrong"])) == len(meta["wrong"]) >= 3
        assert meta["right"] not in meta["wrong"] and meta["difficulty"] in ("easy", "hard")


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


def test_an_order_draws_four_three_three():
    order = order_of(Study(task=TASK, trainer=Trainer(steps=10, prompts_per_step=10)))
    rows = [TRAIN[place] for place in order.rows(0, 100)]
    assert Counter(row.domain for row in rows) == {"math": 40, "code": 30, "qa": 30}
    assert len({row.dataset for row in rows}) == 6


def test_the_bare_code_of_an_answer_is_read_again_as_itself():
    """So a judge of code may be asked about the bare code alone."""
    for row in HELD_OUT:
        if row.domain == "code":
            item = item_of(row)
            bare = answer_code(item, FENCED.format(item.meta["right"]))
            assert bare.strip() == item.meta["right"] == answer_code(item, bare).strip()
