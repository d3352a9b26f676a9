"""What every task offers, and rows that are read one by one."""

from itertools import pairwise

import pytest

from study.config.schema import Task
from study.rows import Missing, Truth
from study.tasks import SAMPLE, TASKS, checked, instruct_mini, kind_of, oracle, sample
from study.tasks.kind import RuledTask
from tests import lazy_task

LARGE = Task(name="lazy", train_rows=24_000, eval_rows=0)


@pytest.fixture(autouse=True)
def lazy(monkeypatch):
    monkeypatch.setitem(TASKS, "lazy", lazy_task.TASK)
    lazy_task.MADE.clear()
    lazy_task.ASKED.clear()


@pytest.mark.parametrize("name", [name for name in TASKS if isinstance(TASKS[name], RuledTask)])
def test_every_task_tells_truths_in_batches(name):
    row = instruct_mini.TASK.rows(Task(train_rows=1), "train")[0]
    truths = TASKS[name].truths([row, row], ["red", "blue"])
    assert len(truths) == 2 and all(truth is None or isinstance(truth, Truth) for truth in truths)
    assert truths == [TASKS[name].truth(row, answer) for answer in ("red", "blue")]
    with pytest.raises(ValueError, match="argument 2"):
        TASKS[name].truths([row], ["red", "blue"])


def test_rows_in_memory_are_all_checked_and_others_sampled():
    rows = instruct_mini.TASK.rows(Task(train_rows=20), "train")
    assert checked(rows) is rows
    looked_at = checked(lazy_task.TASK.rows(LARGE, "train"))
    assert SAMPLE <= len(looked_at) < 2 * SAMPLE
    places = [row.spec["sum"] // 2 for row in looked_at]
    assert places == lazy_task.MADE and places[0] == 0 and places[-1] > 23_900
    assert len({second - first for first, second in pairwise(places)}) == 1


@pytest.mark.parametrize(("size", "count"), [(0, 3), (1, 3), (3, 3), (5, 3), (6, 3), (700, 3)])
def test_a_sample_is_of_about_the_size_asked_for(size, count):
    rows = lazy_task.TASK.rows(Task(train_rows=size), "train")
    assert min(size, count) <= len(sample(rows, count)) < 2 * count


def test_a_row_is_looked_up_by_an_index_of_its_own_or_one_made_of_rows():
    row_of = kind_of(LARGE).lookup(LARGE)
    wanted = lazy_task.Sums(24_000)[7_777]
    lazy_task.MADE.clear()
    assert row_of(wanted.prompt_id) == wanted and lazy_task.MADE == [7_777]
    assert row_of("0" * 16) is None
    task = Task(name="instruct-mini", train_rows=8, eval_rows=4)
    for split in ("train", "eval"):
        for row in instruct_mini.TASK.rows(task, split):
            assert kind_of(task).lookup(task)(row.prompt_id) == row
    assert kind_of(task).lookup(task)("") is None


def test_one_oracle_serves_a_process():
    truth_of = oracle(Task(name="lazy", train_rows=30))
    assert oracle(Task(name="lazy", train_rows=30)) is truth_of and truth_of.waits
    assert not oracle(Task(name="instruct-mini")).waits
    assert truth_of("What is 7 plus 7?", "14") == Truth(1.0, (True,))
    assert truth_of("What is 7 plus 7?", "lost") == Missing(lazy_task.LOST)
    assert truth_of("What is 70 plus 70?", "140") is None
