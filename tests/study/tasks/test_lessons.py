"""What a task brings for a policy to learn from."""

import random
import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from study.config.schema import Task
from study.rows import Row, make_row
from study.tasks import instruct_mini, prompts
from study.tasks.lessons import MOST_WORDS, of_references


def row_of(prompt: str, reference: str | None) -> Row:
    return make_row(({"role": "user", "content": prompt},), reference=reference)


def test_the_built_in_task_teaches_the_same_whatever_its_options():
    lessons = instruct_mini.TASK.lessons(Task(seed=3, train_rows=7, options={"rules": True}))
    rows = lessons.rows(0)
    assert rows == instruct_mini.TASK.lessons(Task()).rows(0) != lessons.rows(1)
    assert {row.split for row in rows} == {"train"}
    counts = Counter(re.findall(r"[a-z]+", " ".join(lessons.texts()).lower()))
    text = " ".join(lessons.answer(row, random.Random(0)) for row in rows[:500])
    assert set(re.findall(r"[a-z]+", text.lower())) <= set(counts) and len(counts) < MOST_WORDS


@given(references=st.lists(st.text(max_size=5), max_size=6))
def test_lessons_of_references_are_of_the_rows_that_have_one(references):
    rows = [row_of(f"Prompt {n}", text) for n, text in enumerate(references)]
    given_ones = [row for row in rows if row.reference and row.reference.strip()]
    lessons = of_references(rows)
    assert (lessons is None) == (not given_ones)
    if lessons is not None:
        assert list(lessons.rows(0)) == given_ones
        texts = list(lessons.texts())
        assert all(row.reference in texts and row.prompt_text() in texts for row in given_ones)
        draw = random.Random(1)
        answers = {lessons.answer(row, draw) for row in given_ones for _ in range(5)}
        assert answers <= {row.reference for row in given_ones}


def test_such_a_teacher_is_right_as_a_rule_and_not_always():
    rows = [row_of(f"Prompt {n}", str(n)) for n in range(200)]
    lessons = of_references(rows)
    assert lessons is not None
    draw = random.Random(0)
    right = sum(lessons.answer(row, draw) == row.reference for row in rows * 10) / 2000
    assert 0.66 < right < 0.74


def test_the_key_tells_rows_and_references_apart():
    keys = {
        of_references([row_of(prompt, reference) for prompt, reference in pairs]).key  # ty: ignore
        for pairs in (
            [("a", "b"), ("c", "d")],
            [("a", "b"), ("c", "e")],
            [("a", "b")],
            [("x", "b")],
            [("a", "b"), ("c", None)],
        )
    }
    assert len(keys) == 4  # a row without a reference teaches nothing


def test_a_file_without_references_brings_no_lessons(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "Why?"}\n{"prompt": "When?", "reference": "now"}\n')
    task = Task(name="prompts", path=str(path), options={"eval_share": 0.0})
    lessons = prompts.TASK.lessons(task)
    assert lessons is not None and [row.reference for row in lessons.rows(0)] == ["now"]
    path.write_text('{"prompt": "Why?"}\n')
    assert prompts.TASK.lessons(task) is None
