"""The rows that generated tasks make, what their teacher answers, and what is true of it, are what
they were: whoever reruns a study from its config and seed gets these."""

import random

import pytest

from study.config.schema import Task
from study.tasks import TASKS, instruct_mini, teacher
from tests.recording import compare, of_document


@pytest.mark.parametrize("name", ["instruct-mini", "mixed-mini", "workflow-mini"])
def test_generated_rows(name):
    lines = []
    for split in ("train", "eval"):
        rows = list(TASKS[name].rows(Task(name=name, train_rows=40, eval_rows=20), split))
        lines += [row.prompt_text().replace("\n", " | ") for row in rows[:5]]
        lines += of_document({split: rows})
    compare(f"rows-{name}", lines)


def test_answers_of_the_teacher_and_their_truth():
    draw, lines = random.Random(1), []
    for row in instruct_mini.TASK.rows(Task(train_rows=12), "train"):
        answer = teacher.answer(row, draw)
        truth = instruct_mini.TASK.truth(row, answer)
        lines += [answer.replace("\n", " | "), *of_document({"truth": truth})]
    compare("rows-teacher", lines)
