"""VerIF labels, rules in tags, and rows that a study cannot use."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from study.config.schema import Task
from study.errors import UserError
from study.rows import Criterion, Rule
from study.tasks import instruct_mini, prompts, where
from study.tasks.prompts import Options
from tests.study.tasks.datasets.roots import lines

LABELS = {
    "checkers": ["[llm] Style: Be kind.", "[rule]  Word: At most 9 words."],
    "functions": ["import llm", "def check_following(i, r):\n    return len(r.split()) < 10"],
}
VERIF = Options(form="verif")


def record(labels):
    return {"prompt": "x", "reward_model": {"style": "rm", "ground_truth": labels}}


def test_labels_become_criteria_and_rules():
    row = prompts.parse(record(json.dumps(LABELS)), "here", VERIF, 7)
    assert row.criteria == (Criterion("Style: Be kind."),)
    assert row.rules == (Rule("7:1", "Word", "Word: At most 9 words.", LABELS["functions"][1]),)
    assert prompts.parse({"prompt": "x", **LABELS}, "here", VERIF, 7) == row


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("{not json", "labels that are not JSON"),
        ("[]", "no labels"),
        (None, "no labels"),
        (json.dumps({"checkers": ["[llm] a"]}), "functions that are not a list of text"),
        (json.dumps({"checkers": ["[llm] a"], "functions": []}), "1 checkers and 0 functions"),
        (json.dumps({"checkers": ["a: b"], "functions": ["x"]}), "without the tag"),
        (json.dumps({"checkers": ["[human] a"], "functions": ["x"]}), "without the tag"),
    ],
)
def test_bad_labels_name_file_and_row(labels, message):
    with pytest.raises(UserError, match=r"^rows\.parquet, row 3: ") as caught:
        prompts.parse(record(labels), "rows.parquet, row 3", VERIF)
    assert message in str(caught.value)


@pytest.mark.parametrize("as_list", [False, True])
def test_a_word_count_in_the_tags_is_a_rule(as_list):
    tags = {"verifier": "rule", "function": "word_count_range", "parameters": {"max_count": 3}}
    if as_list:
        tags = ["verifier:llm", "hard"]
    record = {"prompt": "x", "rubrics": [{"criterion": "Short.", "points": 2, "tags": tags}]}
    row = prompts.parse(record, "here", number=7)
    if as_list:
        assert row.criteria == (Criterion("Short.", 2.0, {"verifier": "llm", "hard": True}),)
        return
    assert row.criteria == ()
    (rule,) = row.rules
    assert (rule.id, rule.text, rule.points) == ("7:0", "Short.", 2.0)
    namespace = {}
    exec(rule.source, namespace)
    check = namespace["check_following"]
    assert check("", "one two three") and not check("", "one two three four")


@pytest.mark.parametrize(
    ("rubrics", "message"),
    [
        ([], "no criteria"),
        ([{"text": "a"}, {"text": "a "}], "twice"),
        ([{"text": "a", "points": -1}], "no criterion with positive points"),
    ],
)
def test_rows_that_a_rubric_cannot_use_are_named_or_counted(tmp_path, rubrics, message):
    good = {"prompt": "q", "rubrics": [{"text": "a"}], "split": "train"}
    path = lines(tmp_path / "rows.jsonl", [good, {"prompt": "p", "rubrics": rubrics}])
    task = Task(name="verinstruct", path=str(path), options={"needs": "criteria"})
    with pytest.raises(UserError, match=re.escape(f"{path}, line 2: found a row that has")) as got:
        prompts.load(task)
    assert message in str(got.value)
    options = {"needs": "criteria", "on_unfit": "drop"}
    dropping = Task(name="verinstruct", path=str(path), options=options)
    loaded = prompts.load(dropping)
    assert (loaded.read, loaded.unfit, len(loaded.rows)) == (2, 1, 1)


def test_research_rubrics_are_read(tmp_path):
    record = {"query": "Why?", "rubric": [{"rubric_item": "Cites.", "type": "x"}]}
    path = lines(tmp_path / "rows.jsonl", [record])
    (row,) = prompts.load(Task(name="researchqa", path=str(path))).rows
    assert row.prompt_text() == "Why?" and row.criteria == (Criterion("Cites."),)


def test_a_group_stays_on_one_side(tmp_path):
    records = [{"prompt": f"p{n}", "original_id": n // 4} for n in range(200)]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "rows.parquet")
    options = {"group_key": "original_id", "eval_share": 0.5}
    rows = prompts.load(Task(path=str(tmp_path / "rows.parquet"), options=options)).rows
    splits = [row.split for row in rows]
    assert all(len(set(splits[start : start + 4])) == 1 for start in range(0, 200, 4))
    assert {"train", "eval"} == set(splits)
    with pytest.raises(UserError, match="no original_id"):
        prompts.parse({"prompt": "x"}, "here", Options(group_key="original_id"))


def test_without_data_the_task_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setenv(where.VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=re.escape("task.path is not set")) as caught:
        prompts.TASK.rows(Task(name="healthbench"), "train")
    assert f"{where.VARIABLE} to a folder with healthbench/" in str(caught.value)


def test_built_in_rules_agree_with_the_truth():
    import random

    from study.tasks import teacher

    draw = random.Random(0)
    ruled = instruct_mini.TASK.rows(Task(train_rows=60, options={"rules": True}), "train")
    plain = instruct_mini.TASK.rows(Task(train_rows=60), "train")
    scores = []
    for row, before in zip(ruled, plain, strict=True):
        assert row.prompt_id == before.prompt_id and len(row.rules) in (1, 2)
        answer = teacher.answer(before, draw)
        truth = instruct_mini.TASK.truth(row, answer)
        assert truth.score == instruct_mini.TASK.truth(before, answer).score
        assert len(truth.checks) == len(row.criteria) + len(row.rules)
        for rule, expected in zip(row.rules, truth.checks[len(row.criteria) :], strict=True):
            namespace = {}
            exec(rule.source, namespace)
            assert namespace["check_following"]("", answer) == expected
            scores.append(expected)
    assert set(scores) == {True, False}


@pytest.mark.parametrize(
    ("name", "options", "counts"),
    [
        ("verinstruct", {"needs": "criteria"}, (275, 0, 1596, 0)),
        ("verinstruct-verif", {"form": "verif"}, (274, 0, 1591, 399)),
        ("healthbench", {"needs": "criteria", "on_unfit": "drop"}, (500, 1, 5942, 0)),
    ],
)
def test_the_study_s_own_rows(name, options, counts):
    if not (where.data_folder() / where.FILES[name]).is_file():
        pytest.skip(f"the rows of {name} are not here")
    loaded = prompts.load(Task(name=name, options=options))
    criteria = sum(len(row.criteria) for row in loaded.rows)
    rules = sum(len(row.rules) for row in loaded.rows)
    assert (loaded.read, loaded.unfit, criteria, rules) == counts
